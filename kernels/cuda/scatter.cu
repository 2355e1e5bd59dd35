// What is not fused: angles of RoPE, coefficients from scratch to pages, exact tokens.
#include "pages.cuh"
#include "scratch.cuh"

// Sine and cosine of the top 32 bits of a phase in turns, by the normative polynomials.
KV_INLINE float2 sin_cos(uint32_t phase) {
  const uint32_t kSin[5] = {KV_SIN_BITS};
  const uint32_t kCos[5] = {KV_COS_BITS};
  const uint32_t quarter = (phase + (1u << 29)) >> 30;
  const int32_t rest = int32_t(phase - (quarter << 30));
  const float x = mul(float(rest), 1.0f / float(1u << 30));
  const float u = mul(x, x);
  float sine = __uint_as_float(kSin[4]), cosine = __uint_as_float(kCos[4]);
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    sine = add(__uint_as_float(kSin[i]), mul(u, sine));
    cosine = add(__uint_as_float(kCos[i]), mul(u, cosine));
  }
  sine = mul(x, sine);
  const uint32_t turn = quarter & 3u;
  const float a = turn & 1u ? cosine : sine, b = turn & 1u ? sine : cosine;
  return float2{turn >= 2 ? -a : a, turn == 1 || turn == 2 ? -b : b};
}

// Angles of all pairs of all ropes at every token: phase = position x frequency modulo one turn, exact.
KV_KERNEL(kv_angles, AngleParams, kTileThreads) {
  const uint64_t count = uint64_t(p.rows) * p.columns;
  const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
  for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint64_t phase = at<const uint64_t>(p.positions)[i / p.columns] * at<const uint64_t>(p.frequencies)[i % p.columns];
    at<float2>(p.angles)[i] = sin_cos(uint32_t(phase >> 32));
  }
}

// Direct profiles that could not be fused: a warp takes (scope, span, part of a head), `p.tasks` are ScatterTask.
KV_KERNEL(kv_scatter, DecodeParams, kTileThreads) {
  KV_SHARED(shared);
  float* mine = reinterpret_cast<float*>(shared) + warp_id() * p.pages.tile_columns * kTileStride;
  for (uint32_t item = next_item(p.counter); item < p.task_count; item = next_item(p.counter)) {
    const ScatterTask task = at<const ScatterTask>(p.tasks)[item];
    const Placement place = at<const Placement>(p.pages.placements)[task.placement];
    const Member member = at<const Member>(p.pages.members)[place.members + task.member];
    const Element* elements = at<const Element>(p.pages.elements) + place.elements;
    const Tile tile{mine, member.start + task.first, task.count};
    for (uint32_t first = 0; first < task.tokens; first += kLanes) {
      const uint32_t token = first + lane_id();
      for (uint32_t c = 0; c < task.count && token < task.tokens; ++c) {
        const uint32_t element = tile.first + c;
        tile.cell(c, lane_id()) = denormalise(scratch_steps(p, task, element, token), elements[element]);
      }
      __syncwarp();
      store_tile(p.pages, place, tile, first, task.tokens);
      __syncwarp();
    }
  }
}

KV_INLINE float exact_value(const uint8_t* bytes, uint32_t dtype, uint64_t index) {
  if (dtype == kDtypeF32) return reinterpret_cast<const float*>(bytes)[index];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(bytes)[index];
  return dtype == kDtypeBf16 ? from_bf16(bits) : from_f16(bits);
}

// Tokens that are stored as they are: a warp takes (scope, span, head), `p.tasks` are ExactTask. They were rotated
// by the engine that made them.
KV_KERNEL(kv_exact, DecodeParams, kTileThreads) {
  for (uint32_t item = next_item(p.counter); item < p.task_count; item = next_item(p.counter)) {
    const ExactTask task = at<const ExactTask>(p.tasks)[item];
    const Placement place = at<const Placement>(p.pages.placements)[task.placement];
    const Member member = at<const Member>(p.pages.members)[place.members + task.member];
    if (member.plane == kNone) continue;
    const PagePlane plane = at<const PagePlane>(p.pages.planes)[member.plane];
    const int32_t* blocks = at<const int32_t>(p.pages.blocks) + place.blocks;
    const uint8_t* bytes = at<const uint8_t>(p.bytes) + task.values;
    const uint64_t rows = uint64_t(member.start) * task.tokens;
    for (uint32_t token = place.keep_from; token < min(task.tokens, place.keep_to); ++token) {
      const uint64_t row = row_offset(plane, blocks, place.slot + token - place.keep_from, member.head);
      const uint64_t values = rows + uint64_t(token) * member.dim;
      for (uint32_t d = 2 * lane_id(); d < member.dim; d += 2 * kLanes) {
        const bool pair = d + 1 < member.dim;
        const float a = exact_value(bytes, task.dtype, values + d);
        const float b = pair ? exact_value(bytes, task.dtype, values + d + 1) : 0.0f;
        store_elements(plane, row, d, pair, a, b);
      }
    }
  }
}
