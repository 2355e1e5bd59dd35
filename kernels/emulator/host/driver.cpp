// A driver and an NVRTC that are the emulator: the calls that `kvasir-cuda` makes, as libcuda.so and libnvrtc.so for tests.
// Streams are as late as the rules allow: an operation runs when somebody waits for it, so that a missing order between two
// streams, host memory used again too early or device memory freed too early give wrong numbers every time.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "shim.h"

#include "format.cuh"  // for the records of launches
#if defined(KVASIR_EXTRA_RECORDS)
#include KVASIR_EXTRA_RECORDS  // and KV_EXTRA_KERNELS(X)
#else
#define KV_EXTRA_KERNELS(X)
#endif

extern "C" int32_t kvasir_emulate(uint32_t, uint32_t, uint32_t, uint32_t, const void*);

namespace {

struct Operation {
  std::function<void()> run;
  double milliseconds;
};
struct DriverStream {
  void* context = nullptr;
  std::deque<Operation> pending{};
  uint64_t queued = 0, done = 0;
  bool copies = false, kernels = false;
  // Milliseconds by its own clock, before the first operation and after each: 1 for a kernel, and 1 for each MB that is copied.
  std::vector<double> times{0.0};
};
struct Event {
  bool is_timed = true;
  DriverStream* stream = nullptr;
  uint64_t at = 0;
};
// What an allocation is of.
struct Memory {
  size_t bytes;
  void* context;
};
struct Kernel {
  const char* name;
  size_t record_bytes;
};
#define KERNEL(name, Params) Kernel{#name, sizeof(Params)},
const Kernel kKernels[] = {KV_KERNELS(KERNEL) KV_EXTRA_KERNELS(KERNEL)};
#undef KERNEL

// Whether an allocation may make its stream wait for another stream, whose memory it gets.
struct Pool {
  bool waits = true;
};

// A kernel of a loaded module, with the dynamic shared memory that it may take.
struct Function {
  const Kernel* kernel;
  int shared = 48 * 1024;
};

constexpr int kInvalid = 1, kOutOfMemory = 2, kNoDevice = 101, kNoContext = 201, kNotReady = 600, kNotFound = 500;
constexpr int kDevices = 2;
// Tests of faults: opening GPU kFaults + n has call n from then on refused, once. GPU kFaults - 1 is there when that was done.
constexpr int kFaults = 1000;
constexpr size_t kGuard = 256;
constexpr int kSharedMax = 227 * 1024;  // of a block
std::recursive_mutex lock;
std::map<uint64_t, Memory> memory;  // by address
uint8_t contexts[kDevices];         // of which only the addresses are used
thread_local void* current = nullptr;

#define GUARD std::lock_guard<std::recursive_mutex> guard(lock)

int calls_until_fault = -1;

bool is_refused() { return calls_until_fault >= 0 && calls_until_fault-- == 0; }

#define MAY_FAIL \
  GUARD;         \
  if (is_refused()) return kOutOfMemory
bool is_entered() { return current >= contexts && current < contexts + kDevices; }

// Calls that take effect in the current context, which callers may leave to be another.
#define IN_CONTEXT \
  MAY_FAIL;        \
  if (!is_entered()) return kNoContext
// Launches, fills and copies, whose stream has to be of the GPU whose context is current.
#define ON_STREAM \
  IN_CONTEXT;     \
  if (stream == nullptr || stream->context != current) return kInvalid

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "fake driver: %s\n", what);
  std::abort();
}

void advance(DriverStream* stream, uint64_t to) {
  while (stream->done < to) {
    const Operation next = std::move(stream->pending.front());
    stream->pending.pop_front();
    ++stream->done;
    const double begun = stream->times.back();
    stream->times.push_back(begun);
    next.run();  // a wait moves the clock
    stream->times.back() += next.milliseconds;
  }
}

int put(DriverStream* stream, std::function<void()> run, double milliseconds = 0) {
  if (stream == nullptr) return kInvalid;
  stream->pending.push_back(Operation{std::move(run), milliseconds});
  ++stream->queued;
  return 0;
}

int put_copy(DriverStream* stream, void* to, const void* from, size_t bytes) {
  return put(stream, [=] { std::memcpy(to, from, bytes); }, double(bytes) / 1e6);
}

int elapsed(float* out, const Event* from, const Event* to) {
  for (const Event* event : {from, to}) {
    if (event->stream == nullptr || !event->is_timed) return kInvalid;
    if (event->stream->done < event->at) return kNotReady;
  }
  return *out = float(to->stream->times[to->at] - from->stream->times[from->at]), 0;
}

// Garbage between two guards.
uint64_t allocate(size_t bytes) {
  auto* block = static_cast<uint8_t*>(std::aligned_alloc(256, (bytes + 2 * kGuard + 255) / 256 * 256));
  std::memset(block, 0xc7, bytes + 2 * kGuard);
  std::memset(block + kGuard, 0xcd, bytes);
  const auto address = reinterpret_cast<uint64_t>(block) + kGuard;
  memory[address] = Memory{bytes, current};
  return address;
}

void release(uint64_t address) {
  const auto found = memory.find(address);
  if (found == memory.end()) fail("memory is freed that is not there");
  const size_t bytes = found->second.bytes;
  auto* block = reinterpret_cast<uint8_t*>(address) - kGuard;
  for (size_t i = 0; i < kGuard; ++i)
    if (block[i] != 0xc7 || block[kGuard + bytes + i] != 0xc7) fail("something wrote outside of its memory");
  std::memset(block + kGuard, 0xdd, bytes);
  std::free(block);
  memory.erase(found);
}

// Whether that is memory of the GPU whose context is current.
bool inside(uint64_t address, size_t bytes) {
  auto found = memory.upper_bound(address);
  if (found == memory.begin()) return false;
  --found;
  return address + bytes <= found->first + found->second.bytes && found->second.context == current;
}

// Frees are never refused.
void expect_context(uint64_t address) {
  const auto found = memory.find(address);
  if (!is_entered() || (found != memory.end() && found->second.context != current))
    fail("memory is freed outside its context");
}

}  // namespace

extern "C" {

int cuInit(uint32_t) { return 0; }
// No real driver's: what is compiled here must not be taken for a GPU's.
int cuDriverGetVersion(int* version) { return *version = 1, 0; }
int cuDeviceGet(int* device, int ordinal) {
  GUARD;
  if (ordinal >= kFaults) calls_until_fault = ordinal - kFaults;
  const bool is_known = ordinal >= 0 && ordinal < kDevices;
  const bool is_there = is_known || (ordinal == kFaults - 1 && calls_until_fault < 0);
  return *device = is_known ? ordinal : 0, is_there ? 0 : kNoDevice;
}
int cuDeviceGetCount(int* count) { return *count = kDevices, 0; }
int cuDeviceGetName(char* name, int length, int) { return std::snprintf(name, size_t(length), "Kvasir emulator"), 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  // Capability 9.0, 2 multiprocessors, shared memory of a block, memory pools.
  *value = attribute == 75 ? 9 : attribute == 16 ? 2 : attribute == 97 ? kSharedMax : attribute == 115 ? 1 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** out, int device) { return *out = contexts + device, 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxGetCurrent(void** out) { return *out = current, 0; }
int cuCtxSetCurrent(void* to) { return current = to, 0; }
int cuCtxSynchronize() { return 0; }
int cuGetErrorName(int, const char** name) { return *name = "fake", 0; }
int cuGetErrorString(int, const char** text) { return *text = "an error of the fake driver", 0; }

int cuStreamCreate(DriverStream** out, uint32_t) { return *out = new DriverStream{current}, 0; }
int cuStreamDestroy_v2(DriverStream* stream) {
  GUARD;
  advance(stream, stream->queued);
  return 0;  // events may still name it
}
int cuStreamSynchronize(DriverStream* stream) {
  GUARD;
  advance(stream, stream->queued);
  return 0;
}
int cuEventCreate(Event** out, uint32_t flags) {
  MAY_FAIL;
  return *out = new Event{(flags & 2) == 0}, 0;
}
int cuEventDestroy_v2(Event* event) { return delete event, 0; }
int cuEventRecord(Event* event, DriverStream* stream) {
  MAY_FAIL;
  *event = Event{event->is_timed, stream, stream->queued};
  return 0;
}
int cuEventSynchronize(Event* event) {
  MAY_FAIL;
  if (event->stream != nullptr) advance(event->stream, event->at);
  return 0;
}
// Nothing gets done by asking, as on a GPU that is busy elsewhere; but somebody who asks again and again is answered.
int cuEventQuery(Event* event) {
  GUARD;
  if (event->stream == nullptr || event->stream->done >= event->at) return 0;
  advance(event->stream, event->stream->done + 1);
  return kNotReady;
}
int cuEventElapsedTime(float* out, const Event* from, const Event* to) {
  GUARD;
  return elapsed(out, from, to);
}
int cuEventElapsedTime_v2(float* out, const Event* from, const Event* to) { return cuEventElapsedTime(out, from, to); }
int cuStreamWaitEvent(DriverStream* stream, Event* event, uint32_t) {
  MAY_FAIL;
  if (stream->copies && !stream->kernels && event->stream != nullptr && event->stream->kernels)
    fail("copies wait for kernels: nothing overlaps");
  const Event at = *event;
  return put(stream, [stream, at] {
    if (at.stream == nullptr) return;
    advance(at.stream, at.at);
    stream->times.back() = std::max(stream->times.back(), at.stream->times[at.at]);
  });
}

int cuMemPoolCreate(Pool** out, const void*) { return *out = new Pool, 0; }
int cuMemPoolSetAttribute(Pool* pool, int attribute, const void* value) {
  if (attribute != 3) return kInvalid;  // the only one that is set
  return pool->waits = *static_cast<const int*>(value) != 0, 0;
}
int cuMemPoolDestroy(Pool* pool) { return delete pool, 0; }
int cuMemAllocFromPoolAsync(uint64_t* out, size_t bytes, const Pool* pool, DriverStream*) {
  IN_CONTEXT;
  if (pool->waits) fail("copies may wait for kernels: their memory is of a pool that lets them");
  return *out = allocate(bytes), 0;
}
int cuMemAllocAsync(uint64_t* out, size_t bytes, DriverStream* stream) {
  const Pool shared{};  // with everything else in the process
  return cuMemAllocFromPoolAsync(out, bytes, &shared, stream);
}
int cuMemFreeAsync(uint64_t address, DriverStream* stream) {
  GUARD;
  expect_context(address);
  return put(stream, [address] { release(address); });
}
int cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  IN_CONTEXT;
  return *out = allocate(bytes), 0;
}
int cuMemFree_v2(uint64_t address) {
  GUARD;
  expect_context(address);
  return release(address), 0;
}
int cuMemHostAlloc(void** out, size_t bytes, uint32_t) {
  IN_CONTEXT;
  return *out = std::malloc(bytes), 0;
}
int cuMemFreeHost(void* block) {
  if (!is_entered()) fail("memory is freed outside its context");
  return std::free(block), 0;
}
int cuMemsetD8Async(uint64_t address, uint8_t value, size_t bytes, DriverStream* stream) {
  ON_STREAM;
  if (!inside(address, bytes)) return kInvalid;
  return put(stream, [=] { std::memset(reinterpret_cast<void*>(address), value, bytes); });
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, DriverStream* stream) {
  ON_STREAM;
  if (!inside(to, bytes)) return kInvalid;
  stream->copies = true;
  return put_copy(stream, reinterpret_cast<void*>(to), from, bytes);
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, DriverStream* stream) {
  ON_STREAM;
  if (!inside(from, bytes)) return kInvalid;
  return put_copy(stream, to, reinterpret_cast<const void*>(from), bytes);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, DriverStream* stream) {
  GUARD;
  if (!is_entered()) return kNoContext;
  if (!inside(to, bytes) || !inside(from, bytes)) return kInvalid;
  return put_copy(stream, reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
}

int cuModuleLoadData(void** out, const void* image) {
  if (!is_entered()) return kNoContext;
  return *out = current, std::memcmp(image, "\x7f" "ELF", 4) == 0 ? 0 : 200;
}
int cuModuleGetFunction(Function** out, void*, const char* name) {
  for (const Kernel& kernel : kKernels)
    if (std::strcmp(kernel.name, name) == 0) return *out = new Function{&kernel}, 0;  // modules are never unloaded
  return kNotFound;
}
// The only attribute that is set: dynamic shared memory.
int cuFuncSetAttribute(Function* function, int, int value) {
  IN_CONTEXT;
  if (value > kSharedMax) return kInvalid;
  if (value < function->shared) fail("shared memory of a kernel is lowered: another thread may be about to launch it");
  return function->shared = value, 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* out, const Function*, int, size_t) { return *out = 1, 0; }
int cuLaunchKernel(const Function* function, uint32_t grid, uint32_t, uint32_t, uint32_t threads, uint32_t, uint32_t,
                   uint32_t shared, DriverStream* stream, void** params, void**) {
  ON_STREAM;
  if (shared > uint32_t(function->shared) || grid == 0) return kInvalid;
  stream->kernels = true;
  const Kernel* kernel = function->kernel;
  const auto* bytes = static_cast<const uint8_t*>(params[0]);
  // u64, as records hold some.
  std::vector<uint64_t> record((kernel->record_bytes + 7) / 8);
  std::memcpy(record.data(), bytes, kernel->record_bytes);
  const auto number = uint32_t(kernel - kKernels);
  return put(stream, [=] {
    if (kvasir_emulate(number, grid, threads, shared, record.data()) != 0) fail("a launch that no GPU would run");
  }, 1);
}

int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
int nvrtcCreateProgram(void** out, const char*, const char*, int, const char* const*, const char* const*) {
  return *out = contexts, 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) { return 0; }
int nvrtcGetCUBINSize(void*, size_t* size) { return *size = 8, 0; }
int nvrtcGetCUBIN(void*, char* out) { return std::memcpy(out, "\x7f" "ELFfake", 8), 0; }
int nvrtcGetProgramLogSize(void*, size_t* size) { return *size = 1, 0; }
int nvrtcGetProgramLog(void*, char* out) { return *out = 0, 0; }
int nvrtcDestroyProgram(void**) { return 0; }
const char* nvrtcGetErrorString(int) { return "fake"; }

}  // extern "C"
