// The entropy stage backwards (FORMAT.md section 5): 32 coders, lane = token; words from the end to the front.
#pragma once

#include "prelude.cuh"

// Symbols of all tables, in shared memory.
struct SymbolBank {
  const Symbol* stage;  // [table][16]
  const Symbol* trit;   // [table][4 * context + digit + 1]
  const uint16_t* inverted;
};

KV_INLINE void load_symbols(uint8_t* shared, const EncodeParams& p, SymbolBank& bank) {
  uint32_t* words = reinterpret_cast<uint32_t*>(shared);
  const uint32_t* source = at<const uint32_t>(p.symbols);
  const uint32_t stage = p.stage_tables * kAlphabet, count = stage + p.trit_tables * 8u;
  for (uint32_t i = threadIdx.x; i < count * (sizeof(Symbol) / 4u); i += blockDim.x) words[i] = source[i];
  __syncthreads();
  bank.stage = reinterpret_cast<const Symbol*>(shared);
  bank.trit = bank.stage + stage;
  bank.inverted = at<const uint16_t>(p.inverted);
}

// floor((q + 1) / 3): the value at the next coarser level.
KV_INLINE int32_t coarsen(int32_t q) {
  const int32_t sum = q + 1;
  return sum / 3 - (sum % 3 < 0 ? 1 : 0);
}

// `up` levels coarser.
KV_INLINE int32_t coarser_by(int32_t q, uint32_t up) {
  for (; up > 0; --up) q = coarsen(q);
  return q;
}

struct BackwardCoder {
  uint32_t x;
  uint32_t top;   // words left in front
  bool full;      // a word did not fit
  bool uncodable;  // of this lane: a symbol without a frequency
  uint16_t* words;

  KV_INLINE void open(uint16_t* own, uint32_t capacity) {
    x = kStateMin;
    top = capacity;
    full = uncodable = false;
    words = own;
  }

  // Emits the low word of every lane that coding `frequency` would push to 2^31: in lane order, in front of the others.
  KV_INLINE void spill(bool takes_part, uint32_t frequency) {
    const bool over = takes_part && x >= frequency << (31u - kProbabilityBits);
    const uint32_t mask = __ballot_sync(kAllLanes, over);
    const uint32_t count = __popc(mask);
    full |= count > top;
    if (full) return;  // the same in all lanes
    top -= count;
    if (over) {
      words[top + __popc(mask & ((1u << lane_id()) - 1u))] = uint16_t(x);
      x >>= 16;
    }
  }

  KV_INLINE void bypass(bool takes_part, uint32_t bits) {
    spill(takes_part, kProbabilityOne >> 8);
    if (takes_part) x = x << 8 | bits;
  }

  // x / frequency and the rest, with the symbol's place among the slots still to be found.
  KV_INLINE uint32_t divide(const Symbol& symbol, uint32_t& rest) const {
    const uint32_t quotient = symbol.frequency == 1u ? x : __umulhi(x, symbol.reciprocal) >> (symbol.shift & 31u);
    rest = x - quotient * symbol.frequency;
    return quotient;
  }

  KV_INLINE void trit(const Symbol* table, bool valid, int32_t& value) {
    const int32_t coarse = coarsen(value), digit = value - 3 * coarse;
    const int32_t folded = coarse < 0 ? -digit : digit;
    const Symbol symbol = table[(coarse == 0 ? 0 : 4) + folded + 1];
    uncodable |= valid && symbol.frequency == 0u;
    spill(valid, symbol.frequency);
    uint32_t rest;
    const uint32_t quotient = divide(symbol, rest);
    if (valid) x = quotient << kProbabilityBits | (symbol.start + rest);
    value = coarse;
  }

  KV_INLINE void stage(const Symbol* table, const uint16_t* inverted, bool valid, int32_t value) {
    const bool own = value >= -7 && value <= 7;
    const Symbol symbol = table[own ? uint32_t(value + 7) : kEscape];
    const bool escaped = valid && (!own || (symbol.shift & kSymbolEscape) != 0u);
    if (__any_sync(kAllLanes, escaped)) escape(escaped, value);
    uncodable |= valid && symbol.frequency == 0u;
    spill(valid, symbol.frequency);
    uint32_t rest;
    const uint32_t quotient = divide(symbol, rest);
    if (valid) x = quotient << kProbabilityBits | inverted[(symbol.start + rest) & (kProbabilityOne - 1u)];
  }

  // The decoder reads 8 bits of every escaped lane, then the low and the high bytes of the long ones.
  KV_INLINE void escape(bool escaped, int32_t value) {
    const uint32_t magnitude = uint32_t(value < 0 ? -value : value);
    uncodable |= escaped && magnitude > kEscapeMax;
    const bool is_long = escaped && magnitude >= 127u;
    if (__any_sync(kAllLanes, is_long)) {
      const uint32_t rest = magnitude - 127u;
      bypass(is_long, rest >> 8 & 0xffu);
      bypass(is_long, rest & 0xffu);
    }
    bypass(escaped, min(magnitude, 127u) << 1 | uint32_t(value < 0));
  }
};
