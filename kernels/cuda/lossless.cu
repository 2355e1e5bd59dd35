// The exact level (FORMAT.md section 7.7), in three steps: differences and predictions to cells, cells and raw bits to
// patterns, patterns to pages. Only the second is serial: where a value's raw bits begin, the values before it tell.
#include "pages.cuh"
#include "scratch.cuh"

constexpr uint32_t kGapMax = 8;  // longest gap in unary; a longer one is followed by the exponent itself

// A float type of at most 16 bits: sign, exponent, mantissa.
struct FloatFormat {
  uint32_t mantissa_bits;
  uint32_t exponent_bits;

  KV_INLINE uint32_t mantissa_of(uint32_t bits) const { return bits & ((1u << mantissa_bits) - 1u); }
  KV_INLINE uint32_t exponent_of(uint32_t bits) const { return bits & ((1u << exponent_bits) - 1u); }
  KV_INLINE uint32_t sign_bit() const { return 1u << (mantissa_bits + exponent_bits); }
};

KV_INLINE FloatFormat float_format(uint32_t dtype) {
  if (dtype == kDtypeBf16) return FloatFormat{7, 8};
  if (dtype == kDtypeF16) return FloatFormat{10, 5};
  return FloatFormat{3, 4};
}

// A prediction in the cache's type; past e4m3's range its NaN. Of a NaN nothing is predicted, because its pattern would
// depend on the machine.
KV_INLINE uint32_t predicted_pattern(uint32_t dtype, float value) {
  const uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0;
  if (dtype == kDtypeBf16) return to_bf16(value);
  if (dtype == kDtypeF16) return to_f16(value);
  return magnitude > 0x43e80000u ? (bits >> 24 & 0x80u) | 0x7fu : uint32_t(to_fp8(value));  // above 464
}

// NaNs are made quiet, as the reference does.
KV_INLINE float pattern_value(uint32_t dtype, uint32_t pattern) {
  const float value = dtype == kDtypeBf16  ? from_bf16(uint16_t(pattern))
                      : dtype == kDtypeF16 ? from_f16(uint16_t(pattern))
                                           : from_fp8(uint8_t(pattern));
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x7fffffffu) > 0x7f800000u ? __uint_as_float(bits | 0x400000u) : value;
}

// The cell of a pattern, in the order of values; -1 - cell for negative ones.
KV_INLINE int32_t cell_of(const FloatFormat& format, uint32_t floor, uint32_t pattern) {
  const uint32_t exponent = format.exponent_of(pattern >> format.mantissa_bits), mantissa = format.mantissa_of(pattern);
  uint32_t cell = 0;
  if (exponent >= floor) {
    const uint32_t above = exponent - floor;
    cell = above <= format.mantissa_bits
               ? ((1u << format.mantissa_bits) | mantissa) >> (format.mantissa_bits - above)
               : ((1u + above - format.mantissa_bits) << format.mantissa_bits) + mantissa;
  }
  return (pattern & format.sign_bit()) != 0 ? ~int32_t(cell) : int32_t(cell);
}

// Raw bits, least significant first.
struct RawBits {
  const uint8_t* bytes;
  uint64_t count;  // bytes

  // At least 25 bits from `bit` on, zeros behind the last: more than any value has.
  KV_INLINE uint32_t peek(uint64_t bit) const {
    const uint64_t first = bit >> 3;
    uint32_t window = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if (first + i < count) window |= uint32_t(bytes[first + i]) << (8 * i);
    }
    return window >> uint32_t(bit & 7u);
  }
};

KV_INLINE uint32_t cell_magnitude(int32_t cell) { return uint32_t(cell < 0 ? ~cell : cell); }

// Raw bits of a value whose cell is not 0.
KV_INLINE uint32_t low_bits(const FloatFormat& format, uint32_t magnitude) {
  if (magnitude >= (2u << format.mantissa_bits)) return 0;
  return format.mantissa_bits + uint32_t(__clz(int32_t(magnitude))) - 31u;
}

// A value that was told: its pattern, the raw bits that it took, whether the type has such a pattern.
struct ToldPattern {
  uint32_t pattern;
  uint32_t bits;
  bool is_sound;
};

// The pattern of a cell; `window` begins with its raw bits.
KV_INLINE ToldPattern told_pattern(const FloatFormat& format, uint32_t floor, int32_t cell, uint32_t window) {
  const uint32_t magnitude = cell_magnitude(cell);
  uint32_t exponent, mantissa, bits;
  bool is_sound = true;
  if (magnitude == 0) {
    const uint32_t highest = floor - 1u, most = min(highest, kGapMax);
    const uint32_t unary = window & ((1u << most) - 1u);
    const uint32_t gap = unary != 0 ? uint32_t(__ffs(int32_t(unary)) - 1) : most;
    bits = unary != 0 ? gap + 1u : gap;
    exponent = highest - gap;
    if (gap == kGapMax) {
      exponent = format.exponent_of(window >> bits);
      is_sound = exponent <= highest - kGapMax;
      bits += format.exponent_bits;
    }
    mantissa = format.mantissa_of(window >> bits);
    bits += format.mantissa_bits;
  } else if (magnitude < (2u << format.mantissa_bits)) {
    bits = low_bits(format, magnitude);
    const uint32_t above = format.mantissa_bits - bits;
    exponent = floor + above;
    mantissa = ((magnitude - (1u << above)) << bits) | (window & ((1u << bits) - 1u));
  } else {
    bits = 0;
    exponent = floor + (magnitude >> format.mantissa_bits) - 1u + format.mantissa_bits;
    mantissa = format.mantissa_of(magnitude);
  }
  is_sound = is_sound && (exponent >> format.exponent_bits) == 0;
  const uint32_t sign = cell < 0 ? format.sign_bit() : 0u;
  return ToldPattern{sign | (format.exponent_of(exponent) << format.mantissa_bits) | mantissa, bits, is_sound};
}

// Sum over the lanes before this one.
KV_INLINE uint32_t sum_before(uint32_t own) {
  uint32_t sum = own;
#pragma unroll
  for (uint32_t distance = 1; distance < kLanes; distance <<= 1) {
    const uint32_t other = __shfl_sync(kAllLanes, sum, (lane_id() - distance) & 31u);
    if (lane_id() >= distance) sum += other;
  }
  return sum - own;
}

// Adds the cells of what the levels beneath and the text give to the differences of a part of a head; `p.tasks` are
// CellTask. Lane = token, and no lane needs another's.
KV_KERNEL(kv_cells, DecodeParams, kTileThreads) {
  KV_SHARED(shared);
  float* mine = reinterpret_cast<float*>(shared) + warp_id() * p.pages.tile_columns * kTileStride;
  for (uint32_t item = next_item(p.counter); item < p.task_count; item = next_item(p.counter)) {
    const CellTask task = at<const CellTask>(p.tasks)[item];
    const ScatterTask& beneath = task.beneath;
    const Placement place = at<const Placement>(p.pages.placements)[beneath.placement];
    const Member member = at<const Member>(p.pages.members)[place.members + beneath.member];
    const Tile tile{mine, member.start + beneath.first, beneath.count};
    const Element* elements = at<const Element>(p.pages.elements) + place.elements + tile.first;
    const uint8_t* floors = at<const uint8_t>(p.matrices) + task.floors + tile.first;
    int32_t* cells = at<int32_t>(p.values) + task.cells + uint64_t(tile.first) * beneath.tokens;
    const FloatFormat format = float_format(task.dtype);
    RopeShape rope{};
    if (member.rope != kNone) rope = at<const RopeShape>(p.pages.ropes)[member.rope];
    for (uint32_t token = task.known + lane_id(); token < beneath.tokens; token += kLanes) {
      for (uint32_t c = 0; c < tile.count; ++c)
        tile.cell(c, lane_id()) = denormalise(scratch_steps(p, beneath, tile.first + c, token), elements[c]);
      const uint32_t base = member.start - tile.first;  // may wrap; `base + d` does not
      for (uint32_t c = 0; c < tile.count; ++c) {
        const float value = rotated(p.pages, rope, tile, base, beneath.first + c, lane_id(), place.angles + token);
        int32_t& cell = cells[uint64_t(c) * beneath.tokens + token];
        const int32_t predicted = cell_of(format, floors[c], predicted_pattern(task.dtype, value));
        cell = int32_t(uint32_t(cell) + uint32_t(predicted));
      }
    }
  }
}

// Cells to patterns: a warp takes (scope, span), `p.tasks` are PatternTask. The cells of 32 tokens of an element say
// how many raw bits each has; only those of cell 0, which are told in unary, are read one after the other.
KV_KERNEL(kv_patterns, DecodeParams, kTileThreads) {
  for (uint32_t item = next_item(p.counter); item < p.task_count; item = next_item(p.counter)) {
    const PatternTask task = at<const PatternTask>(p.tasks)[item];
    const Stream stream = at<const Stream>(p.streams)[task.stream];
    const RawBits raw{at<const uint8_t>(p.bytes) + stream.words, stream.word_count};
    const uint8_t* floors = at<const uint8_t>(p.matrices) + task.floors;
    const FloatFormat format = float_format(task.dtype);
    const uint64_t end = raw.count * 8;
    uint64_t bit = 0;  // the same in all lanes
    bool is_sound = true;
    for (uint32_t element = 0; element < task.elements && bit <= end; ++element) {
      const uint32_t floor = floors[element];
      int32_t* cells = at<int32_t>(p.values) + task.cells + uint64_t(element) * task.tokens;
      for (uint32_t first = task.known; first < task.tokens; first += kLanes) {
        const uint32_t token = first + lane_id();
        const bool valid = token < task.tokens;
        const int32_t cell = valid ? cells[token] : 0;
        const bool is_unary = valid && cell_magnitude(cell) == 0;
        uint32_t own = valid && !is_unary ? low_bits(format, cell_magnitude(cell)) : 0u;
        uint32_t before = sum_before(own);
        ToldPattern told{0, 0, true};
        for (uint32_t waiting = __ballot_sync(kAllLanes, is_unary); waiting != 0; waiting &= waiting - 1u) {
          const uint32_t turn = uint32_t(__ffs(int32_t(waiting)) - 1);
          if (lane_id() == turn) {
            told = told_pattern(format, floor, cell, raw.peek(bit + before));
            own = told.bits;
          }
          const uint32_t taken = __shfl_sync(kAllLanes, own, turn);
          if (lane_id() > turn) before += taken;
        }
        if (valid && !is_unary) told = told_pattern(format, floor, cell, raw.peek(bit + before));
        if (valid) cells[token] = int32_t(told.pattern);
        is_sound = is_sound && told.is_sound;
        bit += __shfl_sync(kAllLanes, before + own, kLanes - 1u);
      }
    }
    // Fill is less than a byte of zeros.
    const bool is_whole = bit <= end && end - bit < 8 && raw.peek(bit) == 0;
    const bool failed = __any_sync(kAllLanes, !is_sound || !is_whole);
    if (lane_id() == 0) {
      at<Status>(p.statuses)[task.stream] = failed ? Status{kStatusPattern, 0} : Status{kStatusOk, 0};
    }
  }
}

// Patterns to pages, but for tokens that are stored exactly: a warp takes a part of a head, `p.tasks` are CellTask.
KV_KERNEL(kv_restore, DecodeParams, kTileThreads) {
  KV_SHARED(shared);
  float* mine = reinterpret_cast<float*>(shared) + warp_id() * p.pages.tile_columns * kTileStride;
  for (uint32_t item = next_item(p.counter); item < p.task_count; item = next_item(p.counter)) {
    const CellTask task = at<const CellTask>(p.tasks)[item];
    const ScatterTask& beneath = task.beneath;
    const Placement place = at<const Placement>(p.pages.placements)[beneath.placement];
    const Member member = at<const Member>(p.pages.members)[place.members + beneath.member];
    if (member.plane == kNone) continue;
    const PagePlane plane = at<const PagePlane>(p.pages.planes)[member.plane];
    const int32_t* blocks = at<const int32_t>(p.pages.blocks) + place.blocks;
    const Tile tile{mine, member.start + beneath.first, beneath.count};
    const int32_t* patterns = at<const int32_t>(p.values) + task.cells + uint64_t(tile.first) * beneath.tokens;
    const uint32_t stop = min(beneath.tokens, place.keep_to);
    for (uint32_t first = max(task.known, place.keep_from); first < stop; first += kLanes) {
      const uint32_t own = first + lane_id();
      for (uint32_t c = 0; c < tile.count && own < stop; ++c)
        tile.cell(c, lane_id()) = pattern_value(task.dtype, uint32_t(patterns[uint64_t(c) * beneath.tokens + own]));
      __syncwarp();
      for (uint32_t token = first; token < min(first + kLanes, stop); ++token) {
        const uint64_t row = row_offset(plane, blocks, place.slot + token - place.keep_from, member.head);
        const uint32_t column = token - first;
        for (uint32_t c = 2 * lane_id(); c < tile.count; c += 2 * kLanes) {
          const bool pair = c + 1 < tile.count;
          const float second = pair ? tile.cell(c + 1, column) : 0.0f;
          store_elements(plane, row, beneath.first + c, pair, tile.cell(c, column), second);
        }
      }
      __syncwarp();
    }
  }
}
