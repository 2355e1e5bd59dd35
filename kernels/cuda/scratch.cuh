// Coefficients in scratch to finest steps.
#pragma once

#include "predict.cuh"
#include "steps.cuh"

// What the text predicts of coefficient `c` at `token`.
KV_INLINE int32_t text_steps(const DecodeParams& p, const ScatterTask& task, uint32_t c, uint32_t token) {
  if (task.factors == 0) return 0;
  const int8_t* factors = at<const int8_t>(p.factors) + task.factor_rows + token * task.factors;
  const int8_t* matrix = at<const int8_t>(p.matrices) + task.matrix;
  const uint8_t* shifts = at<const uint8_t>(p.matrices) + task.shifts;
  return predict_one_from_text(factors, matrix, shifts, task.factors, task.rank, c);
}

// Finest steps of coefficient `c` at `token`, with what the text or the anchors of its group predict.
KV_INLINE float scratch_steps(const DecodeParams& p, const ScatterTask& task, uint32_t c, uint32_t token) {
  if (task.values == kNone) return float(text_steps(p, task, c, token));
  const int32_t* values = at<const int32_t>(p.values);
  const Step step = at<const Step>(p.steps)[task.steps + c];
  if (task.group == 0) {
    const int32_t q = reconstruct(values[uint64_t(task.values) + uint64_t(c) * task.tokens + token], step);
    return float(int32_t(uint32_t(q) + uint32_t(text_steps(p, task, c, token))));
  }
  const uint32_t groups = (task.tokens + task.group - 1) / task.group;
  const uint32_t group = token / task.group;
  const int32_t anchor = values[uint64_t(task.anchors) + uint64_t(c) * groups + group];
  if (token % task.group == 0) return __fdiv_rn(float(anchor), float(task.anchor_ratio));
  const uint32_t others = task.tokens - groups, index = token - group - 1;
  const int32_t delta = reconstruct(values[uint64_t(task.values) + uint64_t(c) * others + index], step);
  return float(int32_t(uint32_t(delta) + uint32_t(anchor_prediction(anchor, task.anchor_ratio))));
}
