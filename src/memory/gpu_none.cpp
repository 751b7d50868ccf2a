#include "core/error.h"
#include "memory/gpu.h"

namespace ballast {

void fail_without_cuda() {
  fail(ErrorCode::device, "this build of Ballast has no CUDA support",
       {{"--device cpu", "runs on the CPU"}});
}

GpuInfo open_gpu(int) { fail_without_cuda(); }
bool gpu_is_usable() { return false; }
bool built_with_cuda() { return false; }
void use_gpu() {}
GpuMemory gpu_memory() { fail_without_cuda(); }
Bytes gpu_memory_of_process() { fail_without_cuda(); }

GpuMark::GpuMark(Kind) { fail_without_cuda(); }
GpuMark::~GpuMark() = default;
GpuMark::GpuMark(GpuMark&&) noexcept {}
GpuMark& GpuMark::operator=(GpuMark&&) noexcept { return *this; }
void GpuMark::wait() const { fail_without_cuda(); }
bool GpuMark::passed() const { fail_without_cuda(); }
double seconds_between(const GpuMark&, const GpuMark&) { fail_without_cuda(); }

CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&&) noexcept {}
CudaGraph& CudaGraph::operator=(CudaGraph&&) noexcept { return *this; }

GpuQueue::GpuQueue() { fail_without_cuda(); }
GpuQueue::~GpuQueue() = default;
void GpuQueue::record(GpuMark&) { fail_without_cuda(); }
void GpuQueue::wait(const GpuMark&) { fail_without_cuda(); }
void GpuQueue::finish() { fail_without_cuda(); }
void GpuQueue::begin_capture() { fail_without_cuda(); }
CudaGraph GpuQueue::end_capture() { fail_without_cuda(); }
bool GpuQueue::recording_is_broken() const { fail_without_cuda(); }
void GpuQueue::launch(const CudaGraph&) { fail_without_cuda(); }
void GpuQueue::reach(std::uint32_t) {}
void GpuQueue::clear_progress_marker() {}
std::optional<std::uint32_t> GpuQueue::reached() const { return std::nullopt; }

GpuArena::GpuArena(Bytes size, const std::string&, Reach) {
  if (size.count > 0) fail_without_cuda();
}
GpuArena::~GpuArena() = default;
GpuArena::GpuArena(GpuArena&&) noexcept {}
GpuArena& GpuArena::operator=(GpuArena&&) noexcept { return *this; }

PinnedRegion::PinnedRegion(std::byte*, Bytes) { fail_without_cuda(); }
PinnedRegion::~PinnedRegion() = default;
PinnedRegion::PinnedRegion(PinnedRegion&&) noexcept {}
PinnedRegion& PinnedRegion::operator=(PinnedRegion&&) noexcept { return *this; }

void gpu_copy(void*, const void*, Bytes) { fail_without_cuda(); }
void gpu_fill(void*, int, Bytes) { fail_without_cuda(); }

}  // namespace ballast
