#include "plan/process_lines.h"

#include <algorithm>

#include "core/error.h"
#include "plan/checked_reads.h"
#include "plan/graph_segments.h"

namespace ballast {
namespace {

// Anonymous memory of the driver's context, of cuBLASLt and of cuDNN with its plans: 330 MB for
// inference and 401 MB for training of the 14B transformer on an H200 with 16 processors, whose
// number changes the context's share. A process that trained on 32,760 tokens held 5 MB more than
// was planned with 440, why is not known.
constexpr Bytes kCudaOnHost{448 << 20};
// Where each of the GPU's three lanes notes how far it is (GpuQueue::reach).
constexpr Bytes kQueueMarkers{3 * 4096};

Bytes recorded_bytes(const ProgramSet& set) {
  // Shapes and names; specs, and what planning keeps by buffer id.
  std::uint64_t bytes = set.shapes.bytes() + set.names.bytes() +
                        set.buffers.size() * (sizeof(BufferSpec) + 32 + set.programs.size() * 12);
  for (const Program& p : set.programs) {
    for (const Instruction& i : p.instructions) {
      bytes += sizeof i + i.reads.heap_bytes() + i.writes.heap_bytes();
      // The kernel's captures, waits, heap headers.
      bytes += 192;
      if (i.splits > 1)
        bytes += 72 * std::uint64_t{i.splits};  // what they are, and what they wait for
    }
  }
  return {bytes};
}

// At most: a program that reads a matrix twice has it counted twice.
Bytes checked_read_bytes(const ProgramSet& set) {
  std::uint64_t reads = 0;
  for (const Program& p : set.programs) {
    for (const Instruction& i : p.instructions) {
      if (i.cost.work == Work::disk) reads += i.splits;
    }
  }
  return {reads * CheckedReads::kBytesPerRange};
}

// A launch that a GPU is given by a recording (plan/graph_segments.h): 3.3 to 3.7 KB there (H200,
// programs of 1,200 to 52,000 instructions of hardly more than one launch each), and on the host
// what the driver keeps, 12 to 14 KB in programs of 11,000 to 13,000 of them.
constexpr Bytes kRepeatedOnGpu{4 << 10}, kRepeatedOnHost{14 << 10};

std::uint64_t repeated_launches(const ProgramSet& set) {
  std::uint64_t count = 0;
  for (const Program& p : set.programs) {
    const std::uint64_t own = GraphSegments::launches(p);
    if (own <= GraphSegments::kMax) count += own;
  }
  return std::min<std::uint64_t>(count, GraphSegments::kMax);
}

}  // namespace

void replace_line(std::vector<ProcessLine>& lines, const ProcessLine& by) {
  const auto line = std::ranges::find(lines, by.name, &ProcessLine::name);
  check(line != lines.end(), "there is no line {}", by.name);
  line->bytes = by.bytes;
}

std::vector<ProcessLine> process_lines(const ProgramSet& set, const ProcessFacts& facts) {
  const bool computes = set.backend.device == Device::cpu || computes_on_host(set);
  const int threads = computes ? set.backend.threads : 1;
  std::vector<ProcessLine> lines;
  lines.push_back(
      {"process baseline", kProcessBaseline, "heap of the program and its libraries, file headers"});
  lines.push_back({std::string(kRecordedPrograms), recorded_bytes(set) * 2,
                   "instructions and buffers, two copies during planning"});
  lines.push_back(
      {"checksums of weights", checked_read_bytes(set), "of what is read from model files"});
  if (computes) {
    lines.push_back({"BLAS buffers",
                     facts.blas_bytes_per_thread * static_cast<std::uint64_t>(threads),
                     "packed panels, one set per compute thread"});
  }
  if (set.backend.device == Device::cuda) {
    lines.push_back(
        {"CUDA libraries in RAM", kCudaOnHost + kQueueMarkers, "driver, cuBLASLt, cuDNN"});
    const std::uint64_t repeated = repeated_launches(set);
    const char* const reason = "recorded GPU work, launched with one call";
    const std::string name(kRecordings);
    lines.push_back({name, kRepeatedOnHost * repeated, reason});
    lines.push_back({name, kRepeatedOnGpu * repeated, reason, Tier::device});
  }
  const int lanes = set.groups.empty() ? kLaneCount - 1 : kLaneCount;  // one rank has no network
  const auto stacks = kThreadStack * static_cast<std::uint64_t>(threads + lanes) +
                      kReaderStack * static_cast<std::uint64_t>(facts.disk_readers);
  lines.push_back({"thread stacks", stacks, "compute threads, disk readers, lanes"});
  return lines;
}

// Measured on an H200 from 13 to 56 GB: 8 bytes for every 4 KiB.
Bytes map_of_pinned(Bytes pinned) { return {pinned.count / 512}; }

void add_gpu_lines(std::vector<ProcessLine>& lines, const MachineProfile& profile, Bytes pinned) {
  lines.push_back({.name = "CUDA context and libraries",
                   .bytes = profile.library_bytes,
                   .reason = "context, cuBLASLt and cuDNN handles",
                   .tier = Tier::device});
  lines.push_back({.name = "GPU page tables",
                   .bytes = map_of_pinned(pinned),
                   .reason = "for pinned memory",
                   .tier = Tier::device});
}

Bytes sum_lines(std::span<const ProcessLine> lines, Tier t) {
  Bytes sum;
  for (const ProcessLine& l : lines) {
    if (l.tier == t) sum += l.bytes;
  }
  return sum;
}

}  // namespace ballast
