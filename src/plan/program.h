#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "memory/tier.h"
#include "plan/buffer_list.h"
#include "plan/recorded_names.h"
#include "plan/shared_shape.h"

namespace ballast {

class Bindings;
class CheckedReads;

// What a buffer is for; the report adds bytes up by role.
enum class Role : std::uint8_t {
  weights,       // frozen or trained weights that stay
  weight_slots,  // weights passing through
  adapter,       // LoRA factors
  gradient,
  optimizer,   // moments, masters
  checkpoint,  // kept from forward to backward
  activation,
  workspace,  // scratch of one operation
  staging,    // ring between disk, host and device
  input,
  output,
};
inline constexpr int kRoles = 11;
std::string_view name_of(Role r);

// Lanes run side by side; the instructions of one lane run in order.
enum class Lane : std::uint8_t { compute, upload, download, disk, host, network };
inline constexpr int kLaneCount = 6;
std::string_view name_of(Lane l);

inline constexpr int kPersistent = -1;

// Half a million of these are walked for a plan: one cache line each.
struct BufferSpec {
  std::string_view name;  // empty in views; see ProgramSet::name
  SharedShape shape;
  SharedShape strides;        // in elements
  std::uint64_t offset = 0;   // bytes from the start of the root
  std::uint64_t bytes = 0;    // from first to last byte touched, strides included
  Buffer root;                // the buffer whose memory this is; itself unless it is a view
  int program = kPersistent;  // index of the program a temporary belongs to
  std::uint32_t alignment = 256;
  DType dtype = DType::f32;
  Tier tier = Tier::device;
  Role role = Role::activation;
};
static_assert(sizeof(BufferSpec) <= 64);

// What decides how long an instruction takes.
enum class Work : std::uint8_t {
  memory,
  gemm,
  f32_gemm,  // on a GPU, whose units for products are not for such
  fp8_gemm,
  attention,
  attention_backward,
  transfer,
  disk,
  disk_write,
  network  // an exchange between the ranks of Cost::group, see RankGroup
};

struct Cost {
  Work work = Work::memory;
  double flops = 0;
  double bytes = -1;  // moved; negative: the sizes of what is read and written
  // Calls of a GPU, where they follow from the sizes: each begins and ends for itself.
  std::uint32_t launches = 1;
  std::int32_t group = -1;  // Work::network: which of ProgramSet::groups; bytes cross its link
};

using Kernel = std::function<void(const Bindings&)>;

// One piece of work and every byte it may touch.
struct Instruction {
  std::string_view name;  // a zero follows
  Lane lane = Lane::compute;
  bool copies_bytes = false;  // and nothing else: host memory that it reads need not be pinned
  // It is run once for each (Bindings::part), side by side where its lane has several workers: a
  // large read is as many instructions as a small one and still keeps all of them busy.
  std::uint32_t splits = 1;
  BufferList reads;
  BufferList writes;  // a buffer that is updated in place stands in both lists
  Cost cost;
  Kernel run;
  // Makes, before the first run, what a run must not: a library's plan for these sizes and places.
  Kernel prepare = {};
};

// One phase of a run: load, step, update, ...
struct Program {
  std::string name;
  std::vector<Instruction> instructions;
};

// How much of what is read again from model files is compared with the first read.
enum class VerifyWeights : std::uint8_t {
  sampled,  // of each range one read in every CheckedReads::kSampled
  all,
  off,  // nothing; NaN and files that change are still noticed
};

// What the recorded code will run on; decides workspace sizes.
struct Backend {
  Device device = Device::cpu;
  int threads = 1;            // compute threads of the CPU backend
  int sm = 90;                // compute capability of the GPU, 90 is 9.0
  bool deterministic = true;  // GPU: same input, same bits; false trades that for speed
  VerifyWeights verify_weights = VerifyWeights::sampled;

  friend bool operator==(const Backend&, const Backend&) = default;
};

// Ranks that exchange bytes: this rank is number `mine` of `size`.
//
// Instructions of Work::network run on Lane::network. One is done on a rank when all bytes that it
// writes are there, and when this rank may overwrite what it read, because no other rank needs it
// any more. All ranks record the same such instructions in the same order, so an instruction waits
// only for earlier ones of any rank, and no schedule of lanes can deadlock. Waits inside a rank
// follow from byte ranges as everywhere.
struct RankGroup {
  std::string name;  // "all", "dp"
  int size = 1, mine = 0;
  bool one_host = true;  // decides which link's rates are predicted
};

// All programs of a run and all their buffers. Persistent buffers have one place in all programs;
// temporaries of different programs share one region.
struct ProgramSet {
  Backend backend;
  bool executable = true;  // false: recorded for planning only, kernels are dropped
  std::vector<BufferSpec> buffers;
  std::vector<Program> programs;
  // Persistent buffers of one size, each filled when its turn comes: which memory one of them is
  // may change from one time to the next (plan/ring_allocator.h).
  std::vector<std::vector<Buffer>> rings;
  // Of what its programs read from model files; none when it is recorded for planning only.
  std::shared_ptr<CheckedReads> checked_reads;
  ShapePool shapes;     // of its buffers
  RecordedNames names;  // of its buffers and instructions
  std::vector<RankGroup> groups;

  const BufferSpec& spec(Buffer b) const {
    if (b.id >= buffers.size()) [[unlikely]]
      fail_unknown(b);
    return buffers[b.id];
  }
  std::string_view name(Buffer b) const { return spec(spec(b).root).name; }
  Bytes bytes(Buffer b) const { return {spec(b).bytes}; }
  int program_index(std::string_view name) const;  // fails when there is none

 private:
  [[noreturn]] void fail_unknown(Buffer b) const;
};

}  // namespace ballast
