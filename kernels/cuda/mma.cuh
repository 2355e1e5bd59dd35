// One tensor-core product behind one function with two bodies: PTX, and scalar for the emulator.
#pragma once

#include "prelude.cuh"

// d[16][8] += a[16][16] * b[16][8], f16 operands, f32 sums, the warp's fragments as in the PTX manual (m16n8k16,
// row.col): with g = lane / 4 and t = lane % 4, a holds (row g | g + 8, columns 2t.. | 2t + 8..), b (rows 2t.. | 2t + 8..,
// column g), d (row g | g + 8, columns 2t, 2t + 1).
KV_INLINE void mma_tile(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(KVASIR_EMULATED)
  struct Fragments {
    uint32_t a[4], b[2];
  } mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const uint8_t* all = emulated::warp_exchange(&mine, sizeof(mine));
  const uint32_t g = lane_id() >> 2, t = lane_id() & 3u;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t column = 2 * t + (i & 1u), low = i < 2 ? 0u : 1u;
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t quad = (k & 7u) >> 1, upper = k >> 3, half = k & 1u;
      const auto row = emulated::value_of<Fragments>(all, g * 4 + quad);
      const auto col = emulated::value_of<Fragments>(all, column * 4 + quad);
      const uint16_t x = uint16_t(row.a[low + 2 * upper] >> (16 * half));
      const uint16_t y = uint16_t(col.b[upper] >> (16 * half));
      d[i] += emulated::f16_value(x) * emulated::f16_value(y);
    }
  }
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Copies 16 bytes from global to shared memory without passing through registers.
KV_INLINE void copy_async(void* shared, const void* global) {
#if defined(KVASIR_EMULATED)
  memcpy(shared, global, 16);
#else
  const uint32_t address = uint32_t(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#endif
}

KV_INLINE void copies_commit() {
#if !defined(KVASIR_EMULATED)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `PENDING` of the newest groups are under way.
template <int PENDING>
KV_INLINE void copies_wait() {
#if !defined(KVASIR_EMULATED)
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
