#pragma once

#include "fit/planned_run.h"

namespace ballast::fit {

// What a job would take under a policy, without packing anything: how the search for a plan passes
// over most policies quickly.

Recording record(const Request& request, const MemoryPolicy& policy);

// What no arena holds.
// host: bytes of the host arena.
std::vector<ProcessLine> lines_for(const Request& request, const ProgramSet& set, Bytes host);

// What the lanes that bring and take are busy with in a step, which writes nothing to disk. A plan
// may be looked for once more for a disk that reads faster (fit_host.h), so that reads are in
// bytes.
struct Transfers {
  double link_seconds = 0;  // the busier direction
  double read_bytes = 0;    // from disk

  double seconds(const MachineProfile& profile) const;  // of the busiest lane
};

// Lower bounds: a packed plan needs no less, and its steps take no less time.
struct NeedsLowerBound {
  Bytes device, host, disk;    // process lines included
  Bytes recorded;              // of it the recording's own
  double compute_seconds = 0;  // of the first kind of step: what its compute lane is busy
  Transfers transfers;         // of the same
  Transfers of_a_block;        // of them each block's; nothing: not known
};
double seconds_lower_bound(const NeedsLowerBound& needs,
                           const MachineProfile& profile);  // of a step

// Bytes that the weights of each group take somewhere in memory: themselves in the job's format,
// and where they are trained their gradients and, unless some of it may be on disk, the optimizer's
// state. No less.
std::vector<Bytes> min_group_bytes(const Request& request, bool state_on_disk = false);

// By the bytes alive at once.
NeedsLowerBound needs_lower_bound(const Request& request, const Recording& recorded);

// The same without recording all blocks, where they are alike: what is alive at once is the largest
// of several sums that grow by a fixed amount with every block, so it grows with every further
// block at least as much as from the third to the fourth.
NeedsLowerBound needs_lower_bound(const Request& request, const MemoryPolicy& policy);

// Of them what blocks keep from forward to backward under any policy with such activations: each
// its input and, unless it is computed again, attention's output. Nothing is recorded for it.
NeedsLowerBound min_kept_bytes(const Request& request, const MemoryPolicy& policy);

// In full training every group that stays takes its state from the host to the device.
bool host_may_shrink(const Request& request, const MemoryPolicy& policy);

// The answers of needs_lower_bound() for one job, each worked out once. Requests that ask have the
// same job for the same machine; their budgets may differ, and how fast the disk reads.
class NeedsCache {
 public:
  NeedsLowerBound needs_for(const Request& request, const MemoryPolicy& policy);
  // All of the job recorded under a policy; what of() has recorded last serves once more.
  Recording recording(const Request& request, const MemoryPolicy& policy);
  // The same of the model with no more than four blocks, where they have one form: quick, and one
  // resident group more costs in it what it costs in all of them.
  NeedsLowerBound needs_of_few_blocks(const Request& request, const MemoryPolicy& policy);
  // No more than of(): where frozen groups stay, what few blocks and a group that stays show. All
  // blocks are recorded for of() there, and most policies need too much by this already. Bytes of
  // the device and the host alone (recorded: no fewer than there are); nothing: it is not known so.
  // quickly: by three blocks, less.
  std::optional<NeedsLowerBound> needs_resident(const Request& request, const MemoryPolicy& policy,
                                                bool quickly = false);
  // Bytes of the device that places leave unused while it holds most, by those of a few blocks: an
  // estimate, and none where blocks differ.
  Bytes packing_loss(const Request& request, const MemoryPolicy& policy);
  // Whether the policy needs more than the budget by what is kept in any case, or by what one block
  // shows or a few: in a fraction of the time. A no says nothing.
  bool exceeds_bound(const Request& request, const MemoryPolicy& policy);

 private:
  struct CachedNeeds {
    MemoryPolicy policy;
    // With one block, with three, with four, with all of them.
    std::optional<NeedsLowerBound> one, few, one_more, all;
    std::optional<Bytes> unused;  // by places
  };
  // What the head and then each block that stay add, in signed bytes: weights, the same under all
  // policies that bring others the same way.
  struct ResidentNeeds {
    Streaming stream = {};
    bool in_host = false;
    std::int64_t head_device = 0, head_host = 0, block_device = 0, block_host = 0;
  };
  CachedNeeds& known(const MemoryPolicy& policy);
  const ResidentNeeds& resident_needs(const Request& request, const MemoryPolicy& lean);
  const NeedsLowerBound& one(const Request& request, CachedNeeds& k);
  const NeedsLowerBound& few(const Request& request, CachedNeeds& k);
  const NeedsLowerBound& one_more(const Request& request, CachedNeeds& k);
  bool one_form(const Request& request);
  bool alike(const Request& request, const MemoryPolicy& policy);

  std::vector<CachedNeeds> known_;
  std::optional<Recording> last_;  // of all layers
  std::vector<ResidentNeeds> resident_needs_;
  std::optional<bool> one_form_;
  bool last_over_ = false;  // the policy last asked about: then one block may show it of the next
  std::optional<Request> one_, few_, one_more_;  // the job with so many blocks
};

// Over the budget, all tiers together; on the CPU backend the host budget bounds both arenas.
Bytes excess(const Request& request, const NeedsLowerBound& needs);

}  // namespace ballast::fit
