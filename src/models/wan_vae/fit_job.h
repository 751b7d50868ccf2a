#pragma once

#include <string>
#include <vector>

#include "fit/planned_run.h"
#include "models/wan_vae/vae.h"

namespace ballast::wan_vae {

// Encoding or decoding. Of a policy, slots and resident_groups are about units, of which the last
// stay; offload and kept_blocks about the frames that convolutions in time remember. Slices and
// bands are ways of the job: until one is chosen it is recorded with as many bands as there may be.
class FitJob final : public fit::Job {
 public:
  FitJob(wan_vae::Job job, std::vector<StoredUnit> encoder, std::vector<StoredUnit> decoder);

  wan_vae::Job vae;  // its policy is chosen
  std::vector<StoredUnit> encoder, decoder;
  bool shares_ram = false;  // on the CPU: what waits in RAM waits in the same memory

  // Only this policy: returns what the request must ask for. Fails with ErrorCode::usage where
  // there are too few rows for its bands.
  MemoryPolicy choose(const Policy& policy);

  std::unique_ptr<fit::Job> clone() const override { return std::make_unique<FitJob>(*this); }
  fit::Recording record(const MemoryPolicy& policy, const Backend& backend) const override;
  Policy under(const MemoryPolicy& policy) const;
  // "frames one by one, 2 bands (10 % computed twice)"; "resident" where nothing is spared.
  std::string text_of(const MemoryPolicy& policy) const;

  std::span<const WeightGroup> groups() const override { return groups_; }
  WeightFormat format() const override;
  std::int64_t blocks() const override { return 0; }

  std::vector<std::vector<MemoryPolicy>> candidates(const fit::Switches&) const override;
  std::vector<MemoryPolicy> leanest() const override;
  bool may_fill() const override { return false; }
  // Of the other ways most are too large in any case, as their leanest policy shows.
  bool recordings_are_short() const override { return variant_ == Variant::whole; }
  bool others_need_less_host() const override { return !shares_ram; }
  bool may_keep_blocks(const MemoryPolicy& policy, const fit::Switches&) const override;
  std::int64_t max_kept_blocks() const override;

  // Whole chunks, then frames one by one; of these whole frames, then in more and more bands.
  std::vector<std::unique_ptr<fit::Job>> variants() const override;
  bool last_variant_is_leanest() const override { return false; }
  bool slower_variants_may_win() const override { return variant_ == Variant::sliced; }

 private:
  // whole: chunks with all weights on the device. sliced: the number of bands is open.
  enum class Variant : std::uint8_t { open, whole, sliced, chosen };

  bool in_slices() const { return vae.decode && vae.long_clips; }
  // What a policy does not say.
  Policy variant_policy() const;
  std::int64_t max_bands() const;
  Streaming through_slots(std::size_t units) const;  // the first so many

  Variant variant_ = Variant::open;
  std::vector<WeightGroup> groups_;  // a unit each
};

// How a decoder may use memory, the fastest first and the leanest last.
std::vector<Policy> decoding_policies(const Job& job);

inline Policy policy_of(const fit::PlannedRun& run) {
  return run.job.as<FitJob>().under(run.policy);
}
inline std::string policy_text(const fit::PlannedRun& run) {
  return run.job.as<FitJob>().text_of(run.policy);
}

inline FitJob& job_of(fit::Request& r) { return r.job.as<FitJob>(); }
inline const FitJob& job_of(const fit::Request& r) { return r.job.as<FitJob>(); }

}  // namespace ballast::wan_vae
