#include "models/student/pair_fit.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "models/wan/job_needs.h"

namespace ballast::student {
namespace {

constexpr int kMostParts = 3;  // matrices that come ahead of the one in use

std::vector<ProcessLine> lines_of(const PairRequest& request, const ProgramSet& set, Bytes host) {
  wan::FitRequest r;
  r.backend = request.backend;
  r.profile = request.profile;
  r.other_lines = request.other_lines;
  return wan::lines_for(r, set, host);
}

// A GPU's queue is filled by one thread; a teacher on the processors has more.
Backend backend_of(const PairRequest& request, const PairJob& job) {
  Backend b = request.backend;
  if (job.teacher_on_processors && b.device == Device::cuda) b.threads = request.host_threads;
  return b;
}

struct Recorded {
  ProgramSet set;
  PairJob job;
};

Recorded record(const PairRequest& request, const PairJob& job) {
  Recorded r;
  r.job = job;
  r.set.backend = backend_of(request, job);
  r.set.executable = false;
  Pair(r.set, job, request.teacher, request.profile);
  return r;
}

PlannedPair complete(const PairRequest& request, Recorded recorded) {
  PlannedPair p;
  p.job = std::move(recorded.job);
  p.set = std::move(recorded.set);
  p.plan = plan_memory(p.set);
  p.lines = lines_of(request, p.set, p.plan.peak_of(Tier::host));
  for (int i = 0; i < static_cast<int>(p.set.programs.size()); ++i) {
    p.times.push_back(predict(p.set, p.plan, i, request.profile));
  }
  return p;
}

std::vector<Shortage> shortages(const PairRequest& request, const PlannedPair& p) {
  const Bytes device = p.needed(Tier::device);
  Bytes host = p.needed(Tier::host);
  if (request.backend.device == Device::cpu) host += device;
  return ballast::shortages(p.plan, {device, host, Bytes{}},
                            {request.budget.gpu, request.budget.host, Bytes{}});
}

// By live bytes alone, which a packed plan needs at least: quick.
bool may_fit(const PairRequest& request, const Recorded& r) {
  const auto live = live_bytes(r.set);
  const std::vector<ProcessLine> lines = lines_of(request, r.set, live[1]);
  const Bytes device = live[0] + sum_lines(lines, Tier::device);
  Bytes host = live[1] + sum_lines(lines, Tier::host);
  if (request.backend.device == Device::cpu) host += device;
  return device <= request.budget.gpu && host <= request.budget.host;
}

std::optional<PlannedPair> try_plan(const PairRequest& request, const PairJob& job) {
  Recorded r = record(request, job);
  if (!may_fit(request, r)) return std::nullopt;
  PlannedPair p = complete(request, std::move(r));
  if (!shortages(request, p).empty()) return std::nullopt;
  return p;
}

// Where the teacher's weights are and who computes with them.
struct TeacherChoice {
  MemoryPolicy policy;
  bool on_processors = false;
};

// Fastest first.
std::vector<TeacherChoice> teacher_choices(const PairRequest& request) {
  const TeacherPlace place = request.place;
  std::vector<TeacherChoice> all;
  const auto wanted = [&](TeacherPlace p) {
    return place == TeacherPlace::automatic || place == p;
  };
  if (wanted(TeacherPlace::device)) all.push_back({{.name = "resident"}});
  for (const WeightHome home : {WeightHome::host, WeightHome::disk}) {
    if (!wanted(home == WeightHome::host ? TeacherPlace::host : TeacherPlace::disk)) continue;
    all.push_back({{.name = "stream", .slots = 2, .home = home}});
    all.push_back({{.name = "stream", .slots = 1, .parts = kMostParts, .home = home}});
    all.push_back({{.name = "stream", .slots = 1, .parts = 1, .home = home}});
  }
  if (!wanted(TeacherPlace::processors)) return all;
  if (request.backend.device == Device::cpu) {  // there it is nothing else than staying
    if (place == TeacherPlace::processors) all.push_back({{.name = "resident"}});
    return all;
  }
  all.push_back({{.name = "resident"}, true});
  all.push_back({{.name = "stream", .slots = 2, .home = WeightHome::disk}, true});
  return all;
}

// What the student may do to need less, leanest last.
std::vector<Job> student_jobs(const PairRequest& request) {
  std::vector<Job> all;
  Job job = request.job.student;
  job.state_on_host = false;
  job.heads_per_group = 0;
  job.activations = Activations::kept;
  if (!request.recompute) all.push_back(job);
  job.activations = Activations::recomputed;
  all.push_back(job);
  // Workspaces of attention's backward pass grow with the square of the tokens.
  job.heads_per_group = std::max<std::int64_t>(1, job.config.num_heads / 8);
  all.push_back(job);
  job.state_on_host = true;
  all.push_back(job);
  return all;
}

// Whether weights of the teacher may stay where they are computed with. Not on a GPU when the user
// has placed them elsewhere; on the CPU it is the same memory.
bool may_stay(const PairRequest& request) {
  const bool placed = request.place == TeacherPlace::host || request.place == TeacherPlace::disk;
  return !placed || request.backend.device == Device::cpu;
}

// As many of the teacher's groups stay as the budget allows.
PlannedPair fill(const PairRequest& request, PlannedPair lean) {
  if (lean.job.teacher_policy.slots == 0 || !may_stay(request)) return lean;
  int low = 0, high = wan::group_count(request.job.teacher);  // fits with low, not with high
  PairJob job = lean.job;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    job.teacher_policy.resident_groups = middle;
    if (auto fuller = try_plan(request, job)) {
      lean = std::move(*fuller);
      low = middle;
    } else {
      high = middle;
    }
  }
  return lean;
}

PairJob job_of(const PairRequest& request, const Job& student, const TeacherChoice& choice) {
  PairJob job = request.job;
  job.student = student;
  job.teacher_policy = choice.policy;
  job.teacher_on_processors = choice.on_processors;
  if (choice.on_processors) job.teacher_precision = wan::precision_on(Device::cpu);
  return job;
}

// Speaks of the plan that misses least, all tiers together.
Refusal refuse(const PairRequest& request, const std::vector<Job>& jobs,
               const std::vector<TeacherChoice>& choices) {
  std::optional<Refusal> closest;
  Bytes least;
  for (const Job& student : jobs) {
    for (const TeacherChoice& choice : choices) {
      const PlannedPair p = plan_pair(request, job_of(request, student, choice));
      Refusal r = {.policy = "the lowest-memory plan",
                   .needed = {p.needed(Tier::device), p.needed(Tier::host), {}},
                   .shortages = shortages(request, p),
                   .seconds_per_step = p.seconds_per_step()};
      Bytes missing;
      for (const Shortage& s : r.shortages) missing += s.needed - s.allowed;
      if (closest && least <= missing) continue;
      least = missing;
      closest = std::move(r);
    }
  }
  return std::move(*closest);
}

}  // namespace

std::string_view name_of(TeacherPlace p) {
  switch (p) {
    case TeacherPlace::automatic:
      return "automatic";
    case TeacherPlace::device:
      return "device";
    case TeacherPlace::host:
      return "host";
    case TeacherPlace::disk:
      return "disk";
    case TeacherPlace::processors:
      return "processors";
  }
  return "?";
}

Bytes PlannedPair::needed(Tier t) const { return plan.peak_of(t) + sum_lines(lines, t); }

double PlannedPair::seconds_of(std::string_view program) const {
  for (std::size_t i = 0; i < set.programs.size(); ++i) {
    if (set.programs[i].name == program) return times[i].seconds;
  }
  return 0;
}

double PlannedPair::seconds_per_step() const {
  const double run =
      seconds_of(Pair::kBoth) + seconds_of(Pair::kTeacher) + seconds_of(Student::kStep);
  return static_cast<double>(job.student.runs_per_step) * run + seconds_of(Student::kZero) +
         seconds_of("grad_norm") + seconds_of("update");
}

PlannedPair plan_pair(const PairRequest& request, const PairJob& job) {
  return complete(request, record(request, job));
}

std::variant<PlannedPair, Refusal> fit_pair(const PairRequest& request) {
  std::optional<PlannedPair> best;
  const std::vector<TeacherChoice> choices = teacher_choices(request);
  const std::vector<Job> jobs = student_jobs(request);
  // A leaner student is slower and worth it only where the teacher gets a faster place.
  std::size_t faster = choices.size();
  for (const Job& student : jobs) {
    for (std::size_t i = 0; i < faster; ++i) {
      auto p = try_plan(request, job_of(request, student, choices[i]));
      if (!p) continue;
      if (!best || p->seconds_per_step() < 0.99 * best->seconds_per_step()) best = std::move(p);
      faster = i;
    }
  }
  if (best) return fill(request, std::move(*best));
  return refuse(request, jobs, choices);
}

std::string text_of(const PlannedPair& p) {
  const MemoryPolicy& t = p.job.teacher_policy;
  const Job& s = p.job.student;
  std::string text = "teacher ";
  if (p.job.teacher_on_processors) text += "computed by the CPU, ";
  if (t.slots == 0 && p.job.teacher_on_processors) {
    text += "in RAM";
  } else if (t.slots == 0) {
    text += "resident";
  } else {
    text += fmt::format("streams from {}", t.home == WeightHome::host ? "RAM" : "its file");
    text += t.parts > 0 ? fmt::format(", {} matrices ahead", t.parts)
                        : fmt::format(" through {} slots", t.slots);
    if (t.resident_groups > 0) text += fmt::format(", {} groups resident", t.resident_groups);
  }
  text += s.activations == Activations::kept ? "; student keeps its activations"
                                             : "; student recomputes its blocks";
  if (s.state_on_host) text += ", gradients and optimizer state in RAM";
  return text;
}

}  // namespace ballast::student
