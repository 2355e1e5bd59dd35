// From integers to finest steps (FORMAT.md "Levels"): exact on every path.
#pragma once

#include "prelude.cuh"

// Where a value of a level lies, in finest steps; wraps on hostile input.
KV_INLINE int32_t reconstruct(int32_t q, const Step& step) {
  const uint32_t scaled = uint32_t(q) * uint32_t(step.ratio);
  const uint32_t shift = uint32_t(step.towards_zero);
  return int32_t(q > 0 ? scaled - shift : q < 0 ? scaled + shift : 0u);
}

// What an anchor predicts for its group: its value rounded to finest steps, floor((anchor + ratio / 2) / ratio).
KV_INLINE int32_t anchor_prediction(int32_t anchor, int32_t ratio) {
  const int32_t half = ratio / 2;
  const int32_t sum = anchor > 0x7fffffff - half ? 0x7fffffff : anchor + half;
  return sum / ratio - (sum % ratio < 0 ? 1 : 0);
}

// Finest steps to the element's value.
KV_INLINE float denormalise(float steps, const Element& element) { return add(mul(steps, element.gain), element.mean); }
