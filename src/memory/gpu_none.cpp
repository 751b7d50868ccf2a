#include "core/error.h"
#include "memory/gpu.h"

namespace ballast {
namespace {

[[noreturn]] void no_gpu() {
  on_device(
      Device::cuda, [] {}, [] {});  // says what is missing
  check(false, "gpu_none.cpp is linked into a build with CUDA");
  std::abort();
}

}  // namespace

GpuInfo open_gpu(int) { no_gpu(); }
bool gpu_is_usable() { return false; }
void use_gpu() {}
GpuMemory gpu_memory() { no_gpu(); }
Bytes gpu_memory_of_process() { no_gpu(); }

GpuMark::GpuMark(Kind) { no_gpu(); }
GpuMark::~GpuMark() = default;
GpuMark::GpuMark(GpuMark&&) noexcept {}
GpuMark& GpuMark::operator=(GpuMark&&) noexcept { return *this; }
void GpuMark::wait() const { no_gpu(); }
bool GpuMark::passed() const { no_gpu(); }
double seconds_between(const GpuMark&, const GpuMark&) { no_gpu(); }

GpuRecording::~GpuRecording() = default;
GpuRecording::GpuRecording(GpuRecording&&) noexcept {}
GpuRecording& GpuRecording::operator=(GpuRecording&&) noexcept { return *this; }

GpuQueue::GpuQueue() { no_gpu(); }
GpuQueue::~GpuQueue() = default;
void GpuQueue::record(GpuMark&) { no_gpu(); }
void GpuQueue::wait(const GpuMark&) { no_gpu(); }
void GpuQueue::finish() { no_gpu(); }
void GpuQueue::begin_recording() { no_gpu(); }
GpuRecording GpuQueue::end_recording() { no_gpu(); }
bool GpuQueue::recording_is_broken() const { no_gpu(); }
void GpuQueue::play(const GpuRecording&) { no_gpu(); }
void GpuQueue::reach(std::uint32_t) {}
void GpuQueue::forget_place() {}
std::optional<std::uint32_t> GpuQueue::reached() const { return std::nullopt; }

GpuArena::GpuArena(Bytes size, const std::string&, Reach) {
  if (size.count > 0) no_gpu();
}
GpuArena::~GpuArena() = default;
GpuArena::GpuArena(GpuArena&&) noexcept {}
GpuArena& GpuArena::operator=(GpuArena&&) noexcept { return *this; }

PinnedRegion::PinnedRegion(std::byte*, Bytes) { no_gpu(); }
PinnedRegion::~PinnedRegion() = default;
PinnedRegion::PinnedRegion(PinnedRegion&&) noexcept {}
PinnedRegion& PinnedRegion::operator=(PinnedRegion&&) noexcept { return *this; }

void gpu_copy(void*, const void*, Bytes) { no_gpu(); }
void gpu_fill(void*, int, Bytes) { no_gpu(); }

}  // namespace ballast
