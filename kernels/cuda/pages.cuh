// From a tile of finest steps to rows in the engine's pages: gain, mean, RoPE, rounding, addresses.
#pragma once

#include "prelude.cuh"
#include "rope.cuh"

// Rounds to nearest even, as every decoder does; denormals stay, NaNs stay NaNs.
KV_INLINE uint16_t to_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40u);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

KV_INLINE uint16_t to_f16(float value) {
#if defined(KVASIR_EMULATED)
  const uint32_t bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
  if (magnitude < 0x33000001u) return uint16_t(sign);
  const int32_t exponent = int32_t(magnitude >> 23) - 112;
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t drop = exponent <= 0 ? uint32_t(14 - exponent) : 13u;
  uint32_t result = mantissa >> drop;
  const uint32_t rest = mantissa & ((1u << drop) - 1u), half = 1u << (drop - 1u);
  result += rest > half || (rest == half && (result & 1u));
  return uint16_t(sign | (exponent <= 0 ? result : result + (uint32_t(exponent - 1) << 10)));
#else
  uint16_t result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
#endif
}

// e4m3 without infinities, saturating at 448. In integers: sm_80 has no such conversion.
KV_INLINE uint8_t to_fp8(float value) {
  const uint32_t bits = __float_as_uint(value), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint8_t(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return uint8_t(sign | 0x7eu);
  if (magnitude < 0x3a800000u) return uint8_t(sign);  // below half the smallest denormal, 2^-9
  const int32_t exponent = int32_t(magnitude >> 23) - 120;
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t drop = exponent <= 0 ? uint32_t(21 - exponent) : 20u;
  uint32_t result = mantissa >> drop;
  const uint32_t rest = mantissa & ((1u << drop) - 1u), half = 1u << (drop - 1u);
  result += rest > half || (rest == half && (result & 1u));
  const uint32_t code = exponent <= 0 ? result : result + (uint32_t(exponent - 1) << 3);
  return uint8_t(sign | min(code, 0x7eu));
}

// Offset of element `d` of a head, in elements.
KV_INLINE uint64_t element_offset(const PagePlane& plane, uint32_t d) {
  return plane.pack == 0 ? d : uint64_t(d / plane.pack) * plane.pack_stride + d % plane.pack;
}

// Stores elements `d` and, where `pair`, `d + 1` of a row. Pairs leave as one store where their addresses allow it.
KV_INLINE void store_elements(const PagePlane& plane, uint64_t row, uint32_t d, bool pair, float first, float second) {
  const uint64_t offset = row + element_offset(plane, d);
  const uint64_t next = pair ? row + element_offset(plane, d + 1) : offset;
  const bool joined = pair && next == offset + 1 && (offset & 1u) == 0;
  if (plane.dtype == kDtypeF32) {
    float* out = at<float>(plane.base);
    out[offset] = first;
    if (pair) out[next] = second;
  } else if (plane.dtype == kDtypeFp8) {
    uint8_t* out = at<uint8_t>(plane.base);
    const uint8_t a = to_fp8(mul(first, plane.scale_inverse));
    const uint8_t b = pair ? to_fp8(mul(second, plane.scale_inverse)) : uint8_t(0);
    if (joined && (plane.base & 1u) == 0) {
      *reinterpret_cast<uint16_t*>(out + offset) = uint16_t(a | uint32_t(b) << 8);
    } else {
      out[offset] = a;
      if (pair) out[next] = b;
    }
  } else {
    uint16_t* out = at<uint16_t>(plane.base);
    const bool brain = plane.dtype == kDtypeBf16;
    const uint16_t a = brain ? to_bf16(first) : to_f16(first);
    const uint16_t b = !pair ? uint16_t(0) : brain ? to_bf16(second) : to_f16(second);
    if (joined && (plane.base & 3u) == 0) {
      *reinterpret_cast<uint32_t*>(out + offset) = a | uint32_t(b) << 16;
    } else {
      out[offset] = a;
      if (pair) out[next] = b;
    }
  }
}

KV_INLINE float from_bf16(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }

// The exponent is moved by a multiplication that is exact for denormals too.
KV_INLINE float from_f16(uint16_t half) {
  const uint32_t bits = half, sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
  if ((bits & 0x7c00u) == 0x7c00u) return __uint_as_float(sign | 0x7f800000u | rest);
  return __uint_as_float(sign | __float_as_uint(mul(__uint_as_float(rest), __uint_as_float(0x77800000u))));
}

// e4m3: bias 7, no infinities.
KV_INLINE float from_fp8(uint8_t code) {
  const uint32_t sign = uint32_t(code & 0x80u) << 24, rest = uint32_t(code & 0x7fu) << 20;
  if ((code & 0x7fu) == 0x7fu) return __uint_as_float(sign | 0x7fc00000u);
  return __uint_as_float(sign | __float_as_uint(mul(__uint_as_float(rest), __uint_as_float(0x7b800000u))));
}

// A value of a plane, `offset` in elements.
KV_INLINE float load_element(const PagePlane& plane, uint64_t offset) {
  if (plane.dtype == kDtypeF32) return at<const float>(plane.base)[offset];
  if (plane.dtype == kDtypeFp8) return mul(from_fp8(at<const uint8_t>(plane.base)[offset]), plane.scale);
  const uint16_t bits = at<const uint16_t>(plane.base)[offset];
  return plane.dtype == kDtypeBf16 ? from_bf16(bits) : from_f16(bits);
}

// Where token `token` of a span lies: offset of its row of `head`, in elements. Only for kept tokens.
KV_INLINE uint64_t row_offset(const PagePlane& plane, const int32_t* blocks, uint32_t slot, uint32_t head) {
  const uint64_t block = uint64_t(uint32_t(blocks[slot / plane.block_tokens]));
  return block * plane.block_stride + uint64_t(slot % plane.block_tokens) * plane.token_stride +
         uint64_t(head) * plane.head_stride;
}

// 32 tokens of up to `tile_columns` elements of a scope, normalised values as f32, [element][token].
struct Tile {
  float* values;
  uint32_t first;  // first element of the scope in the tile
  uint32_t count;

  KV_INLINE float& cell(uint32_t element, uint32_t token) const { return values[element * kTileStride + token]; }
};

// An element of a rotated head: its pair's angle, and both elements. Multiplies and adds in the reference's order.
KV_INLINE float rotated(const PageParams& p, const RopeShape& rope, const Tile& tile, uint32_t base, uint32_t d,
                        uint32_t token, uint32_t angle_row) {
  const float own = tile.cell(base + d, token);
  const RopePlace at_pair = rope_place(rope, d);
  if (!at_pair.turns) return own;
  const float2 angle = at<const float2>(p.angles)[uint64_t(angle_row) * p.angle_columns + rope.column + at_pair.pair];
  const float across = mul(tile.cell(base + at_pair.other, token), angle.x);
  const float along = mul(own, angle.y);
  return mul(at_pair.second ? add(along, across) : sub(along, across), rope.factor);
}

// Writes the parts of members that lie in the tile, for the kept ones of 32 tokens from `first_token` of the span.
KV_INLINE void store_tile(const PageParams& p, const Placement& place, const Tile& tile, uint32_t first_token,
                          uint32_t tokens) {
  const Member* members = at<const Member>(p.members) + place.members;
  const int32_t* blocks = at<const int32_t>(p.blocks) + place.blocks;
  const uint32_t from = max(first_token, place.keep_from), to = min(min(first_token + kLanes, tokens), place.keep_to);
  for (uint32_t m = 0; m < place.member_count; ++m) {
    const Member member = members[m];
    const uint32_t start = max(member.start, tile.first);
    const uint32_t stop = min(member.start + member.dim, tile.first + tile.count);
    if (member.plane == kNone || start >= stop) continue;
    const PagePlane plane = at<const PagePlane>(p.planes)[member.plane];
    RopeShape rope{};
    if (member.rope != kNone) rope = at<const RopeShape>(p.ropes)[member.rope];
    for (uint32_t token = from; token < to; ++token) {
      const uint64_t row = row_offset(plane, blocks, place.slot + token - place.keep_from, member.head);
      const uint32_t column = token - first_token;
      const uint32_t angle_row = place.angles + token;
      for (uint32_t element = start + 2 * lane_id(); element < stop; element += 2 * kLanes) {
        const uint32_t d = element - member.start;
        const bool pair = element + 1 < stop;
        const uint32_t base = member.start - tile.first;  // may wrap; `base + d` does not
        const float a = rotated(p, rope, tile, base, d, column, angle_row);
        const float b = pair ? rotated(p, rope, tile, base, d + 1, column, angle_row) : 0.0f;
        store_elements(plane, row, d, pair, a, b);
      }
    }
  }
}
