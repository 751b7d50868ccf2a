#pragma once

#include "models/wan/fit.h"

namespace ballast::wan {

// Tokens worked on at once: an eighth or a sixteenth of the longest sample. More chunks save little
// and make programs long.
std::int64_t chunk_in(const DitJob& job, std::int64_t pieces);  // of the longest sample, at least
std::int64_t wide_chunk(const DitJob& job);
std::int64_t narrow_chunk(const DitJob& job);

// Heads that attention's backward pass works on at once, where memory is no concern (0: all) and
// where it is. Its workspace on a GPU grows with the square of the tokens, and so does the work of
// one head: from 16,384 tokens on one alone keeps a GPU busy (measured at 32,760: within 1 %).
std::int64_t usual_heads(const DitJob& job);
std::int64_t many_heads(const DitJob& job);  // where there is memory to spare
std::int64_t few_heads(const DitJob& job);

// Matrices that come ahead of the one in use where they have places of their own, if there is room:
// the three that attention begins with.
constexpr int kPartsAhead = 3;

// Whether a step has several samples that need not share a run.
bool several_samples(const DitJob& job);

// What a job would take under a policy, without packing anything: how the search for a plan passes
// over most policies quickly.

// A job recorded for planning under one policy.
struct RecordedJob {
  MemoryPolicy policy;
  ProgramSet set;
  std::vector<std::vector<StepPart>> parts;  // by kind of step
};
RecordedJob record(const FitRequest& request, const MemoryPolicy& policy);
std::string step_program(std::size_t run);  // the name of StepPart::run's

// What no arena holds.
// host: bytes of the host arena.
std::vector<ProcessLine> lines_for(const FitRequest& request, const ProgramSet& set, Bytes host);

// What the lanes that bring and take are busy with in a step, which writes nothing to disk. A plan
// may be looked for once more for a disk that reads faster (fit_host.h), so that reads are in
// bytes.
struct Transfers {
  double link_seconds = 0;  // the busier direction
  double read_bytes = 0;    // from disk

  double seconds(const MachineProfile& profile) const;  // of the busiest lane
};

// Lower bounds: a packed plan needs no less, and its steps take no less time.
struct LeastNeeds {
  Bytes device, host, disk;    // process lines included
  Bytes recorded;              // of it the recording's own
  double compute_seconds = 0;  // of the first kind of step: what its compute lane is busy
  Transfers transfers;         // of the same
  Transfers of_a_block;        // of them each block's; nothing: not known
};
double least_seconds(const LeastNeeds& needs, const MachineProfile& profile);  // of a step

// Bytes that the weights of each group take somewhere in memory: themselves in the job's format,
// and where they are trained their gradients and, unless some of it may be on disk, the optimizer's
// state. No less.
std::vector<Bytes> least_group_bytes(const FitRequest& request, bool state_on_disk = false);

// By the bytes alive at once.
LeastNeeds least_needs(const FitRequest& request, const RecordedJob& recorded);

// The same without recording all blocks, where they are alike: what is alive at once is the largest
// of several sums that grow by a fixed amount with every block, so it grows with every further
// block at least as much as from the third to the fourth.
LeastNeeds least_needs(const FitRequest& request, const MemoryPolicy& policy);

// Of them what blocks keep from forward to backward under any policy with such activations: each
// its input and, unless it is computed again, attention's output. Nothing is recorded for it.
LeastNeeds kept_at_least(const DitJob& job, const MemoryPolicy& policy);

// In full training every group that stays takes its state from the host to the device.
bool host_may_shrink(const FitRequest& request, const MemoryPolicy& policy);

// The answers of least_needs() for one job, each worked out once. Requests that ask have the same
// job for the same machine; their budgets may differ, and how fast the disk reads.
class KnownNeeds {
 public:
  LeastNeeds of(const FitRequest& request, const MemoryPolicy& policy);
  // The same of the model with no more than four blocks, where they have one form: quick, and one
  // resident group more costs in it what it costs in all of them.
  LeastNeeds of_few_blocks(const FitRequest& request, const MemoryPolicy& policy);
  // No more than of(): where frozen groups stay, what few blocks and a group that stays show. All
  // blocks are recorded for of() there, and most policies need too much by this already. Bytes of
  // the device and the host alone (recorded: no fewer than there are); nothing: it is not known so.
  // quickly: by three blocks, less.
  std::optional<LeastNeeds> of_staying(const FitRequest& request, const MemoryPolicy& policy,
                                       bool quickly = false);
  // Bytes of the device that places leave unused while it holds most, by those of a few blocks: an
  // estimate, and none where blocks differ.
  Bytes unused_by_places(const FitRequest& request, const MemoryPolicy& policy);
  // Whether the policy needs more than the budget by what is kept in any case, or by what one block
  // shows or a few: in a fraction of the time. A no says nothing.
  bool surely_over(const FitRequest& request, const MemoryPolicy& policy);

 private:
  struct Known {
    MemoryPolicy policy;
    // With one block, with three, with four, with all of them.
    std::optional<LeastNeeds> one, few, one_more, all;
    std::optional<Bytes> unused;  // by places
  };
  // What the head and then each block that stay add, in signed bytes: weights, the same under all
  // policies that bring others the same way.
  struct Staying {
    int slots = 0, parts = 0;
    WeightHome home = WeightHome::disk;
    std::int64_t head_device = 0, head_host = 0, block_device = 0, block_host = 0;
  };
  Known& known(const MemoryPolicy& policy);
  const Staying& staying(const FitRequest& request, const MemoryPolicy& lean);
  const LeastNeeds& one(const FitRequest& request, Known& k);
  const LeastNeeds& few(const FitRequest& request, Known& k);
  const LeastNeeds& one_more(const FitRequest& request, Known& k);
  bool one_form(const FitRequest& request);
  bool alike(const FitRequest& request, const MemoryPolicy& policy);

  std::vector<Known> known_;
  std::vector<Staying> staying_;
  std::optional<bool> one_form_;
  bool last_over_ = false;  // the policy last asked about: then one block may show it of the next
  std::optional<FitRequest> one_, few_, one_more_;  // the job with so many blocks
};

// Over the budget, all tiers together; on the CPU backend the host budget bounds both arenas.
Bytes excess(const FitRequest& request, const LeastNeeds& needs);

}  // namespace ballast::wan
