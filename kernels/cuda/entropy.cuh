// The entropy stage (FORMAT.md section 5): 32 interleaved rANS coders, lane = token, step = coefficient.
#pragma once

#include "prelude.cuh"

// The profile's tables in shared memory. A stage table is 16 buckets of 8 bytes: one row of the 32 banks, so a
// lookup by 32 different slots takes two wavefronts, whatever the slots.
struct Bank {
  const uint2* stage;  // [table][bucket] of {a, b}
  const uint2* trit;   // {a0 | b0 << 16, a1 | b1 << 16}
};

// Copies the bank to the front of shared memory; returns the bytes taken (a multiple of 8).
KV_INLINE uint32_t load_bank(uint8_t* shared, uint64_t tables, uint32_t stage_count, uint32_t trit_count, Bank& bank) {
  uint2* words = reinterpret_cast<uint2*>(shared);
  const uint2* source = at<const uint2>(tables);
  const uint32_t stage_words = stage_count * kAlphabet;
  const uint32_t count = stage_words + trit_count;
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) words[i] = source[i];
  __syncthreads();
  bank.stage = words;
  bank.trit = words + stage_words;
  return count * 8;
}

// One lane's coder of one stream; cursor and bounds are the same in all lanes.
struct Coder {
  uint32_t x;
  uint32_t cursor;
  uint32_t count;  // words of the stream
  uint32_t end;    // coefficients of the task from here on are inactive in this stream
  uint32_t bad_states;
  const uint16_t* words;

  KV_INLINE void open(const uint8_t* bytes, const Stream& stream, uint32_t tokens) {
    x = kStateMin;
    cursor = count = end = bad_states = 0;
    words = nullptr;
    if (stream.states == kNone) return;
    count = stream.word_count;
    end = stream.end;
    words = reinterpret_cast<const uint16_t*>(bytes + stream.words);
    const bool stored = lane_id() < tokens;
    if (stored) x = reinterpret_cast<const uint32_t*>(bytes + stream.states)[lane_id()];
    bad_states = __ballot_sync(kAllLanes, x < kStateMin || x >> 31);
  }

  // Lanes below the minimum take one word each, in lane order. A stream that ran dry reads zeros and is found out by
  // its cursor at the end: the loop needs no branch, and nothing outside the stream is ever read.
  KV_INLINE void refill(bool takes_part) {
    const bool needs = takes_part && x < kStateMin;
    const uint32_t mask = __ballot_sync(kAllLanes, needs);
    const uint32_t below = mask & ((1u << lane_id()) - 1u);
    const uint32_t index = cursor + __popc(below);
    if (needs) x = x << 16 | (index < count ? uint32_t(words[index]) : 0u);
    cursor += __popc(mask);
  }

  // 8 uncoded bits.
  KV_INLINE uint32_t bypass(bool takes_part) {
    const uint32_t bits = x & 0xffu;
    if (takes_part) x >>= 8;
    refill(takes_part);
    return bits;
  }

  KV_INLINE int32_t stage(const uint2* table, bool valid) {
    const uint32_t slot = x & (kProbabilityOne - 1);
    const uint32_t r = slot & 255u;
    const uint2 entry = table[slot >> 8];
    const bool donated = r >= entry.x >> kProbabilityBits;
    const uint32_t word = donated ? entry.y : entry.x;
    const uint32_t symbol = donated ? entry.y >> kProbabilityBits & 15u : slot >> 8;
    const uint32_t q = x >> kProbabilityBits;
    if (valid) x = (word & 0xfffu) * q + q + r + (donated ? entry.y >> 20 : 0u);
    refill(valid);
    int32_t value = int32_t(symbol) - 7;
    const bool escaped = valid && symbol == kEscape;
    if (__any_sync(kAllLanes, escaped)) value = escape(escaped, value);
    return value;
  }

  // Rare (at most 0.3 % of the symbols) and warp-uniform.
  KV_INLINE int32_t escape(bool escaped, int32_t value) {
    const uint32_t head = bypass(escaped);
    uint32_t magnitude = head >> 1;
    const bool is_long = escaped && head >= 254u;
    if (__any_sync(kAllLanes, is_long)) {
      const uint32_t low = bypass(is_long);
      const uint32_t high = bypass(is_long);
      if (is_long) magnitude += high << 8 | low;
    }
    if (!escaped) return value;
    return head & 1u ? -int32_t(magnitude) : int32_t(magnitude);
  }

  // Refines `value` by one digit, folded away from zero where the value is not zero.
  KV_INLINE int32_t trit(const uint2* table, bool valid, int32_t value) {
    const uint32_t thresholds = value == 0 ? table->x : table->y;
    const uint32_t a = thresholds & 0xffffu, b = thresholds >> 16;
    const uint32_t slot = x & (kProbabilityOne - 1);
    const bool above_a = slot >= a, above_b = slot >= b;
    const uint32_t start = above_b ? b : above_a ? a : 0u;
    const uint32_t stop = above_b ? kProbabilityOne : above_a ? b : a;
    if (valid) x = (stop - start) * (x >> kProbabilityBits) + slot - start;
    refill(valid);
    const int32_t folded = int32_t(above_a) + int32_t(above_b) - 1;
    return int32_t(uint32_t(value) * 3u + uint32_t(value < 0 ? -folded : folded));
  }

  // What became of the stream, for the status word; the order is that of the scalar decoder's checks.
  KV_INLINE Status status() const {
    const uint32_t off = __ballot_sync(kAllLanes, x != kStateMin);
    Status status{kStatusOk, 0};
    if (bad_states) {
      status = Status{kStatusState, uint32_t(__ffs(int32_t(bad_states)) - 1)};
    } else if (cursor > count) {
      status = Status{kStatusUnderrun, count};
    } else if (off || cursor < count) {
      status = Status{kStatusFinal, (count - cursor) << 8 | uint32_t(__popc(off))};
    }
    return status;
  }
};

// One coefficient at one level, as its coding word says (all lanes the same word).
KV_INLINE int32_t decode_value(Coder& coder, const Bank& bank, uint32_t coding, bool active, bool valid, int32_t value) {
  const uint32_t kind = coding & 3u;
  if (kind == kCodingStage) {
    if (!active) return 0;
    value = coder.stage(bank.stage + (coding >> 8 & 0xffu) * kAlphabet, valid);
    for (uint32_t trits = coding >> 4 & 15u; trits > 0; --trits)
      value = coder.trit(bank.trit + (coding >> 16 & 0xffu), valid, value);
  } else if (kind == kCodingTrit) {
    if (!active) return int32_t(uint32_t(value) * 3u);
    value = coder.trit(bank.trit + (coding >> 16 & 0xffu), valid, value);
  }
  return value;
}

// Decodes all rows of a task at up to LEVELS levels at once: every level has its own states and cursor, so the chains
// of a coefficient's levels overlap with those of the next coefficient. `sink.load(c, token)` gives the value that the
// first level refines, `sink.store(c, token, q)` takes the result, `sink.row_done(first_token, valid)` ends 32 tokens.
template <int LEVELS, class Sink>
KV_INLINE void decode_task(const DecodeParams& p, const Bank& bank, const Task& task, Sink& sink) {
  const uint8_t* bytes = at<const uint8_t>(p.bytes);
  const Stream* streams = at<const Stream>(p.streams) + task.streams;
  const uint32_t* codings = at<const uint32_t>(p.codings) + task.codings;
  Coder coders[LEVELS];
#pragma unroll
  for (int level = 0; level < LEVELS; ++level) coders[level].open(bytes, streams[level], task.tokens);

  for (uint32_t first = 0; first < task.tokens; first += kLanes) {
    const uint32_t token = first + lane_id();
    const bool valid = token < task.tokens;
    for (uint32_t c = 0; c < task.count; ++c) {
      int32_t value = sink.load(c, token, valid);
#pragma unroll
      for (int level = 0; level < LEVELS; ++level) {
        const uint32_t coding = codings[level * task.coding_stride + c];
        value = decode_value(coders[level], bank, coding, c < coders[level].end, valid, value);
      }
      sink.store(c, token, valid, value);
    }
    sink.row_done(first, valid);
  }
#pragma unroll
  for (int level = 0; level < LEVELS; ++level) {
    const Status status = coders[level].status();
    if (lane_id() == 0 && streams[level].states != kNone) at<Status>(p.statuses)[task.streams + level] = status;
  }
}
