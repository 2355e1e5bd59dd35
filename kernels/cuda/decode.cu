// Entry points of the entropy stage: streams to coefficients in scratch memory.
#include "entropy.cuh"
#include "raw.cuh"

// Coefficients of a scope and span in scratch, [coefficient][token]: what bases, predictors and unaligned streams need.
struct ScratchSink {
  int32_t* values;
  uint32_t tokens;
  bool refines;

  KV_INLINE int32_t load(uint32_t c, uint32_t token, bool valid) const {
    return refines && valid ? values[c * tokens + token] : 0;
  }
  KV_INLINE void store(uint32_t c, uint32_t token, bool valid, int32_t value) {
    if (valid) values[c * tokens + token] = value;
  }
  KV_INLINE void row_done(uint32_t, bool) {}
};

template <int LEVELS>
KV_INLINE void decode_coefficients(const DecodeParams& p) {
  KV_SHARED(shared);
  Bank bank;
  load_bank(shared, p.tables, p.stage_tables, p.trit_tables, bank);
  for (uint32_t item = next_item(p.counter); item < p.task_count; item = next_item(p.counter)) {
    const Task task = at<const Task>(p.tasks)[item];
    ScratchSink sink{at<int32_t>(p.values) + task.values, task.tokens, (task.flags & kTaskRefines) != 0};
    if (task.flags & kTaskRaw) {
      decode_raw_task(p, task, sink);
    } else {
      decode_task<LEVELS>(p, bank, task, sink);
    }
  }
}

KV_KERNEL(kv_decode_1, DecodeParams, kDecodeThreads) { decode_coefficients<1>(p); }
KV_KERNEL(kv_decode_2, DecodeParams, kDecodeThreads) { decode_coefficients<2>(p); }
KV_KERNEL(kv_decode_3, DecodeParams, kDecodeThreads) { decode_coefficients<3>(p); }
KV_KERNEL(kv_decode_4, DecodeParams, kDecodeThreads) { decode_coefficients<4>(p); }
