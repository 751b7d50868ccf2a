#include "models/student/fit_job.h"

#include <algorithm>

namespace ballast::student {
namespace {

constexpr int kMatricesAhead = 3;  // matrices that come ahead of the one in use

}  // namespace

std::string_view name_of(TeacherPlacement p) {
  constexpr std::string_view kNames[] = {"automatic", "device", "host", "disk", "processors"};
  return kNames[to_size(p)];
}

PairJob FitJob::under(const MemoryPolicy& policy) const {
  PairJob job = pair;
  job.student.activations = policy.activations;
  job.student.state_on_host = policy.state_on_host;
  job.student.heads_per_group = policy.heads_per_group;
  job.teacher_policy = policy;
  job.teacher_policy.activations = Activations::kept;
  job.teacher_policy.state_on_host = false;
  job.teacher_policy.heads_per_group = 0;
  job.teacher_policy.offload = false;
  job.teacher_on_processors = policy.offload;
  if (policy.offload) {
    job.teacher_precision = precision_on(Device::cpu);
    if (policy.stream().stream_from == StreamSource::host) job.teacher_policy = {};  // it is there
  }
  return job;
}

fit::Recording FitJob::record(const MemoryPolicy& policy, const Backend& backend) const {
  fit::Recording r(policy, backend);
  // A GPU's queue is filled by one thread; a teacher on the processors has more.
  if (policy.offload && backend.device == Device::cuda) {
    r.set.backend.threads = host_threads;
  }
  const Pair recorded(r.set, under(policy), teacher, profile);
  std::vector<fit::StepProgram>& step = r.steps.emplace_back();
  const auto runs = static_cast<double>(pair.student.runs_per_step);
  r.add(step, Student::kZero, 1, false);
  for (const char* name : {Pair::kBoth, Pair::kTeacher, Student::kStep})
    r.add(step, name, runs, true);
  for (const char* name : {"grad_norm", "update"}) r.add(step, name, 1, false);
  return r;
}

std::unique_ptr<fit::Job> FitJob::with_depth(std::int64_t layers) const {
  auto job = std::make_unique<FitJob>(*this);
  job->pair.teacher.layers = layers;
  job->teacher.erase(job->teacher.begin() + wan::block_group(layers), job->teacher.end() - 1);
  return job;
}

// Weights of a teacher that stays as a whole.
Bytes FitJob::min_kept_bytes(const MemoryPolicy& policy) const {
  if (under(policy).teacher_policy.streams()) return {};
  return min_bytes(teacher, pair.teacher_format);
}

// Where the teacher's weights may be, fastest first.
std::vector<MemoryPolicy> FitJob::placements() const {
  std::vector<MemoryPolicy> all;
  const auto wanted = [&](TeacherPlacement p) {
    return placement == TeacherPlacement::automatic || placement == p;
  };
  // Without a GPU it is computed by the processors, where it is, unless it has to be read.
  if (wanted(TeacherPlacement::device) || (!gpu && placement != TeacherPlacement::disk)) {
    all.push_back({.name = "auto"});
  }
  for (const StreamSource stream_from : {StreamSource::host, StreamSource::disk}) {
    if (!wanted(stream_from == StreamSource::host ? TeacherPlacement::host
                                                  : TeacherPlacement::disk))
      continue;
    all.push_back({.name = "auto", .streaming = Streaming{.slots = 2, .stream_from = stream_from}});
    all.push_back({.name = "auto",
                   .streaming = Streaming{
                       .slots = 1, .matrices_ahead = kMatricesAhead, .stream_from = stream_from}});
    all.push_back(
        {.name = "auto",
         .streaming = Streaming{.slots = 1, .matrices_ahead = 1, .stream_from = stream_from}});
  }
  if (wanted(TeacherPlacement::processors) && gpu) {
    for (const StreamSource stream_from : {StreamSource::host, StreamSource::disk}) {
      all.push_back({.name = "auto",
                     .streaming = Streaming{.slots = 2, .stream_from = stream_from},
                     .offload = true});
    }
  }
  return all;
}

// What the student may do to need less, leanest last.
std::vector<MemoryPolicy> FitJob::of_student(MemoryPolicy p) const {
  std::vector<MemoryPolicy> all;
  if (!recompute) all.push_back(p);
  p.activations = Activations::recomputed;
  all.push_back(p);
  // Workspaces of attention's backward pass grow with the square of the tokens.
  p.heads_per_group = std::max<std::int64_t>(1, pair.student.config.num_heads / 8);
  all.push_back(p);
  p.state_on_host = true;
  all.push_back(p);
  return all;
}

// A teacher that stays beside a student that keeps all it may is faster than anything else, one
// that the processors compute is slower.
std::vector<std::vector<MemoryPolicy>> FitJob::candidates(const fit::Switches&) const {
  std::vector<std::vector<MemoryPolicy>> all(4);
  for (const MemoryPolicy& placement : placements()) {
    std::size_t list = placement.offload                       ? 3
                       : placement.stream().matrices_ahead > 0 ? 2
                       : placement.streams()                   ? 1
                                                               : 0;
    for (MemoryPolicy& p : of_student(placement)) {
      if (p.state_on_host && list == 1) list = 2;
      all[list].push_back(std::move(p));
      list = std::max<std::size_t>(list, 1);
    }
  }
  return all;
}

// Those that need least come first. What leaves the device takes host memory, and either may be
// short; a teacher that stays has the shortest programs, which are in host memory too.
std::vector<MemoryPolicy> FitJob::leanest() const {
  std::vector<MemoryPolicy> all;
  for (const MemoryPolicy& placement : placements()) {
    const std::vector<MemoryPolicy> lean = of_student(placement);
    all.insert(all.end(), !placement.streams() ? lean.begin() : lean.end() - 2, lean.end());
  }
  std::ranges::reverse(all);
  return all;
}

// Not on a GPU when the user has placed the teacher elsewhere; on the CPU it is the same memory.
bool FitJob::may_fill() const {
  return !gpu || (placement != TeacherPlacement::host && placement != TeacherPlacement::disk);
}

std::string text_of(const PairJob& pair) {
  const std::optional<Streaming>& t = pair.teacher_policy.streaming;
  const Job& s = pair.student;
  std::string text = "teacher ";
  if (pair.teacher_on_processors) text += "computed by the CPU, ";
  if (!t && pair.teacher_on_processors) {
    text += "in RAM";
  } else if (!t) {
    text += "resident";
  } else {
    text +=
        fmt::format("streams from {}", t->stream_from == StreamSource::host ? "RAM" : "its file");
    text += t->matrices_ahead > 0 ? fmt::format(", {} matrices ahead", t->matrices_ahead)
                                  : fmt::format(" through {} slots", t->slots);
    if (t->resident_groups > 0) text += fmt::format(", {} groups resident", t->resident_groups);
    if (t->host_groups > 0) text += fmt::format(", {} groups from RAM", t->host_groups);
  }
  text += s.activations == Activations::kept ? "; student keeps its activations"
                                             : "; student recomputes its blocks";
  if (s.state_on_host) text += ", gradients and optimizer state in RAM";
  return text;
}

}  // namespace ballast::student
