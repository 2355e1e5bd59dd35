// From rows in the engine's pages to what is coded: un-rope, mean, scale, quantise. Multiplies and adds in the order of
// FORMAT.md "Transform", so that direct profiles get the CPU encoder's integers, bit for bit.
#include "pages.cuh"
#include "predict.cuh"
#include "steps.cuh"

KV_INLINE bool is_finite(float value) { return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u; }

// To the nearest integer, ties to even. `good` is false for NaN and beyond what may be coded.
KV_INLINE int32_t quantise_value(float value, bool& good) {
  good = fabsf(value) <= float(kQuantisedMax);
  return good ? __float2int_rn(value) : 0;
}

// As `quantise_value`; tokens that are stored exactly are 0, but have to be finite like the others.
KV_INLINE int32_t quantise_token(float value, bool masked, bool& good) {
  bool fits = true;
  const int32_t q = masked ? 0 : quantise_value(value, fits);
  good &= masked ? is_finite(value) : fits;
  return q;
}

KV_INLINE void raise(uint64_t flags, uint32_t flag, bool bad) {
  if (__any_sync(kAllLanes, bad) && lane_id() == 0) atomicOr(at<uint32_t>(flags) + flag, 1u);
}

// Fills a tile with 32 tokens of a head's elements: lanes are elements, so that rows are read whole. Says whether all
// that this lane read is finite.
KV_INLINE bool load_tile(const GatherParams& p, const GatherTask& task, const Placement& place, const Member& member,
                         const Tile& tile, uint32_t first_token) {
  const PagePlane plane = at<const PagePlane>(p.pages.planes)[member.plane];
  const int32_t* blocks = at<const int32_t>(p.pages.blocks) + place.blocks;
  bool finite = true;
  for (uint32_t column = 0; column < kLanes && first_token + column < task.tokens; ++column) {
    const uint64_t row = row_offset(plane, blocks, place.slot + first_token + column, member.head);
    for (uint32_t d = lane_id(); d < task.count; d += kLanes) {
      const float value = load_element(plane, row + element_offset(plane, task.first + d));
      tile.cell(d, column) = value;
      finite &= is_finite(value);
    }
  }
  return finite;
}

// Element `d` of the head at this lane's token, before its rotation.
KV_INLINE float unrotated(const GatherParams& p, const RopeShape& rope, const Tile& tile, uint32_t d, uint32_t angle_row) {
  const float own = tile.cell(d, lane_id());
  const RopePlace place = rope_place(rope, d);
  if (!place.turns) return own;
  const float2 angle = at<const float2>(p.pages.angles)[uint64_t(angle_row) * p.pages.angle_columns + rope.column + place.pair];
  const float across = mul(tile.cell(place.other, lane_id()), angle.x);
  const float along = mul(own, angle.y);
  return mul(place.second ? sub(along, across) : add(along, across), __fdiv_rn(1.0f, rope.factor));
}

KV_INLINE void gather_rows(const GatherParams& p, const GatherTask& task, const Member& member, const Tile& tile,
                           uint32_t first_token) {
  float* rows = at<float>(p.values) + task.values + uint64_t(member.start) * task.tokens;
  for (uint32_t column = 0; column < kLanes && first_token + column < task.tokens; ++column) {
    float* row = rows + uint64_t(first_token + column) * member.dim + task.first;
    for (uint32_t d = lane_id(); d < task.count; d += kLanes) row[d] = tile.cell(d, column);
  }
}

KV_INLINE bool gather_values(const GatherParams& p, const GatherTask& task, const Placement& place, const Member& member,
                             const Tile& tile, uint32_t first_token) {
  RopeShape rope{};
  if (member.rope != kNone) rope = at<const RopeShape>(p.pages.ropes)[member.rope];
  const uint32_t token = first_token + lane_id();
  if (token >= task.tokens) return true;
  bool good = true;
  for (uint32_t c = 0; c < task.count; ++c) {
    const uint32_t element = member.start + task.first + c;
    const Element scale = at<const Element>(p.pages.elements)[place.elements + element];
    const float steps = mul(sub(unrotated(p, rope, tile, c, place.angles + token), scale.mean), scale.gain);
    const uint64_t index = task.values + uint64_t(element) * task.tokens + token;
    if (task.kind == kGatherSteps) {
      at<float>(p.values)[index] = steps;
      continue;
    }
    at<int32_t>(p.values)[index] = quantise_token(steps, token < task.masked, good);
  }
  return good;
}

// A warp takes (scope, span, head or part of one). A head that is rotated is whole.
KV_KERNEL(kv_gather, GatherParams, kTileThreads) {
  KV_SHARED(shared);
  float* mine = reinterpret_cast<float*>(shared) + warp_id() * p.pages.tile_columns * kTileStride;
  for (uint32_t item = next_item(p.counter); item < p.task_count; item = next_item(p.counter)) {
    const GatherTask task = at<const GatherTask>(p.tasks)[item];
    const Placement place = at<const Placement>(p.pages.placements)[task.placement];
    const Member member = at<const Member>(p.pages.members)[place.members + task.member];
    if (member.plane == kNone) continue;  // another rank's
    const Tile tile{mine, task.first, task.count};
    bool good = true;
    for (uint32_t first = 0; first < task.tokens; first += kLanes) {
      good &= load_tile(p, task, place, member, tile, first);
      __syncwarp();
      if (task.kind == kGatherRows) {
        gather_rows(p, task, member, tile, first);
      } else {
        good &= gather_values(p, task, place, member, tile, first);
      }
      __syncwarp();
    }
    if (task.kind != kGatherRows) raise(p.flags, task.flag, !good);
  }
}

// Tokens of one coefficient behind an anchor each: the anchor is quantised first, the others against what it predicts.
KV_INLINE bool quantise_groups(const QuantiseParams& p, const QuantiseTask& task, uint32_t c) {
  const float* row = at<const float>(p.coefficients) + task.coefficients + uint64_t(c) * task.tokens;
  const uint32_t groups = (task.tokens + task.group - 1) / task.group, others = task.tokens - groups;
  int32_t* anchors = at<int32_t>(p.values) + task.anchors + uint64_t(c) * groups;
  int32_t* main = at<int32_t>(p.values) + task.values + uint64_t(c) * others;
  bool good = true;
  for (uint32_t group = lane_id(); group < groups; group += kLanes) {
    const uint32_t first = group * task.group;
    bool fits;
    const int32_t anchor = quantise_value(mul(row[first], float(task.anchor_ratio)), fits);
    good &= fits;
    anchors[group] = anchor;
    const float predicted = float(anchor_prediction(anchor, task.anchor_ratio));
    for (uint32_t token = first + 1; token < min(first + task.group, task.tokens); ++token) {
      main[token - group - 1] = quantise_token(sub(row[token], predicted), token < task.masked, good);
    }
  }
  return good;
}

KV_INLINE bool quantise_tokens(const QuantiseParams& p, const QuantiseTask& task) {
  bool good = true;
  for (uint32_t token = lane_id(); token < task.tokens; token += kLanes) {
    int32_t predicted[8] = {};
    if (task.factors > 0) {
      const int8_t* factors = at<const int8_t>(p.factors) + task.factor_rows + token * task.factors;
      const int8_t* matrix = at<const int8_t>(p.matrices) + task.matrix;
      const uint8_t* shifts = at<const uint8_t>(p.matrices) + task.shifts;
      predict_from_text(factors, matrix, shifts, task.factors, task.rank, task.first, predicted);
    }
    for (uint32_t i = 0; i < 8 && task.first + i < task.rank; ++i) {
      const uint64_t index = uint64_t(task.first + i) * task.tokens + token;
      const float value = at<const float>(p.coefficients)[task.coefficients + index];
      at<int32_t>(p.values)[task.values + index] =
          quantise_token(sub(value, float(predicted[i])), token < task.masked, good);
    }
  }
  return good;
}

// A warp takes 8 coefficients of a (scope, span).
KV_KERNEL(kv_quantise, QuantiseParams, kTileThreads) {
  for (uint32_t item = next_item(p.counter); item < p.task_count; item = next_item(p.counter)) {
    const QuantiseTask task = at<const QuantiseTask>(p.tasks)[item];
    bool good = true;
    if (task.group == 0) {
      good = quantise_tokens(p, task);
    } else {
      for (uint32_t c = task.first; c < min(task.first + 8, task.rank); ++c) good &= quantise_groups(p, task, c);
    }
    raise(p.flags, task.flag, !good);
  }
}
