// Replays traces of decodes (written by `cargo run -p kvasir-cuda --example export_traces`) on a GPU: compares every
// buffer the trace names with what the CPU decoder gave, then times each kernel. Needs nvcc and a GPU, nothing else.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "decode.cu"
#include "direct.cu"
#include "scatter.cu"
#include "synthesise.cu"

#include "analyse.cu"
#include "encode.cu"
#include "gather.cu"
#include "pack.cu"
#include "peers.cu"

#define CHECK(call)                                                                       \
  do {                                                                                    \
    const cudaError_t error = (call);                                                     \
    if (error != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
      std::exit(2);                                                                       \
    }                                                                                     \
  } while (0)

namespace {

struct Entry {
  const char* name;
  const void* function;
};
#define ENTRY(name, Params) Entry{#name, reinterpret_cast<const void*>(&name)},
const Entry kEntries[] = {KV_KERNELS(ENTRY)};
#undef ENTRY

struct Reader {
  std::vector<char> bytes;
  size_t at = 0;
  template <class T>
  T number() {
    T value;
    if (at + sizeof(T) > bytes.size()) std::fprintf(stderr, "truncated trace\n"), std::exit(2);
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    at += sizeof(T);
    return value;
  }
  std::vector<char> block() {
    const auto length = number<uint64_t>();
    if (length > bytes.size() - at) std::fprintf(stderr, "truncated trace\n"), std::exit(2);
    std::vector<char> out(bytes.begin() + at, bytes.begin() + at + length);
    at += length;
    return out;
  }
};

struct Buffer {
  uint64_t recorded, length;
  std::string label;
  bool uploaded;
  std::vector<char> content;
  char* device;
};
struct Launch {
  uint32_t kernel, threads, shared;
  bool exact_grid;
  uint64_t work;
  std::vector<char> params;
};
struct Expected {
  uint32_t buffer;
  bool exact;
  std::vector<char> bytes;
};
struct Trace {
  std::vector<Buffer> buffers;
  std::vector<Launch> launches;
  std::vector<Expected> expected;
};

Trace read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  Reader r{std::vector<char>(std::istreambuf_iterator<char>(file), {})};
  if (r.number<uint64_t>() != 0x315452545356564bull) std::fprintf(stderr, "%s is no trace\n", path), std::exit(2);
  Trace trace;
  trace.buffers.resize(r.number<uint32_t>());
  for (Buffer& b : trace.buffers) {
    b.recorded = r.number<uint64_t>();
    b.length = r.number<uint64_t>();
    const auto label = r.block();
    b.label.assign(label.begin(), label.end());
    b.uploaded = r.number<uint32_t>() != 0;
    b.content = r.block();
  }
  trace.launches.resize(r.number<uint32_t>());
  for (Launch& l : trace.launches) {
    l.kernel = r.number<uint32_t>();
    l.threads = r.number<uint32_t>();
    l.shared = r.number<uint32_t>();
    l.exact_grid = r.number<uint32_t>() != 0;
    l.work = r.number<uint64_t>();
    l.params = r.block();
  }
  trace.expected.resize(r.number<uint32_t>());
  for (Expected& e : trace.expected) {
    e.buffer = r.number<uint32_t>();
    e.exact = r.number<uint32_t>() != 0;
    e.bytes = r.block();
  }
  return trace;
}

constexpr uint64_t kGuard = 4096;

// An address of the recording as one of this device.
uint64_t relocate(const Trace& trace, uint64_t word) {
  for (const Buffer& b : trace.buffers)
    if (word >= b.recorded && word < b.recorded + b.length + 64) return uint64_t(b.device) + (word - b.recorded);
  return word;
}

// Pages are poisoned, everything else starts as the decoder asks; guards lie around all of it.
void reset(Trace& trace) {
  for (Buffer& b : trace.buffers) {
    CHECK(cudaMemset(b.device - kGuard, 0xc7, kGuard));
    CHECK(cudaMemset(b.device, b.label == "pages" ? 0xa5 : 0, b.length + 64));
    CHECK(cudaMemset(b.device + b.length + 64, 0xc7, kGuard));
    if (!b.uploaded || b.content.empty()) continue;
    std::vector<char> content = b.content;
    if (b.label == "planes") {
      for (size_t at = 0; at + sizeof(PagePlane) <= content.size(); at += sizeof(PagePlane)) {
        uint64_t word;
        std::memcpy(&word, &content[at], 8);
        word = relocate(trace, word);
        std::memcpy(&content[at], &word, 8);
      }
    }
    CHECK(cudaMemcpy(b.device, content.data(), content.size(), cudaMemcpyHostToDevice));
  }
}

uint32_t grid_of(const Launch& launch, int multiprocessors) {
  if (launch.exact_grid) return uint32_t(launch.work);
  int resident = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kEntries[launch.kernel].function, launch.threads,
                                                      launch.shared));
  const uint64_t needed = std::max<uint64_t>(1, (launch.work + launch.threads / 32 - 1) / (launch.threads / 32));
  return uint32_t(std::min<uint64_t>(needed, uint64_t(std::max(resident, 1)) * multiprocessors));
}

// Milliseconds of each launch.
std::vector<float> run(const Trace& trace, int multiprocessors) {
  std::vector<float> times;
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  for (const Launch& launch : trace.launches) {
    const void* function = kEntries[launch.kernel].function;
    if (launch.shared > 48 * 1024)
      CHECK(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, int(launch.shared)));
    std::vector<uint64_t> params((launch.params.size() + 7) / 8);
    std::memcpy(params.data(), launch.params.data(), launch.params.size());
    for (uint64_t& word : params) word = relocate(trace, word);
    void* pointers[] = {params.data()};
    CHECK(cudaEventRecord(start));
    CHECK(cudaLaunchKernel(function, dim3(grid_of(launch, multiprocessors)), dim3(launch.threads), pointers,
                           launch.shared, nullptr));
    CHECK(cudaEventRecord(stop));
    CHECK(cudaEventSynchronize(stop));
    times.push_back(0);
    CHECK(cudaEventElapsedTime(&times.back(), start, stop));
  }
  return times;
}

bool same(const std::vector<char>& expected, const std::vector<char>& found, bool exact) {
  if (exact) return std::memcmp(expected.data(), found.data(), expected.size()) == 0;
  const auto* a = reinterpret_cast<const float*>(expected.data());
  const auto* b = reinterpret_cast<const float*>(found.data());
  float scale = 0;
  for (size_t i = 0; i < expected.size() / 4; ++i) scale = std::max(scale, std::fabs(a[i]));
  for (size_t i = 0; i < expected.size() / 4; ++i)
    if (!(std::fabs(a[i] - b[i]) <= 4e-6f * scale)) return false;
  return true;
}

// Everything the trace expects, and untouched guards.
bool check(const Trace& trace, const char* path) {
  bool good = true;
  for (const Expected& e : trace.expected) {
    std::vector<char> found(e.bytes.size());
    CHECK(cudaMemcpy(found.data(), trace.buffers[e.buffer].device, found.size(), cudaMemcpyDeviceToHost));
    if (!same(e.bytes, found, e.exact)) {
      std::printf("FAIL %s: %s differs\n", path, trace.buffers[e.buffer].label.c_str());
      good = false;
    }
  }
  for (const Buffer& b : trace.buffers) {
    std::vector<char> guard(2 * kGuard);
    CHECK(cudaMemcpy(guard.data(), b.device - kGuard, kGuard, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(guard.data() + kGuard, b.device + b.length + 64, kGuard, cudaMemcpyDeviceToHost));
    if (!std::all_of(guard.begin(), guard.end(), [](char c) { return uint8_t(c) == 0xc7; })) {
      std::printf("FAIL %s: a kernel wrote outside of %s\n", path, b.label.c_str());
      good = false;
    }
  }
  return good;
}

void print_copy_rate() {
  constexpr size_t kBytes = size_t(1) << 30;
  char *from, *to;
  CHECK(cudaMalloc(&from, kBytes));
  CHECK(cudaMalloc(&to, kBytes));
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  float best = 1e30f;
  for (int i = 0; i < 10; ++i) {
    float ms;
    CHECK(cudaEventRecord(start));
    CHECK(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice));
    CHECK(cudaEventRecord(stop));
    CHECK(cudaEventSynchronize(stop));
    CHECK(cudaEventElapsedTime(&ms, start, stop));
    best = std::min(best, ms);
  }
  std::printf("device copy: %.0f GB/s read + write\n", 2.0 * kBytes / best / 1e6);
  CHECK(cudaFree(from));
  CHECK(cudaFree(to));
}

}  // namespace

// replay [--check-only] trace...
int main(int argc, char** argv) {
  bool timed = true, good = true;
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  std::string table;
  int traces = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--check-only") == 0) {
      timed = false;
      continue;
    }
    Trace trace = read(argv[i]);
    ++traces;
    std::vector<char*> allocations;
    uint64_t page_bytes = 0;
    for (Buffer& b : trace.buffers) {
      char* memory;
      CHECK(cudaMalloc(&memory, b.length + 64 + 2 * kGuard));
      allocations.push_back(memory);
      b.device = memory + kGuard;
      if (b.label == "pages") page_bytes += b.length;
    }
    std::map<uint32_t, float> best;
    for (int round = 0; round < (timed ? 12 : 1); ++round) {
      reset(trace);
      const auto times = run(trace, properties.multiProcessorCount);
      CHECK(cudaDeviceSynchronize());
      if (round == 0) good &= check(trace, argv[i]);
      std::map<uint32_t, float> sums;
      for (size_t l = 0; l < times.size(); ++l) sums[trace.launches[l].kernel] += times[l];
      for (const auto& [kernel, ms] : sums) best[kernel] = best.count(kernel) ? std::min(best[kernel], ms) : ms;
    }
    float total = 0;
    for (const auto& [kernel, ms] : best) {
      char line[256];
      std::snprintf(line, sizeof(line), "%-40s %-16s %9.4f ms\n", argv[i], kEntries[kernel].name, ms);
      table += line;
      total += ms;
    }
    char line[256];
    std::snprintf(line, sizeof(line), "%-40s %-16s %9.4f ms %9.1f GB/s of page bytes\n", argv[i], "all", total,
                  total > 0 ? page_bytes / total / 1e6 : 0.0);
    table += line;
    for (char* memory : allocations) CHECK(cudaFree(memory));
  }
  std::printf("%d traces, %s\n", traces, good ? "all equal to the CPU decoder" : "SOME DIFFER");
  if (timed) {
    std::printf("%s, %d SMs\n", properties.name, properties.multiProcessorCount);
    print_copy_rate();
    std::fputs(table.c_str(), stdout);
  }
  return good && traces > 0 ? 0 : 1;
}
