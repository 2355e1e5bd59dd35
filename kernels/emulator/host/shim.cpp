// Fibers and barriers of the emulator. Included by emulated.cpp.
#include "shim.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulated {
namespace {

constexpr uint32_t kStackBytes = 64 * 1024;

struct Fiber {
#if defined(__x86_64__)
  void* stack_pointer;
#else
  ucontext_t context;
#endif
  uint32_t thread;
  bool done;
};

struct Warp {
  uint32_t arrived = 0;
  uint32_t generation = 0;
  // Two generations: a fast lane may arrive at the next exchange before a slow one has read this one.
  uint8_t values[2][32 * kExchangeBytes];
};

struct Block {
  uint32_t index = 0, threads = 0, grid = 0;
  uint32_t running = 0, arrived = 0, generation = 0;
  uint64_t progress = 0;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<uint8_t> stacks, shared;
  void (*body)(const void*) = nullptr;
  const void* params = nullptr;
  Fiber scheduler{};
  Fiber* current = nullptr;
};

thread_local Block* block;

#if defined(__x86_64__)
// Saves the callee-saved registers on the old stack, takes them from the new one. 13 times faster than swapcontext,
// which makes two system calls.
extern "C" void kvasir_emulated_switch(void** from, void* to);
asm(R"(
.text
.globl kvasir_emulated_switch
.type kvasir_emulated_switch, @function
kvasir_emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kvasir_emulated_switch, .-kvasir_emulated_switch
)");

void switch_fiber(Fiber& from, Fiber& to) { kvasir_emulated_switch(&from.stack_pointer, to.stack_pointer); }
#else
void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
#endif

void fiber_main() {
  block->body(block->params);
  block->current->done = true;
  --block->running;
  ++block->progress;
  switch_fiber(*block->current, block->scheduler);
}

void prepare(Fiber& fiber, uint32_t thread) {
  fiber.thread = thread;
  fiber.done = false;
  uint8_t* stack = block->stacks.data() + size_t(thread) * kStackBytes;
#if defined(__x86_64__)
  uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + kStackBytes) & ~uintptr_t(15);
  auto* frame = reinterpret_cast<uint64_t*>(top) - 8;  // six registers, the return address, an empty caller
  std::memset(frame, 0, 64);
  frame[6] = reinterpret_cast<uint64_t>(&fiber_main);
  fiber.stack_pointer = frame;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
#endif
}

void yield() {
  switch_fiber(*block->current, block->scheduler);
}

void fail(const char* what) {
  std::fprintf(stderr, "emulator: block %u: %s\n", block->index, what);
  std::abort();
}

}  // namespace

Index thread_index() { return {block->current->thread}; }
Index block_index() { return {block->index}; }
Index block_size() { return {block->threads}; }
Index grid_size() { return {block->grid}; }
uint8_t* shared_memory() { return block->shared.data(); }

const uint8_t* warp_exchange(const void* mine, uint32_t bytes) {
  const uint32_t thread = block->current->thread;
  Warp& warp = block->warps[thread / 32];
  const uint32_t generation = warp.generation;
  uint8_t* values = warp.values[generation & 1];
  if (bytes > 0) std::memcpy(values + (thread & 31) * kExchangeBytes, mine, bytes);
  ++block->progress;
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    ++warp.generation;
  }
  while (warp.generation == generation) yield();
  return values;
}

void block_barrier() {
  const uint32_t generation = block->generation;
  ++block->progress;
  if (++block->arrived == block->threads) {
    block->arrived = 0;
    ++block->generation;
  }
  while (block->generation == generation) yield();
}

// Runs a grid. `threads` is a multiple of 32.
void run(void (*body)(const void*), const void* params, uint32_t grid, uint32_t threads, uint32_t shared_bytes) {
  Block state;
  block = &state;
  state.threads = threads;
  state.grid = grid;
  state.body = body;
  state.params = params;
  state.fibers.resize(threads);
  state.warps.resize(threads / 32);
  state.stacks.resize(size_t(threads) * kStackBytes);
  for (uint32_t index = 0; index < grid; ++index) {
    state.index = index;
    state.running = threads;
    // Shared memory starts as garbage on a GPU.
    state.shared.assign(shared_bytes, 0xa5);
    for (uint32_t thread = 0; thread < threads; ++thread) prepare(state.fibers[thread], thread);
    while (state.running > 0) {
      const uint64_t before = state.progress;
      for (Fiber& fiber : state.fibers) {
        if (fiber.done) continue;
        state.current = &fiber;
        switch_fiber(state.scheduler, fiber);
      }
      if (state.progress == before) fail("deadlock: a barrier that some threads never reach");
    }
  }
  block = nullptr;
}

}  // namespace emulated
