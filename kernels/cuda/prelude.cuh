// What every kernel needs from its compiler: nvcc, NVRTC (which has no <stdint.h>), or g++ under host/shim.h.
#pragma once

#if defined(KVASIR_EMULATED)
#include "shim.h"
#elif defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#include "format.cuh"

#define KV_INLINE __device__ __forceinline__

// Kernels take one record by value; its addresses are integers, so that hosts can build it as bytes.
#if defined(KVASIR_EMULATED)
#define KV_KERNEL(name, Params, threads) void name(const Params p)
#define KV_SHARED(name) uint8_t* name = emulated::shared_memory()
#else
#define KV_KERNEL(name, Params, threads) extern "C" __global__ void __launch_bounds__(threads, 2) name(const Params p)
// One declaration for all kernels of a program: their translation units may be compiled as one.
extern __shared__ __align__(16) uint8_t kv_shared_memory[];
#define KV_SHARED(name) uint8_t* name = kv_shared_memory
#endif

constexpr uint32_t kAllLanes = 0xffffffffu;

template <class T>
KV_INLINE T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

KV_INLINE uint32_t lane_id() { return threadIdx.x & 31u; }
KV_INLINE uint32_t warp_id() { return threadIdx.x >> 5; }

// Rounded once each and never contracted: the reference multiplies and adds in this order (FORMAT.md "Exactness").
KV_INLINE float mul(float a, float b) { return __fmul_rn(a, b); }
KV_INLINE float add(float a, float b) { return __fadd_rn(a, b); }
KV_INLINE float sub(float a, float b) { return __fadd_rn(a, -b); }

// Takes the next item of a queue for the whole warp. Longest items come first, so the last warps end together.
KV_INLINE uint32_t next_item(uint64_t counter) {
  uint32_t item = 0;
  if (lane_id() == 0) item = atomicAdd(at<uint32_t>(counter), 1u);
  return __shfl_sync(kAllLanes, item, 0);
}
