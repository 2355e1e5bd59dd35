// Basis profiles: integers to operands, the product on tensor cores, and rows to pages in its epilogue.
#include "mma.cuh"
#include "pages.cuh"
#include "predict.cuh"
#include "steps.cuh"

// Operands are f16, exact to 2,048. A coefficient is kept as high * 2,048 + low, both exact; few blocks of coefficients
// (the leading ones, at fine levels) have a high part at all.
constexpr int32_t kHalfExact = 2048;

KV_INLINE uint16_t small_to_f16(int32_t value) { return to_f16(float(value)); }

// Scratch values to operands [token][coefficient], 8 coefficients a lane and store. A warp takes 32 tokens of a scope
// and span by 32 coefficients; whether any has a high part goes to a flag for each block of 32 coefficients.
KV_KERNEL(kv_prepare, PrepareParams, kTileThreads) {
  for (uint32_t item = next_item(p.counter); item < p.task_count; item = next_item(p.counter)) {
    const PrepareTask task = at<const PrepareTask>(p.tasks)[item];
    const int32_t* values = at<const int32_t>(p.values) + task.values;
    const Step* steps = at<const Step>(p.steps) + task.steps;
    uint16_t* low_rows = at<uint16_t>(p.operands) + task.operands;
    uint16_t* high_rows = low_rows + uint64_t(task.rows) * task.rank_padded;
    const uint32_t token = task.first_token + lane_id();
    const bool valid = token < task.tokens;
    for (uint32_t block = 0; block < task.rank_padded; block += 32) {
      bool wide = false;
      for (uint32_t c = block; c < block + 32; c += 8) {
        int32_t predicted[8] = {};
        if (valid && task.factors > 0) {
          const int8_t* factors = at<const int8_t>(p.factors) + task.factor_rows + token * task.factors;
          const int8_t* matrix = at<const int8_t>(p.matrices) + task.matrix;
          const uint8_t* shifts = at<const uint8_t>(p.matrices) + task.shifts;
          predict_from_text(factors, matrix, shifts, task.factors, task.rank, c, predicted);
        }
        for (uint32_t i = 0; i < 8; ++i) {
          int32_t value = 0;
          if (valid && c + i < task.rank) {
            const int32_t q = values[uint64_t(c + i) * task.tokens + token];
            value = int32_t(uint32_t(reconstruct(q, steps[c + i])) + uint32_t(predicted[i]));
          }
          // Only damaged values are beyond this.
          const int32_t most = kHalfExact * kHalfExact - 1;
          value = value > most ? most : value < -most ? -most : value;
          const int32_t high = value >= -kHalfExact && value <= kHalfExact ? 0 : (value + (value < 0 ? -1024 : 1024)) / kHalfExact;
          wide |= high != 0;
          const uint64_t place = uint64_t(task.first_token + lane_id()) * task.rank_padded + c + i;
          low_rows[place] = small_to_f16(value - high * kHalfExact);
          high_rows[place] = small_to_f16(high);
        }
      }
      if (__any_sync(kAllLanes, wide) && lane_id() == 0) atomicMax(at<uint32_t>(p.wide) + task.wide + block / 32, 1u);
    }
  }
}

constexpr uint32_t kRowHalves = kBlockDepth + 8;  // 80 bytes: fragments of 8 rows fall into different banks
constexpr uint32_t kStageHalves = (kBlockTokens + kBlockElements) * kRowHalves;

struct Product {
  const SynthesiseTask& task;
  const uint16_t* operand;  // [token][coefficient], low or high parts
  const uint16_t* basis;    // [element][coefficient]
  uint16_t* stages;         // two, in shared memory

  // Starts copying the block of coefficients `k` of both operands.
  KV_INLINE void fetch(uint32_t stage, uint32_t k) const {
    uint16_t* to = stages + stage * kStageHalves;
    for (uint32_t i = threadIdx.x; i < (kBlockTokens + kBlockElements) * (kBlockDepth / 8); i += blockDim.x) {
      const uint32_t row = i / (kBlockDepth / 8), part = i % (kBlockDepth / 8) * 8;
      const bool is_token = row < kBlockTokens;
      // Rows behind the last are copies of it: they are never stored.
      const uint32_t element = min(row - kBlockTokens, task.count - 1);
      const uint16_t* from = is_token ? operand + uint64_t(task.first_token + row) * task.rank_padded
                                      : basis + uint64_t(task.first + element) * task.rank_padded;
      copy_async(to + row * kRowHalves + part, from + k + part);
    }
    copies_commit();
  }

  // A warp's 32 tokens by 64 elements.
  KV_INLINE void multiply(uint32_t stage, float (&sums)[2][8][4]) const {
    const uint32_t g = lane_id() >> 2, t = lane_id() & 3u;
    const uint16_t* a_rows = stages + stage * kStageHalves + (warp_id() >> 1) * 32 * kRowHalves;
    const uint16_t* b_rows = stages + stage * kStageHalves + (kBlockTokens + (warp_id() & 1u) * 64) * kRowHalves;
    const auto word = [](const uint16_t* rows, uint32_t row, uint32_t column) {
      return *reinterpret_cast<const uint32_t*>(rows + row * kRowHalves + column);
    };
#pragma unroll
    for (uint32_t k = 0; k < kBlockDepth; k += 16) {
      uint32_t a[2][4];
#pragma unroll
      for (uint32_t m = 0; m < 2; ++m) {
        a[m][0] = word(a_rows, m * 16 + g, k + 2 * t);
        a[m][1] = word(a_rows, m * 16 + g + 8, k + 2 * t);
        a[m][2] = word(a_rows, m * 16 + g, k + 2 * t + 8);
        a[m][3] = word(a_rows, m * 16 + g + 8, k + 2 * t + 8);
      }
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t b[2] = {word(b_rows, n * 8 + g, k + 2 * t), word(b_rows, n * 8 + g, k + 2 * t + 8)};
        mma_tile(sums[0][n], a[0], b);
        mma_tile(sums[1][n], a[1], b);
      }
    }
  }
};

// The blocks of coefficients that have a high part, or all of them; double-buffered.
KV_INLINE void accumulate(const Product& product, const uint32_t* only, float (&sums)[2][8][4]) {
  const uint32_t blocks = product.task.rank_padded / kBlockDepth;
  const auto next = [&](uint32_t block) {
    while (only != nullptr && block < blocks && only[block] == 0) ++block;
    return block;
  };
  uint32_t block = next(0), stage = 0;
  if (block < blocks) product.fetch(0, block * kBlockDepth);
  while (block < blocks) {
    const uint32_t following = next(block + 1);
    if (following < blocks) {
      product.fetch(stage ^ 1u, following * kBlockDepth);
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    __syncthreads();
    product.multiply(stage, sums);
    __syncthreads();
    block = following;
    stage ^= 1u;
  }
}

// A CTA takes 128 tokens by up to 128 elements of a scope: [token][coefficient] x [coefficient][element], then gain, mean,
// RoPE and pages. Grid = tasks.
KV_KERNEL(kv_synthesise, SynthesiseParams, kProductThreads) {
  KV_SHARED(shared);
  const SynthesiseTask task = at<const SynthesiseTask>(p.tasks)[blockIdx.x];
  const Placement place = at<const Placement>(p.pages.placements)[task.placement];
  const uint16_t* operand = at<const uint16_t>(p.operands) + task.operands;
  Product product{task, operand, at<const uint16_t>(p.basis) + task.basis, reinterpret_cast<uint16_t*>(shared)};
  float sums[2][8][4] = {};
  Product high = product;
  high.operand = operand + uint64_t(task.rows) * task.rank_padded;
  accumulate(high, at<const uint32_t>(p.wide) + task.wide, sums);
#pragma unroll
  for (uint32_t i = 0; i < 64; ++i) sums[i / 32][i / 4 % 8][i % 4] *= float(kHalfExact);
  accumulate(product, nullptr, sums);

  // Tiles of 32 tokens, [element][token], in the memory of the operands.
  const Element* elements = at<const Element>(p.pages.elements) + place.elements + task.first;
  float* tiles = reinterpret_cast<float*>(shared);
  const uint32_t g = lane_id() >> 2, t = lane_id() & 3u, group = warp_id() >> 1;
  float* mine = tiles + group * kBlockElements * kTileStride;
#pragma unroll
  for (uint32_t m = 0; m < 2; ++m) {
#pragma unroll
    for (uint32_t n = 0; n < 8; ++n) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t element = (warp_id() & 1u) * 64 + n * 8 + 2 * t + (i & 1u), token = m * 16 + g + (i >> 1) * 8;
        if (element < task.count) mine[element * kTileStride + token] = denormalise(sums[m][n][i], elements[element]);
      }
    }
  }
  __syncthreads();
  // Both warps of a group store half of its tokens each.
  const uint32_t first = task.first_token + group * kLanes, middle = first + kLanes / 2;
  Placement half = place;
  if (warp_id() & 1u) {
    half.slot += max(half.keep_from, middle) - half.keep_from;
    half.keep_from = max(half.keep_from, middle);
  } else {
    half.keep_to = min(half.keep_to, middle);
  }
  store_tile(p.pages, half, Tile{mine, task.first, task.count}, first, task.tokens);
}
