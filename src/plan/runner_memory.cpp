// The memory of a Runner: how it is opened, and its buffers between runs.

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "plan/phase.h"
#include "plan/runner.h"

namespace ballast {

RunMemory Runner::open_memory(Device device, Bytes device_bytes, Bytes host_bytes,
                              const RunnerOptions& options) {
  // One by one, the host looks at memory between instructions.
  const auto reach = options.debug.order == Order::concurrent ? GpuArena::Reach::device
                                                              : GpuArena::Reach::host_too;
  return RunMemory(device, device_bytes, host_bytes, reach);
}

// Copies to the GPU work from memory that is not pinned yet, slowly; kernels cannot reach it, on
// whatever queue they are, and what comes back would be waited for. So weights are read beside the
// pinning where they are taken as they are, and steps are not taken.
bool Runner::needs_pinned(int program) const {
  const auto& all = set_.programs[to_size(program)].instructions;
  const auto of_host = [&](Buffer b) { return set_.spec(b).tier == Tier::host; };
  const bool reads_disk =
      std::ranges::any_of(all, [](const Instruction& i) { return i.lane == Lane::disk; });
  return !reads_disk || std::ranges::any_of(all, [&](const Instruction& i) {
    if (!is_queue(i.lane) || (i.lane == Lane::upload && i.copies_bytes)) return false;
    return std::ranges::any_of(i.reads, of_host) || std::ranges::any_of(i.writes, of_host);
  });
}

void Runner::await_pinned(int program) {
  if (memory_.pinned() || !needs_pinned(program)) return;
  const Stopwatch watch;
  memory_.await_pinned();
  memory_seconds_ += watch.seconds();
}

void Runner::open_scratch() {
  const std::string& folder = options_.scratch_folder;
  scratch_ =
      ScratchFile::create(folder.empty() ? std::filesystem::temp_directory_path().string() : folder,
                          plan_.peak_of(Tier::disk));
  bases_.scratch = &scratch_;
}

void Runner::write(Buffer b, std::span<const std::byte> from) {
  check(set_.spec(b).bytes == from.size(), "{} bytes for {} {}", from.size(), set_.name(b),
        set_.spec(b).shape);
  write_part(b, 0, from);
}

void Runner::read(Buffer b, std::span<std::byte> to) {
  check(set_.spec(b).bytes == to.size(), "{} bytes of {} {}", to.size(), set_.name(b),
        set_.spec(b).shape);
  read_part(b, 0, to);
}

void Runner::write_part(Buffer b, std::uint64_t first, std::span<const std::byte> from) {
  const std::uint64_t at = check_part(b, first, from.size());
  if (set_.spec(b).tier == Tier::disk) return scratch_.write(at, from);
  const TensorView v = view(b);
  if (v.device == Device::cuda) {
    gpu_copy(v.data + first, from.data(), {from.size()});
  } else {
    std::ranges::copy(from, v.data + first);
  }
}

void Runner::read_part(Buffer b, std::uint64_t first, std::span<std::byte> to) {
  const std::uint64_t at = check_part(b, first, to.size());
  if (set_.spec(b).tier == Tier::disk) return scratch_.read(at, to);
  const TensorView v = view(b);
  if (v.device == Device::cuda) {
    gpu_copy(to.data(), v.data + first, {to.size()});
  } else {
    std::copy_n(v.data + first, to.size(), to.data());
  }
}

// Where byte `first` of the buffer is in its tier.
std::uint64_t Runner::check_part(Buffer b, std::uint64_t first, std::size_t bytes) const {
  const BufferSpec& s = set_.spec(b);
  const bool contiguous = TensorView(nullptr, s.dtype, s.shape, s.strides).contiguous();
  check(outlives_program(s) && contiguous && first <= s.bytes && bytes <= s.bytes - first,
        "{} bytes from {} on of {} {}", bytes, first, set_.name(b), s.shape);
  return plan_.offset[s.root.id] + s.offset + first;
}

bool Runner::host_can_touch(Buffer b) const {
  const Tier tier = set_.spec(b).tier;
  return tier == Tier::host || (tier == Tier::device && set_.backend.device == Device::cpu);
}

TensorView Runner::view(Buffer b) {
  const BufferSpec& s = set_.spec(b);
  check(outlives_program(s), "{} is a temporary: it has no memory between runs", set_.name(b));
  check(s.tier != Tier::disk, "{} is on disk: it has no address", set_.name(b));
  return TensorView(bases_.base[to_size(s.tier)] + plan_.offset[s.root.id] + s.offset, s.dtype,
                    s.shape, s.strides, s.tier == Tier::device ? set_.backend.device : Device::cpu);
}

}  // namespace ballast
