// The parts of the CUDA runtime that Ballast calls, on the host: device memory is host memory, and
// work is done when it is given out.

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/to_size.h"
#include "emulated_recording.h"

namespace {

using Work = std::vector<std::function<void()>>;
thread_local Work* recording = nullptr;  // the calling thread's, which has one stream that records

thread_local cudaError_t last_error = cudaSuccess;

using Clock = std::chrono::steady_clock;

struct Event {
  Clock::time_point at;
};

// BALLAST_EMULATED_EVENTS=N: they are passed N milliseconds after they were recorded.
Clock::time_point passed_at(cudaEvent_t e) {
  const char* const ms = std::getenv("BALLAST_EMULATED_EVENTS");
  return reinterpret_cast<Event*>(e)->at +
         std::chrono::milliseconds(ms != nullptr ? std::atol(ms) : 0);
}

constexpr std::size_t kMemory = std::size_t{8} << 30;

// What the GPU's copies may write to: its own memory, and the host's as far as it is pinned.
class Memory {
 public:
  void add(void* p, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_at_[static_cast<char*>(p)] = bytes;
  }
  bool remove(void* p) {
    const std::lock_guard lock(mutex_);
    return bytes_at_.erase(static_cast<char*>(p)) == 1;
  }
  bool has(const void* p, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto next = bytes_at_.upper_bound(static_cast<char*>(const_cast<void*>(p)));
    if (next == bytes_at_.begin()) return false;
    const auto& [base, size] = *--next;
    const auto first = ballast::to_size(static_cast<const char*>(p) - base);
    return first <= size && bytes <= size - first;
  }

 private:
  std::mutex mutex_;
  std::map<char*, std::size_t> bytes_at_;
};
Memory reached;

cudaError_t allocate(void** p, std::size_t bytes) {
  if (bytes > kMemory) return cudaErrorMemoryAllocation;
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
  if (*p == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*p, 0xff, bytes);  // what was there before is nobody's business
  reached.add(*p, bytes);
  return cudaSuccess;
}

// BALLAST_EMULATED_FAILURE=N: the N-th launch that is asked about from then on failed.
bool a_failure_was_asked_for() {
  static std::atomic<long> left{-1};
  const char* const number = std::getenv("BALLAST_EMULATED_FAILURE");
  if (number == nullptr) {
    left = -1;
    return false;
  }
  if (left == -1) left = std::atol(number);
  return left.fetch_sub(1) == 1;
}

}  // namespace

bool emulated::noted(const std::function<void()>& work) {
  if (recording == nullptr) return false;
  recording->push_back(work);
  return true;
}

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* i) { return *i = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int i) { return i == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() {
  return a_failure_was_asked_for() ? cudaErrorIllegalAddress
                                   : std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulated GPU"; }
const char* cudaGetErrorName(cudaError_t) { return "emulated"; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "emulated GPU");
  p->major = 9;
  p->multiProcessorCount = 2;
  p->totalGlobalMem = kMemory;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = 2;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t cudaDeviceGetPCIBusId(char*, int, int) { return cudaErrorInvalidValue; }  // no slot
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** p, std::size_t bytes) { return allocate(p, bytes); }
cudaError_t cudaMallocManaged(void** p, std::size_t bytes, unsigned) { return allocate(p, bytes); }
cudaError_t cudaFree(void* p) {
  if (p != nullptr && !reached.remove(p)) return cudaErrorInvalidValue;
  return std::free(p), cudaSuccess;
}
// BALLAST_EMULATED_PINNING=N: more than a page takes N milliseconds.
cudaError_t cudaHostRegister(void* p, std::size_t bytes, unsigned) {
  const char* const ms = std::getenv("BALLAST_EMULATED_PINNING");
  if (ms != nullptr && bytes > 4096) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::atol(ms)));
  }
  return reached.add(p, bytes), cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  return reached.remove(p) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t n, cudaMemcpyKind) {
  return std::memmove(to, from, n), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind,
                            cudaStream_t) {
  if (!reached.has(to, n)) return cudaErrorInvalidValue;
  if (emulated::noted([=] { std::memmove(to, from, n); })) return cudaSuccess;
  return std::memmove(to, from, n), cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (emulated::noted([=] {
        cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, stream);
      })) {
    return cudaSuccess;
  }
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
  if (height > 0 && !reached.has(to, (height - 1) * to_pitch + width)) return cudaErrorInvalidValue;
  for (std::size_t r = 0; r < height; ++r) {
    std::memcpy(static_cast<char*>(to) + r * to_pitch,
                static_cast<const char*>(from) + r * from_pitch, width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int byte, std::size_t n) {
  return std::memset(to, byte, n), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t n, cudaStream_t) {
  if (emulated::noted([=] { std::memset(to, byte, n); })) return cudaSuccess;
  return std::memset(to, byte, n), cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  *s = reinterpret_cast<cudaStream_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  delete reinterpret_cast<char*>(s);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return recording ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (recording != nullptr) return cudaErrorIllegalState;
  recording = new Work;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = recording ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  if (recording == nullptr) return cudaErrorIllegalState;
  *graph = reinterpret_cast<cudaGraph_t>(std::exchange(recording, nullptr));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  *ready = reinterpret_cast<cudaGraphExec_t>(new Work(*reinterpret_cast<Work*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  for (const auto& work : *reinterpret_cast<Work*>(graph)) work();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Work*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<Work*>(graph);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete reinterpret_cast<Event*>(e);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) {
  reinterpret_cast<Event*>(e)->at = Clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  std::this_thread::sleep_until(passed_at(e));
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  if (passed_at(e) <= Clock::now()) return cudaSuccess;
  return last_error = cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(reinterpret_cast<Event*>(end)->at -
                                                 reinterpret_cast<Event*>(begin)->at)
            .count();
  return cudaSuccess;
}

}  // extern "C"
