#include "models/wan/teacher.h"

namespace ballast::wan {

DitJob dit_job(const TeacherJob& teacher, const Dit& student) {
  DitJob job;
  job.prefix = kTeacherPrefix;
  job.config = teacher.config;
  job.mode = Mode::infer;
  job.policy = teacher.policy.value_or(teacher_policies().back());
  job.precision = teacher.precision;
  job.format = teacher.format;
  for (const DitPassIo& run : student.io().runs) {
    Batch batch = run.batch;
    if (teacher.guided) {
      batch.latents.insert(batch.latents.end(), run.batch.latents.begin(), run.batch.latents.end());
      batch.timestep_rows = std::ssize(batch.latents);
    }
    job.batches.push_back(std::move(batch));
  }
  return job;
}

std::vector<MemoryPolicy> teacher_policies() {
  std::vector<MemoryPolicy> all = {{.name = "resident"}};
  for (const StreamSource stream_from : {StreamSource::host, StreamSource::disk}) {
    all.push_back(
        {.name = "stream", .streaming = Streaming{.slots = 2, .stream_from = stream_from}});
    all.push_back(
        {.name = "stream",
         .streaming = Streaming{.slots = 1, .matrices_ahead = 1, .stream_from = stream_from}});
  }
  return all;
}

}  // namespace ballast::wan
