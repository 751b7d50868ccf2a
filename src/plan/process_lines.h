#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "memory/disk_file.h"
#include "plan/profile.h"
#include "plan/program.h"

namespace ballast {

// Memory that no arena holds, so that the plan has no surprises.
struct ProcessLine {
  std::string name;
  Bytes bytes;
  std::string reason;
  Tier tier = Tier::host;
};

inline constexpr std::string_view kRecordedPrograms = "recorded programs";
// GPU memory of CUDA graphs (plan/graph_segments.h). Programs that are too long have none, so a
// longer program may need less.
inline constexpr std::string_view kRecordings = "CUDA graphs";

// The line of the same name gets its bytes.
void replace_line(std::vector<ProcessLine>& lines, const ProcessLine& by);

// What a thread's stack has touched after a step; kernels keep rows of a few KiB there.
inline constexpr Bytes kThreadStack{128 << 10}, kReaderStack{32 << 10};

// A process that has parsed its arguments and opened its files holds 0.4 MB of its own (measured on
// aarch64; pages of code and libraries are the kernel's to drop), 1 MB with the header of a
// checkpoint of 1,600 tensors. The rest is what the heap keeps between phases: whole training
// processes hold 0.4 to 0.9 MB beside arenas, BLAS buffers and recorded programs.
inline constexpr Bytes kProcessBaseline{2 << 20};

struct ProcessFacts {
  Bytes blas_bytes_per_thread;  // what OpenBLAS touches of its buffers
  int disk_readers = kDiskReaders;
};

// Process baseline, the recorded programs themselves, BLAS buffers or the GPU's libraries, thread
// stacks.
std::vector<ProcessLine> process_lines(const ProgramSet& set, const ProcessFacts& facts);

// What the GPU's map of so much pinned host memory takes of its own.
Bytes map_of_pinned(Bytes pinned);

// What CUDA takes of the GPU's memory; pinned: bytes of the host arena.
void add_gpu_lines(std::vector<ProcessLine>& lines, const MachineProfile& profile, Bytes pinned);

Bytes sum_lines(std::span<const ProcessLine> lines, Tier t);

}  // namespace ballast
