// Basis profiles: finest steps to coefficients, `coefficient[c][t] = sum over elements of matrix[e][c] * steps[e][t]`.
// In f32 on the plain cores: f16 operands would cost the encoder symbols that differ by one. Sums run over this rank's
// elements in order; sums of ranks are added by the host in rank order.
#include "prelude.cuh"

constexpr uint32_t kAnalysisOwn = kAnalysisTile / 16;  // coefficients and tokens of a thread

// A CTA takes 64 coefficients by 64 tokens, a thread 4 by 4. Grid = tasks.
KV_KERNEL(kv_analyse, AnalyseParams, kProductThreads) {
  KV_SHARED(shared);
  const AnalyseTask task = at<const AnalyseTask>(p.tasks)[blockIdx.x];
  const ElementRange* ranges = at<const ElementRange>(p.ranges) + task.ranges;
  const float* matrix = at<const float>(p.matrices) + task.matrix;
  const float* steps = at<const float>(p.steps) + task.steps;
  float* left = reinterpret_cast<float*>(shared);       // [depth][coefficient]
  float* right = left + kAnalysisDepth * kAnalysisTile;  // [depth][token]
  const uint32_t row = threadIdx.x >> 4, column = threadIdx.x & 15u;
  float sums[kAnalysisOwn][kAnalysisOwn] = {};
  for (uint32_t r = 0; r < task.range_count; ++r) {
    const ElementRange range = ranges[r];
    for (uint32_t e = 0; e < range.count; e += kAnalysisDepth) {
      for (uint32_t i = threadIdx.x; i < kAnalysisDepth * kAnalysisTile; i += blockDim.x) {
        const uint32_t depth = i / kAnalysisTile, place = i % kAnalysisTile;
        const uint64_t element = range.start + e + depth;
        const bool inside = e + depth < range.count;
        const uint32_t c = task.first + place, t = task.first_token + place;
        left[i] = inside && c < task.rank ? matrix[element * task.rank + c] : 0.0f;
        right[i] = inside && t < task.tokens ? steps[element * task.tokens + t] : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (uint32_t depth = 0; depth < kAnalysisDepth; ++depth) {
        float a[kAnalysisOwn], b[kAnalysisOwn];
#pragma unroll
        for (uint32_t i = 0; i < kAnalysisOwn; ++i) {
          a[i] = left[depth * kAnalysisTile + row + 16 * i];
          b[i] = right[depth * kAnalysisTile + column + 16 * i];
        }
#pragma unroll
        for (uint32_t i = 0; i < kAnalysisOwn; ++i) {
#pragma unroll
          for (uint32_t j = 0; j < kAnalysisOwn; ++j) sums[i][j] = __fmaf_rn(a[i], b[j], sums[i][j]);
        }
      }
      __syncthreads();
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kAnalysisOwn; ++i) {
#pragma unroll
    for (uint32_t j = 0; j < kAnalysisOwn; ++j) {
      const uint32_t c = task.first + row + 16 * i, t = task.first_token + column + 16 * j;
      if (c < task.rank && t < task.tokens)
        at<float>(p.coefficients)[task.coefficients + uint64_t(c) * task.tokens + t] = sums[i][j];
    }
  }
}
