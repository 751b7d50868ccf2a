#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "nn/block_weights.h"
#include "nn/memory_policy.h"
#include "nn/optimizer.h"
#include "plan/program.h"

namespace ballast::fit {

// A program of a step and how often it runs in one, on average.
struct StepProgram {
  std::string name;
  double runs = 1;       // 0: at times in place of another that is counted
  bool computes = true;  // false: what follows a step (norms, updates, the change of experts)
};

// A job recorded for planning under one policy.
struct Recording {
  Recording(const MemoryPolicy& p, const Backend& backend) : policy(p) {
    set.backend = backend;
    set.executable = false;
  }
  // To the list of a step, where it was recorded.
  void add(std::vector<StepProgram>& step, const std::string& name, double runs,
           bool computes) const;

  MemoryPolicy policy;
  ProgramSet set;
  // By kind of step: all that it runs, in order. Predictions add it up, and training runs no other.
  std::vector<std::vector<StepProgram>> steps;
};

// What of a model's weights is trained.
enum class Trained : std::uint8_t {
  nothing,
  adapters,
  weights,  // their gradients and the optimizer's state are where they are
};

// What the caller has decided about one way to save memory.
enum class Choice : std::uint8_t { automatic, on, off };

// Without a given policy. checkpointing: blocks keep little and backward computes the rest again.
// offloading: weights pass through slots, and what blocks keep waits in host memory.
struct Switches {
  Choice checkpointing = Choice::automatic, offloading = Choice::automatic;

  bool any() const { return checkpointing != Choice::automatic || offloading != Choice::automatic; }
  friend bool operator==(const Switches&, const Switches&) = default;
};

// A model and the work it has to do: all that a plan depends on besides machine and budget. To be
// planned, run and refused with advice, a model implements this and nothing else.
//
// Weights come in groups: the first is small or the embeddings, then comes one for each block, then
// what is left.
class Job {
 public:
  virtual ~Job() = default;
  virtual std::unique_ptr<Job> clone() const = 0;

  virtual Recording record(const MemoryPolicy& policy, const Backend& backend) const = 0;

  // Weights, those of one expert where there are several, and how they stand on the device.
  virtual std::span<const WeightGroup> groups() const = 0;
  virtual WeightFormat format() const { return WeightFormat::stored; }
  virtual Trained trained() const { return Trained::nothing; }
  virtual bool records_update() const { return false; }
  virtual const OptimizerOptions& optimizer() const;  // of what is trained
  // Whether a policy's disk_state_groups mean something to it.
  virtual bool may_keep_state_on_disk() const { return false; }
  virtual std::size_t gradient_bytes() const { return size_of(DType::f32); }  // of an element
  int group_count() const { return static_cast<int>(groups().size()); }
  virtual std::int64_t blocks() const = 0;

  // Layers of one or more blocks that are recorded alike and may be left out of a copy; 0: they are
  // not.
  virtual std::int64_t depth() const { return 0; }
  virtual std::unique_ptr<Job> with_depth(std::int64_t) const { return nullptr; }

  // Kinds of steps and evaluations, and the same with the heaviest of both only: it decides the
  // peaks in all but odd cases.
  virtual std::size_t kinds() const { return 1; }
  virtual std::unique_ptr<Job> heaviest() const { return clone(); }

  // Policies to try, the fastest first: each list is leaner than the one before it, and looked at
  // only where nothing before it fits.
  virtual std::vector<std::vector<MemoryPolicy>> candidates(const Switches& switches) const = 0;
  // Those that need least, of which any refusal speaks.
  virtual std::vector<MemoryPolicy> leanest() const = 0;
  // Whether policies that need more of the device need less host memory than these.
  virtual bool others_need_less_host() const { return false; }
  // What keeps to switches, the fastest first; where groups may stay although weights stream, and
  // blocks keep activations although others do not, its lists are candidates() instead.
  virtual std::vector<MemoryPolicy> switched(const Switches&) const { return leanest(); }
  virtual bool fills_with_switches() const { return false; }
  // Whether groups may stay on the device although others stream.
  virtual bool may_fill() const { return true; }
  // Whether the processors compute with the weights under a policy: what stays is in host memory.
  virtual bool stays_in_host_memory(const MemoryPolicy&) const { return false; }
  // Whether it is quicker to record all of it than to learn from a few layers what it needs.
  virtual bool recordings_are_short() const { return false; }
  // Whether blocks may keep all their activations under a policy by which most do not.
  virtual bool may_keep_blocks(const MemoryPolicy&, const Switches&) const { return false; }
  // Every policy that may need least somewhere. length_decides: programs that are shorter may help.
  virtual std::vector<MemoryPolicy> last_resort(bool length_decides) const;
  // All that a policy can say, for models with few groups.
  virtual std::vector<MemoryPolicy> every_policy(int max_disk_state_groups) const;
  virtual std::int64_t max_kept_blocks() const { return blocks(); }
  // Sizes of pieces of work that may be larger than those of the lists, the largest first.
  virtual std::vector<std::int64_t> larger_chunks() const { return {}; }
  virtual std::vector<std::int64_t> larger_head_groups() const { return {}; }
  // A policy that was asked for by name, as this job can follow it.
  virtual MemoryPolicy adapted(MemoryPolicy policy) const { return policy; }

  // Bytes that blocks keep from forward to backward under any policy with such activations; nothing
  // is recorded for it.
  virtual Bytes min_kept_bytes(const MemoryPolicy&) const { return {}; }
  // Of other models in the same plan: weights that are in memory all the time, and whether they are
  // on the device.
  virtual Bytes held_by_others() const { return {}; }
  virtual bool others_are_resident() const { return false; }

  // The same job in other ways to place what does not belong to the policy, the fastest first.
  // Empty: there is one way, or it was chosen.
  virtual std::vector<std::unique_ptr<Job>> variants() const { return {}; }
  // The job without what its ways are about: none of them is faster. Nothing: it is not known.
  virtual std::unique_ptr<Job> without_variants() const { return nullptr; }
  // Whether the last of them needs least, as the job itself does then.
  virtual bool last_variant_is_leanest() const { return true; }
  // Whether a later way may be the faster one where both fit.
  virtual bool slower_variants_may_win() const { return false; }
  // Groups of a second model that may stay on the device in this way, and how many do.
  virtual int second_groups() const { return 0; }
  virtual void keep_second_groups(int) {}

 protected:
  Job() = default;
  Job(const Job&) = default;
  Job& operator=(const Job&) = default;
};

}  // namespace ballast::fit
