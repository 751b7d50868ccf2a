#pragma once

#include <string>
#include <vector>

#include "fit/request.h"
#include "models/t5/seq2seq.h"

namespace ballast::t5 {

// A training of the encoder-decoder.
class FitJob final : public fit::Job {
 public:
  Seq2SeqJob seq2seq = {};                // its policy plays no part
  std::vector<WeightGroup> weights = {};  // models/t5/weights.h; planned_groups() serves as well
  std::int64_t runs_per_step = 1;         // of the step program before an update

  std::unique_ptr<fit::Job> clone() const override { return std::make_unique<FitJob>(*this); }
  fit::Recording record(const MemoryPolicy& policy, const Backend& backend) const override;

  std::span<const WeightGroup> groups() const override { return weights; }
  WeightFormat format() const override { return seq2seq.format; }
  fit::Trained trained() const override;
  bool records_update() const override { return seq2seq.record_update; }
  const OptimizerOptions& optimizer() const override { return seq2seq.optimizer; }
  std::size_t gradient_bytes() const override { return size_of(seq2seq.gradient); }
  std::int64_t blocks() const override;
  std::int64_t depth() const override;
  std::unique_ptr<fit::Job> with_depth(std::int64_t layers) const override;
  std::size_t kinds() const override;
  std::unique_ptr<fit::Job> heaviest() const override;

  std::vector<std::vector<MemoryPolicy>> candidates(const fit::Switches& switches) const override;
  std::vector<MemoryPolicy> leanest() const override;
  std::vector<MemoryPolicy> switched(const fit::Switches& switches) const override;
  bool fills_with_switches() const override { return true; }
  bool may_keep_blocks(const MemoryPolicy& policy, const fit::Switches& switches) const override;
};

inline FitJob& job_of(fit::Request& r) { return r.job.as<FitJob>(); }
inline const FitJob& job_of(const fit::Request& r) { return r.job.as<FitJob>(); }

// "24 of 48 blocks resident, 24 streamed from RAM through 2 slots": where weights are.
std::string weights_text(const Config& config, const MemoryPolicy& policy);

// "24 of 48 blocks resident, 24 streamed from RAM through 2 slots; recomputes activations": what a
// policy means for this model.
std::string describe(const Config& config, const MemoryPolicy& policy);

}  // namespace ballast::t5
