// A rotated element of a head in a tile: which pair it belongs to.
#pragma once

#include "prelude.cuh"

struct RopePlace {
  bool turns;      // false: the element is as it is
  bool second;     // of its pair
  uint32_t other;  // the pair's other element
  uint32_t pair;
};

KV_INLINE RopePlace rope_place(const RopeShape& rope, uint32_t d) {
  const uint32_t r = d - rope.offset;
  if (d < rope.offset || r >= 2 * rope.pairs) return RopePlace{false, false, d, 0};
  const uint32_t pair = rope.interleaved ? r >> 1 : r < rope.pairs ? r : r - rope.pairs;
  const bool second = rope.interleaved ? (r & 1u) != 0 : r >= rope.pairs;
  const uint32_t distance = rope.interleaved ? 1u : rope.pairs;
  return RopePlace{true, second, second ? d - distance : d + distance, pair};
}
