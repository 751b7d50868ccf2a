#include "fit/job.h"

namespace ballast::fit {

std::vector<MemoryPolicy> Job::last_resort(bool) const { return leanest(); }

std::vector<MemoryPolicy> Job::every_policy(int) const { return {}; }

}  // namespace ballast::fit
