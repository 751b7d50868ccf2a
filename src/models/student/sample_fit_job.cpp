#include "models/student/sample_fit_job.h"

namespace ballast::student {

fit::Recording SampleFitJob::record(const MemoryPolicy& policy, const Backend& backend) const {
  fit::Recording r(policy, backend);
  const Student recorded(r.set, student);
  r.steps.push_back({{Student::kPredict, static_cast<double>(steps)}});
  return r;
}

}  // namespace ballast::student
