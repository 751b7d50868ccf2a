#include "fit/job.h"

namespace ballast::fit {

const OptimizerOptions& Job::optimizer() const {
  static const OptimizerOptions none;
  return none;
}

std::vector<MemoryPolicy> Job::last_resort(bool) const { return leanest(); }

std::vector<MemoryPolicy> Job::every_policy(int) const { return {}; }

}  // namespace ballast::fit
