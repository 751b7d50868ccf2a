#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "fit/request.h"
#include "models/wan/dit.h"
#include "models/wan/teacher.h"

namespace ballast::wan {

// Programs of another model in the same plan, for when the transformer rests.
struct AuxiliaryModel {
  using Record = std::function<void(ProgramSet&)>;
  std::vector<Record> variants = {};  // with the same results: the fastest first, the leanest last
  // Which of them; none: the first that leaves steps as fast as they are without, else the fastest.
  std::optional<std::size_t> variant = {};

  std::size_t chosen() const { return variant.value_or(variants.size() - 1); }
};

// What a transformer has to do, and with which models beside it.
class FitJob final : public fit::Job {
 public:
  DitJob dit = {};
  std::vector<std::vector<WeightGroup>> experts = {};  // weights, one list per expert
  std::optional<TeacherJob> teacher = {};              // that answers beside it
  AuxiliaryModel auxiliary_model = {};
  // Of two experts: how often a step begins with reading the other one's weights. Half of the steps
  // of a training run are the other expert's at most; a clip changes experts once.
  double expert_changes = 0.5;

  std::unique_ptr<fit::Job> clone() const override { return std::make_unique<FitJob>(*this); }
  fit::Recording record(const MemoryPolicy& policy, const Backend& backend) const override;

  std::span<const WeightGroup> groups() const override { return experts.front(); }
  WeightFormat format() const override { return dit.format; }
  fit::Trained trained() const override;
  bool records_update() const override { return dit.record_update; }
  const OptimizerOptions& optimizer() const override { return dit.optimizer; }
  bool may_keep_state_on_disk() const override;
  std::int64_t blocks() const override { return dit.config.layers; }
  std::int64_t depth() const override;
  std::unique_ptr<fit::Job> with_depth(std::int64_t layers) const override;
  std::size_t kinds() const override { return dit.batches.size() + dit.eval_batches.size(); }
  std::unique_ptr<fit::Job> heaviest() const override;

  std::vector<std::vector<MemoryPolicy>> candidates(const fit::Switches&) const override;
  std::vector<MemoryPolicy> leanest() const override;
  std::vector<MemoryPolicy> switched(const fit::Switches& switches) const override;
  bool may_keep_blocks(const MemoryPolicy& policy, const fit::Switches&) const override;
  std::vector<MemoryPolicy> last_resort(bool length_decides) const override;
  std::vector<MemoryPolicy> every_policy(int max_disk_state_groups) const override;
  std::vector<std::int64_t> larger_chunks() const override;
  std::vector<std::int64_t> larger_head_groups() const override;
  MemoryPolicy adapted(MemoryPolicy policy) const override;

  Bytes min_kept_bytes(const MemoryPolicy& policy) const override;
  Bytes held_by_others() const override;
  bool others_are_resident() const override;

  // The companion's, then the places of the teacher.
  std::vector<std::unique_ptr<fit::Job>> variants() const override;
  std::unique_ptr<fit::Job> without_variants() const override;
  int second_groups() const override;
  void keep_second_groups(int groups) override;

 private:
  std::vector<fit::StepProgram> step_of(const fit::Recording& recorded, const Dit& model,
                                        std::size_t batch) const;

  bool teacher_has_placement_ = false;  // by a search: it streams, and groups of it may stay
};

inline FitJob& job_of(fit::Request& r) { return r.job.as<FitJob>(); }
inline const FitJob& job_of(const fit::Request& r) { return r.job.as<FitJob>(); }

std::string step_program(std::size_t run);  // the name of StepPass::run's

}  // namespace ballast::wan
