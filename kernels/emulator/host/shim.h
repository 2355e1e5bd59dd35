// Enough of CUDA to run the kernels on a CPU: one fiber per thread of a block, switched in lockstep at every warp or
// block barrier, blocks one after another. Deterministic. What it cannot show: races inside a warp, coalescing, timing.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__

struct uint2 {
  uint32_t x, y;
};
struct float2 {
  float x, y;
};

namespace emulated {

struct Index {
  uint32_t x;
};

Index thread_index();
Index block_index();
Index block_size();
Index grid_size();
uint8_t* shared_memory();

// Waits until all 32 threads of the warp are here with the same mask, then shows what each brought (64 bytes at most).
const uint8_t* warp_exchange(const void* mine, uint32_t bytes);
constexpr uint32_t kExchangeBytes = 64;
void block_barrier();

template <class T>
inline T value_of(const uint8_t* all, uint32_t lane) {
  T value;
  std::memcpy(&value, all + lane * kExchangeBytes, sizeof(T));
  return value;
}

inline float f16_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(float(mantissa), -24) : std::ldexp(float(mantissa + 1024), exponent - 25));
}

}  // namespace emulated

#define threadIdx (emulated::thread_index())
#define blockIdx (emulated::block_index())
#define blockDim (emulated::block_size())
#define gridDim (emulated::grid_size())

inline void __syncthreads() { emulated::block_barrier(); }
inline void __syncwarp(uint32_t = 0xffffffffu) { emulated::warp_exchange(nullptr, 0); }

inline uint32_t __ballot_sync(uint32_t, bool predicate) {
  const uint8_t mine = predicate;
  const uint8_t* all = emulated::warp_exchange(&mine, 1);
  uint32_t mask = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) mask |= uint32_t(all[lane * emulated::kExchangeBytes]) << lane;
  return mask;
}
inline int __any_sync(uint32_t mask, bool predicate) { return __ballot_sync(mask, predicate) != 0; }

template <class T>
inline T __shfl_sync(uint32_t, T value, uint32_t lane) {
  return emulated::value_of<T>(emulated::warp_exchange(&value, sizeof(T)), lane & 31u);
}
template <class T>
inline T __shfl_xor_sync(uint32_t mask, T value, uint32_t bits) {
  const uint32_t lane = threadIdx.x & 31u;
  return __shfl_sync(mask, value, lane ^ bits);
}

inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(uint32_t(v)); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }
inline float __int_as_float(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline float __uint_as_float(uint32_t bits) { return __int_as_float(int32_t(bits)); }
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline int __float2int_rn(float value) { return int(std::nearbyintf(value)); }
inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Threads run one at a time, so a plain update is atomic.
template <class T>
inline T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <class T>
inline T atomicMax(T* address, T value) {
  const T old = *address;
  if (value > old) *address = value;
  return old;
}
template <class T>
inline T atomicOr(T* address, T value) {
  const T old = *address;
  *address = old | value;
  return old;
}
