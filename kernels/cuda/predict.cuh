// Prediction from the text (FORMAT.md "Predictors"): integers, the same for decoder and encoder.
#pragma once

#include "prelude.cuh"

// Predictions of 8 coefficients at one token, in finest steps; `factors` are the token's.
KV_INLINE void predict_from_text(const int8_t* factors, const int8_t* matrix, const uint8_t* shifts, uint32_t count,
                                 uint32_t rank, uint32_t first, int32_t (&out)[8]) {
  int32_t sums[8] = {};
  for (uint32_t k = 0; k < count; ++k) {
    const int32_t factor = factors[k];
    for (uint32_t i = 0; i < 8 && first + i < rank; ++i) sums[i] += factor * matrix[k * rank + first + i];
  }
  for (uint32_t i = 0; i < 8 && first + i < rank; ++i) {
    const uint32_t shift = shifts[first + i];
    out[i] = (sums[i] + (shift == 0 ? 0 : 1 << (shift - 1))) >> shift;
  }
}
