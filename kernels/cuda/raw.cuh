// Raw pieces (FORMAT.md section 5.6): fixed-width values where the coder cannot express or would not shrink them.
#pragma once

#include "prelude.cuh"

// `width` bits at bit `bit`, least significant first. The host checked that they lie in the piece.
KV_INLINE uint32_t raw_bits(const uint8_t* bytes, uint64_t bit, uint32_t width) {
  uint32_t code = 0;
  for (uint32_t taken = 0; taken < width;) {
    const uint64_t place = bit + taken;
    const uint32_t shift = uint32_t(place & 7u);
    const uint32_t count = min(8u - shift, width - taken);
    code |= (uint32_t(bytes[place >> 3]) >> shift & ((1u << count) - 1u)) << taken;
    taken += count;
  }
  return code;
}

// A whole raw piece: `stream.states` is the offset of its widths, `stream.words` that of its bits, `stream.end` its
// active coefficients. Widths were checked by the host; a digit code of 3 is a status.
template <class Sink>
KV_INLINE void decode_raw_task(const DecodeParams& p, const Task& task, Sink& sink) {
  const uint8_t* bytes = at<const uint8_t>(p.bytes);
  const Stream stream = at<const Stream>(p.streams)[task.streams];
  const uint8_t* widths = bytes + stream.states;
  const uint8_t* packed = bytes + stream.words;
  const uint32_t* codings = at<const uint32_t>(p.codings) + task.codings;
  uint64_t bit = 0;
  uint32_t active = 0;
  uint32_t bad = kNone;  // byte in which the first impossible digit ends
  for (uint32_t c = 0; c < task.count; ++c) {
    const uint32_t kind = codings[c] & 3u;
    const bool coded = kind != kCodingNone && active < stream.end;
    const uint32_t width = coded ? widths[active] : 0u;
    active += coded;
    for (uint32_t token = lane_id(); token < task.tokens; token += kLanes) {
      const uint32_t code = raw_bits(packed, bit + uint64_t(token) * width, width);
      const int32_t value = int32_t(code >> 1) ^ -int32_t(code & 1u);
      const int32_t before = sink.load(c, token, true);
      if (kind == kCodingStage) {
        sink.store(c, token, true, value);
      } else if (kind == kCodingTrit) {
        if (code > 2u) bad = min(bad, uint32_t((bit + uint64_t(token) * width + width - 1) >> 3));
        sink.store(c, token, true, int32_t(uint32_t(before) * 3u + uint32_t(value)));
      }
    }
    bit += uint64_t(width) * task.tokens;
  }
  for (uint32_t bits = 16; bits > 0; bits >>= 1) bad = min(bad, __shfl_xor_sync(kAllLanes, bad, bits));
  if (lane_id() == 0) {
    at<Status>(p.statuses)[task.streams] = bad == kNone ? Status{kStatusOk, 0} : Status{kStatusDigit, bad};
  }
}
