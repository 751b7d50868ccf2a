#pragma once

#include <vector>

#include "fit/request.h"
#include "models/t5/decoder.h"
#include "models/t5/encoder.h"

namespace ballast::t5 {

// The model in use rather than in training. A plan's time is that of a whole call: what stays is
// read before anything is computed.
class InferenceFitJob : public fit::Job {
 public:
  std::vector<WeightGroup> weights = {};  // models/t5/weights.h; planned_groups() serves as well

  std::span<const WeightGroup> groups() const override { return weights; }
  std::int64_t blocks() const override;

  std::vector<std::vector<MemoryPolicy>> candidates(const fit::Switches&) const override;
  std::vector<MemoryPolicy> leanest() const override;
  bool may_fill() const override { return kept() == Kept::any || kept() == Kept::those_that_fit; }
  bool recordings_are_short() const override { return true; }

 protected:
  enum class Kept : std::uint8_t { any, all, those_that_fit, none };

  virtual const Config& config() const = 0;
  // Which weights stay. Those that are used once stream beside compute: loading them first takes
  // longer.
  virtual Kept kept() const = 0;
};

class EncoderFitJob final : public InferenceFitJob {
 public:
  EncoderJob encoder = {};  // its policy and its source of rows play no part

  std::unique_ptr<fit::Job> clone() const override {
    return std::make_unique<EncoderFitJob>(*this);
  }
  fit::Recording record(const MemoryPolicy& policy, const Backend& backend) const override;
  WeightFormat format() const override { return encoder.format; }

  // Several passes: all weights stay. Where they do not fit, as many as do stay or, if that is
  // faster, none: while a pass computes longer than it reads, loading takes time alone.
  std::vector<std::unique_ptr<fit::Job>> variants() const override;
  bool slower_variants_may_win() const override { return variant_ == Variant::streams; }

 protected:
  const Config& config() const override { return encoder.config; }
  Kept kept() const override;

 private:
  enum class Variant : std::uint8_t { open, resident, streams, filled, streams_all };

  Variant variant_ = Variant::open;
};

// A kind of step for each length of a source: the text that follows it, as long as it may be.
class DecoderFitJob final : public InferenceFitJob {
 public:
  DecoderJob decoder = {};  // its policy plays no part

  std::unique_ptr<fit::Job> clone() const override {
    return std::make_unique<DecoderFitJob>(*this);
  }
  fit::Recording record(const MemoryPolicy& policy, const Backend& backend) const override;
  WeightFormat format() const override { return decoder.format; }
  std::size_t kinds() const override { return decoder.sources.size(); }
  std::unique_ptr<fit::Job> heaviest() const override;

 protected:
  const Config& config() const override { return decoder.config; }
  Kept kept() const override { return Kept::any; }
};

}  // namespace ballast::t5
