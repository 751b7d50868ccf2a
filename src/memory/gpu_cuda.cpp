#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>

#include "core/error.h"
#include "memory/cuda_check.h"
#include "memory/gpu.h"
#include "memory/nvml.h"
#include "memory/progress_marker_cuda.h"

namespace ballast {
namespace {

constexpr int kOldestSm = 80;

int opened = 0;  // the device that open_gpu() chose
// Of its first call: what the context took, and what was free then.
struct Opened {
  Bytes context, free;
};
std::optional<Opened> at_open;
std::mutex opening;  // programs may open it in several threads

cudaStream_t native(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event(void* e) { return static_cast<cudaEvent_t>(e); }

constexpr std::size_t kPage = 4096;

std::string version(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

}  // namespace

void check_cuda(int status, const char* doing) {
  if (status == cudaSuccess) return;
  const auto e = static_cast<cudaError_t>(status);
  fail(ErrorCode::device,
       fmt::format("the GPU failed while {}: {} ({})", doing, cudaGetErrorString(e),
                   cudaGetErrorName(e)),
       {{"ballast doctor", "checks the driver and the card"}});
}

void check_launch(const char* kernel) {
  const cudaError_t e = cudaGetLastError();
  if (e != cudaSuccess) check_cuda(e, kernel);
}

GpuInfo open_gpu(int index) {
  GpuInfo info;
  check_cuda(cudaRuntimeGetVersion(&info.runtime), "asking for the CUDA version");
  check_cuda(cudaDriverGetVersion(&info.driver), "asking for the driver's version");
  const std::vector<Advice> on_cpu = {{"--device cpu", "runs on the CPU"}};
  if (info.driver == 0) fail(ErrorCode::device, "no NVIDIA driver is installed", on_cpu);
  // Minor versions are compatible, older major ones are not.
  if (info.driver / 1000 < info.runtime / 1000) {
    fail(ErrorCode::device,
         fmt::format("the NVIDIA driver is made for CUDA {}, this build needs CUDA {}",
                     version(info.driver), version(info.runtime / 1000 * 1000)),
         {{"a newer NVIDIA driver", fmt::format("for CUDA {}", version(info.runtime))}});
  }
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0)) {
    fail(ErrorCode::device, "no NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES may hide it)", on_cpu);
  }
  check_cuda(found, "counting GPUs");
  if (index < 0 || index >= count) {
    fail(ErrorCode::usage, "there is no GPU {}: {} visible", index, count);
  }
  cudaDeviceProp p{};
  check_cuda(cudaGetDeviceProperties(&p, index), "asking for the GPU's properties");
  info.name = p.name;
  info.sm = 10 * p.major + p.minor;
  info.multiprocessors = p.multiProcessorCount;
  if (info.sm < kOldestSm) {
    fail(ErrorCode::device,
         fmt::format("{} has compute capability {}.{}, at least 8.0 (A100, RTX 30) is needed",
                     info.name, p.major, p.minor),
         on_cpu);
  }
  const std::lock_guard lock(opening);
  // Only the driver can be asked before there is a context, and only then does it tell its size.
  std::array<char, 32> bus{};
  cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index);
  const auto before = at_open ? std::nullopt : nvml_free_memory(bus.data());
  check_cuda(cudaSetDevice(index), "opening the GPU");
  opened = index;
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free GPU memory");
  info.free = {free};
  info.memory = {total};
  if (!at_open) {
    const auto after = before ? nvml_free_memory(bus.data()) : std::nullopt;
    at_open = {.context = after ? *before - std::min(*before, *after) : Bytes{}, .free = info.free};
  }
  info.context = at_open->context;
  return info;
}

bool built_with_cuda() { return true; }

bool gpu_is_usable() {
  int count = 0, driver = 0, runtime = 0, major = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess ||
      cudaRuntimeGetVersion(&runtime) != cudaSuccess || driver / 1000 < runtime / 1000) {
    return false;
  }
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         10 * major >= kOldestSm;
}

GpuMemory gpu_memory() {
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free GPU memory");
  return {.used = {total - free}, .free = {free}};
}

Bytes gpu_memory_of_process() {
  check(at_open.has_value(), "gpu_memory_of_process() before open_gpu()");
  const Bytes free = gpu_memory().free;
  return at_open->context + (at_open->free - std::min(at_open->free, free));
}

void use_gpu() { check_cuda(cudaSetDevice(opened), "opening the GPU in a thread"); }

GpuMark::GpuMark(Kind kind) {
  cudaEvent_t e = nullptr;
  check_cuda(
      cudaEventCreateWithFlags(&e, kind == Kind::time ? cudaEventDefault : cudaEventDisableTiming),
      "making an event");
  event_ = e;
}
GpuMark::~GpuMark() {
  if (event_) cudaEventDestroy(event(event_));
}
GpuMark::GpuMark(GpuMark&& o) noexcept : event_(std::exchange(o.event_, nullptr)) {}
GpuMark& GpuMark::operator=(GpuMark&& o) noexcept {
  std::swap(event_, o.event_);
  return *this;
}
void GpuMark::wait() const { check_cuda(cudaEventSynchronize(event(event_)), "waiting for work"); }
bool GpuMark::passed() const {
  const cudaError_t now = cudaEventQuery(event(event_));
  if (now == cudaErrorNotReady) {
    cudaGetLastError();  // it counts as the thread's last error
    return false;
  }
  check_cuda(now, "asking for work");
  return true;
}

double seconds_between(const GpuMark& begin, const GpuMark& end) {
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, event(begin.native()), event(end.native())),
             "reading the GPU's clock");
  return ms * 1e-3;
}

CudaGraph::~CudaGraph() {
  if (graph_) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
}
CudaGraph::CudaGraph(CudaGraph&& o) noexcept : graph_(std::exchange(o.graph_, nullptr)) {}
CudaGraph& CudaGraph::operator=(CudaGraph&& o) noexcept {
  std::swap(graph_, o.graph_);
  return *this;
}

GpuQueue::GpuQueue() {
  cudaStream_t s = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "making a stream");
  stream_ = s;
  progress_marker_ = static_cast<std::uint32_t*>(std::aligned_alloc(kPage, kPage));
  if (progress_marker_ == nullptr) {
    fail(ErrorCode::refused, "no {} bytes of RAM where the GPU notes how far it is", kPage);
  }
  pinned_marker_ = PinnedRegion(reinterpret_cast<std::byte*>(progress_marker_), {kPage});
  clear_progress_marker();
}
GpuQueue::~GpuQueue() {
  cudaStreamSynchronize(native(stream_));
  pinned_marker_ = {};
  std::free(progress_marker_);
  locals_.clear();
  cudaStreamDestroy(native(stream_));
}
void GpuQueue::record(GpuMark& mark) {
  check_cuda(cudaEventRecord(event(mark.native()), native(stream_)), "recording an event");
}
void GpuQueue::wait(const GpuMark& mark) {
  check_cuda(cudaStreamWaitEvent(native(stream_), event(mark.native()), 0), "ordering two queues");
}
void GpuQueue::finish() {
  check_cuda(cudaStreamSynchronize(native(stream_)), "finishing its work");
}
void GpuQueue::begin_capture() {
  // Other threads go on with their queues meanwhile.
  check_cuda(cudaStreamBeginCapture(native(stream_), cudaStreamCaptureModeThreadLocal),
             "beginning to note work");
}
CudaGraph GpuQueue::end_capture() {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  bool made = cudaStreamEndCapture(native(stream_), &graph) == cudaSuccess && graph != nullptr;
  if (made) made = cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess;
  // Its memory on the GPU is taken now, not when it first plays.
  if (made) made = cudaGraphUpload(ready, native(stream_)) == cudaSuccess;
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (made) return CudaGraph(ready);
  if (ready != nullptr) cudaGraphExecDestroy(ready);
  cudaGetLastError();  // forget it: the next launch is no failure
  return {};
}
bool GpuQueue::recording_is_broken() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(native(stream_), &status) != cudaSuccess ||
         status == cudaStreamCaptureStatusInvalidated;
}
void GpuQueue::launch(const CudaGraph& recording) {
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(recording.native()), native(stream_)),
             "repeating noted work");
}

void GpuQueue::reach(std::uint32_t position) {
  // A failure of it is one of the work before it, of which the next call tells.
  write_progress_marker(progress_marker_, position + 1, stream_);
}
void GpuQueue::clear_progress_marker() { *progress_marker_ = 0; }
std::optional<std::uint32_t> GpuQueue::reached() const {
  const std::uint32_t at = *static_cast<volatile std::uint32_t*>(progress_marker_);
  return at == 0 ? std::nullopt : std::optional(at - 1);
}

GpuArena::GpuArena(Bytes size, const std::string& name, Reach reach) : size_(size) {
  if (size.count == 0) return;
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free GPU memory");
  void* base = nullptr;
  const cudaError_t e =
      reach == Reach::device ? cudaMalloc(&base, size.count) : cudaMallocManaged(&base, size.count);
  if (e == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // forget it: the next launch is no failure
    fail(ErrorCode::refused,
         fmt::format("{} needs {} ({} bytes) of GPU memory, {} is free of {}", name, size,
                     size.count, Bytes{free}, Bytes{total}),
         {{fmt::format("--gpu {}MiB", free >> 20), "plans the run within what is free"}});
  }
  check_cuda(e, "reserving the arena");
  base_ = static_cast<std::byte*>(base);
  gpu_fill(base_, 0, size);
}
GpuArena::~GpuArena() {
  if (base_) cudaFree(base_);
}
GpuArena::GpuArena(GpuArena&& o) noexcept
    : base_(std::exchange(o.base_, nullptr)), size_(std::exchange(o.size_, {})) {}
GpuArena& GpuArena::operator=(GpuArena&& o) noexcept {
  std::swap(base_, o.base_);
  std::swap(size_, o.size_);
  return *this;
}

PinnedRegion::PinnedRegion(std::byte* base, Bytes size) {
  if (size.count == 0) return;
  const cudaError_t e =
      cudaHostRegister(base, size.count, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (e == cudaErrorMemoryAllocation) {
    fail(ErrorCode::refused, fmt::format("{} of RAM cannot be kept in place for the GPU", size),
         {{"ulimit -l unlimited", "lifts the limit of locked memory, if there is one"},
          {"ballast doctor", "shows the limits of this machine"}});
  }
  check_cuda(e, "pinning RAM");
  base_ = base;
}
PinnedRegion::~PinnedRegion() {
  if (base_) cudaHostUnregister(base_);
}
PinnedRegion::PinnedRegion(PinnedRegion&& o) noexcept : base_(std::exchange(o.base_, nullptr)) {}
PinnedRegion& PinnedRegion::operator=(PinnedRegion&& o) noexcept {
  std::swap(base_, o.base_);
  return *this;
}

void gpu_copy(void* to, const void* from, Bytes size) {
  check_cuda(cudaMemcpy(to, from, size.count, cudaMemcpyDefault), "copying between steps");
  // From pageable memory it returns when the last piece is on its way, and no queue waits for that.
  check_cuda(cudaStreamSynchronize(nullptr), "copying between steps");
}
void gpu_fill(void* to, int byte, Bytes size) {
  check_cuda(cudaMemset(to, byte, size.count), "clearing memory");
  check_cuda(cudaDeviceSynchronize(), "clearing memory");
}

}  // namespace ballast
