#pragma once

#include <memory>
#include <vector>

#include "fit/request.h"
#include "models/student/student.h"

namespace ballast::student {

// Drawing with a student. All of it stays on the device: there is one policy.
class SampleFitJob final : public fit::Job {
 public:
  student::Job student = {.trains = false};
  std::int64_t steps = 1;  // of a sample

  std::unique_ptr<fit::Job> clone() const override { return std::make_unique<SampleFitJob>(*this); }
  fit::Recording record(const MemoryPolicy& policy, const Backend& backend) const override;

  std::span<const WeightGroup> groups() const override { return {}; }  // none is streamed
  std::int64_t blocks() const override { return student.config.depth; }

  std::vector<std::vector<MemoryPolicy>> candidates(const fit::Switches&) const override {
    return {leanest()};
  }
  std::vector<MemoryPolicy> leanest() const override { return {MemoryPolicy()}; }
  bool may_fill() const override { return false; }
  bool recordings_are_short() const override { return true; }
};

}  // namespace ballast::student
