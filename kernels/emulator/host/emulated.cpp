// The kernels as they are, compiled for the CPU, behind one C function.
#include "shim.cpp"

#include "decode.cu"
#include "direct.cu"
#include "scatter.cu"
#include "lossless.cu"
#include "synthesise.cu"

#include "gather.cu"
#include "analyse.cu"

#include "encode.cu"
#include "pack.cu"

// Kernels that are not the product's: a file that has them and names them in KV_EXTRA_KERNELS(X).
#if defined(KVASIR_EXTRA_SOURCE)
#include KVASIR_EXTRA_SOURCE
#else
#define KV_EXTRA_KERNELS(X)
#endif

// 0: run. 1: no such kernel or shape.
extern "C" int32_t kvasir_emulate(uint32_t kernel, uint32_t grid, uint32_t threads, uint32_t shared_bytes,
                                  const void* params) {
  using Body = void (*)(const void*);
#define KV_BODY(name, Params) [](const void* record) { name(*static_cast<const Params*>(record)); },
  static const Body bodies[] = {KV_KERNELS(KV_BODY) KV_EXTRA_KERNELS(KV_BODY)};
#undef KV_BODY
  if (kernel >= sizeof(bodies) / sizeof(bodies[0]) || threads == 0 || threads % 32 != 0) return 1;
  emulated::run(bodies[kernel], params, grid, threads, shared_bytes);
  return 0;
}
