#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fit/job.h"
#include "memory/budget.h"
#include "plan/process_lines.h"
#include "plan/profile.h"

namespace ballast::fit {

// A job by value: copies are jobs of their own.
class AnyJob {
 public:
  AnyJob() = default;
  AnyJob(std::unique_ptr<Job> job) : job_(std::move(job)) {}
  template <class J>
  requires std::derived_from<J, Job> AnyJob(J job) : job_(std::make_unique<J>(std::move(job))) {}
  AnyJob(const AnyJob& other) : job_(other.job_ ? other.job_->clone() : nullptr) {}
  AnyJob(AnyJob&&) noexcept = default;
  AnyJob& operator=(AnyJob other) noexcept {
    job_ = std::move(other.job_);
    return *this;
  }

  Job& operator*() { return *job_; }
  const Job& operator*() const { return *job_; }
  Job* operator->() { return job_.get(); }
  const Job* operator->() const { return job_.get(); }
  // As the model that it is of, or null; as() where the caller knows.
  template <class J>
  J* get_if() {
    return dynamic_cast<J*>(job_.get());
  }
  template <class J>
  const J* get_if() const {
    return dynamic_cast<const J*>(job_.get());
  }
  template <class J>
  J& as() {
    return dynamic_cast<J&>(*job_);
  }
  template <class J>
  const J& as() const {
    return dynamic_cast<const J&>(*job_);
  }

 private:
  std::unique_ptr<Job> job_;
};

// In the budget of a request where there is no limit: sums of it do not overflow.
inline constexpr Bytes kNoLimit{1ull << 60};
// The budget of options in which 0 means no limit.
inline Budget with_limits(Budget b) {
  for (Bytes* limit : {&b.gpu, &b.host}) {
    if (limit->count == 0) *limit = kNoLimit;
  }
  return b;
}

// What to plan, for which machine, inside which budget.
struct Request {
  AnyJob job;
  Backend backend = {};
  MachineProfile profile = {};
  Budget budget = {};
  std::optional<MemoryPolicy> policy = {};           // nullopt: the fastest predicted one that fits
  std::vector<ProcessLine> other_lines = {};         // what the caller itself keeps in memory
  std::optional<std::int64_t> streamed_blocks = {};  // exactly so many of them pass through slots
  Switches switches = {};                            // without `policy`
};

}  // namespace ballast::fit
