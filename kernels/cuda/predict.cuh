// Prediction from the text (FORMAT.md "Predictors"): integers, the same for decoder and encoder.
#pragma once

#include "prelude.cuh"

// Rounds a sum of products to finest steps.
KV_INLINE int32_t shifted(int32_t sum, uint32_t shift) { return (sum + (shift == 0 ? 0 : 1 << (shift - 1))) >> shift; }

// Predictions of 8 coefficients at one token, in finest steps; `factors` are the token's.
KV_INLINE void predict_from_text(const int8_t* factors, const int8_t* matrix, const uint8_t* shifts, uint32_t count,
                                 uint32_t rank, uint32_t first, int32_t (&out)[8]) {
  int32_t sums[8] = {};
  for (uint32_t k = 0; k < count; ++k) {
    const int32_t factor = factors[k];
    for (uint32_t i = 0; i < 8 && first + i < rank; ++i) sums[i] += factor * matrix[k * rank + first + i];
  }
  for (uint32_t i = 0; i < 8 && first + i < rank; ++i) out[i] = shifted(sums[i], shifts[first + i]);
}

// The prediction of coefficient `c` alone.
KV_INLINE int32_t predict_one_from_text(const int8_t* factors, const int8_t* matrix, const uint8_t* shifts, uint32_t count,
                                        uint32_t rank, uint32_t c) {
  int32_t sum = 0;
  for (uint32_t k = 0; k < count; ++k) sum += int32_t(factors[k]) * matrix[k * rank + c];
  return shifted(sum, shifts[c]);
}
