#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/bench/benches.h"
#include "app/bench/kernel_times.h"
#include "app/bench/memory_use.h"
#include "app/bench/random_weights.h"
#include "app/machine_flags.h"
#include "app/output.h"
#include "app/planning.h"
#include "core/error.h"
#include "core/random.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "models/student/fit_job.h"
#include "nn/machine_options.h"
#include "plan/runner.h"

namespace ballast {
namespace {

// The pair with its runner, loaded and with inputs.
class BenchPair {
 public:
  explicit BenchPair(const fit::PlannedRun& planned) {
    const auto& planned_job = planned.job.as<student::FitJob>();
    const student::PairJob job = planned_job.under(planned.policy);
    set_.backend = planned.set.backend;
    pair_ = std::make_unique<student::Pair>(set_, job, planned_job.teacher, planned_job.profile);
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
    runner_->run("load");
    write_inputs();
    runner_->run("init_state");
    if (job.side_by_side) run(student::Pair::kBoth);  // the first answer of the teacher
  }

  void step() {
    ++steps_;
    link_ = compute_ = stalled_ = 0;
    run(student::Student::kZero);
    for (std::int64_t i = 0; i < pair_->job().student.runs_per_step; ++i) {
      if (pair_->job().side_by_side) {
        run(student::Pair::kBoth);
      } else {
        run(student::Pair::kTeacher);
        run(student::Student::kStep);
      }
    }
    run("grad_norm");
    run("update");
  }

  // Of one more step.
  KernelTimes kernels() {
    return kernels_of(*runner_, collect_, [this] { step(); });
  }

  double link() const { return link_; }
  double compute() const { return compute_; }
  double stalled() const { return stalled_; }
  const MemoryPlan& plan() const { return plan_; }
  Runner& runner() { return *runner_; }
  double loss() const { return *runner_->view(pair_->student().loss()).as<double>(); }

 private:
  void run(const char* program) {
    runner_->run(program, {.step = steps_, .seed = 1, .learning_rate = 1e-5});
    const auto lane = [&](Lane l) { return runner_->lane_times()[to_size(l)]; };
    link_ += lane(Lane::upload).busy;
    compute_ += lane(Lane::compute).busy;
    stalled_ += lane(Lane::compute).waiting;
    if (collect_) collect_->add(*runner_);
  }

  void random(Buffer b, float size, float mean = 0) {
    const std::int64_t n = set_.spec(b).shape.elements();
    values_.resize(to_size(n));
    fill_normal(random_source(b.id, "bench", 0, "distill"), 0, values_.data(), n);
    for (float& v : values_) v = mean + size * v;
    runner_->write(b, std::as_bytes(std::span(values_)));
  }

  void write_inputs() {
    const wan::DitPassIo& teacher = pair_->teacher();
    std::vector<double> times(teacher.samples.size(), 500);
    runner_->write(teacher.timesteps, std::as_bytes(std::span(times)));
    for (std::size_t i = 0; i < teacher.samples.size(); ++i) {
      const wan::DitSampleIo& s = teacher.samples[i];
      random(s.latent, 1);
      random(s.context, 0.1f);
      const std::vector<std::int32_t> rows(to_size(set_.spec(s.timestep_row).shape[0]),
                                           static_cast<std::int32_t>(i));
      runner_->write(s.timestep_row, std::as_bytes(std::span(rows)));
    }
    for (const student::SampleIo& s : pair_->student().samples()) {
      random(s.latent, 1);
      random(s.time, 0.5f);
      random(s.text, 0.1f);
      random(s.target, 1);
    }
    for (const student::Parameter& p : pair_->student().parameters()) {
      const bool gain = p.name.find("norm") != std::string::npos && p.name.ends_with("weight");
      random(p.value, 0.02f, gain ? 1.0f : 0.0f);
    }
  }

  ProgramSet set_;
  std::unique_ptr<student::Pair> pair_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
  std::vector<float> values_;
  std::int64_t steps_ = 0;
  double link_ = 0, compute_ = 0, stalled_ = 0;
  KernelTimes* collect_ = nullptr;
};

// ballast bench distill: a teacher of random weights and a student, planned and run as `ballast
// distill` does it, and what was planned and predicted beside what was measured.
class BenchDistill : public Command {
 public:
  void declare(CLI::App& app) override;
  void run() override;

 private:
  fit::Request request() const;  // without the teacher's weights

  std::string model_ = "14B", student_, placement_ = "host", weights_ = "bf16";
  std::string folder_ = "/tmp", student_dtype_;
  std::int64_t batch_ = 1, runs_ = 1, steps_ = 5, layers_ = 0;
  bool recompute_ = false, two_programs_ = false, kernels_ = false;
  MachineOptions machine_;
};

void BenchDistill::declare(CLI::App& app) {
  app.add_option("--model", model_, "the teacher: 14B, or the name of a text-to-video preset");
  app.add_option("--layers", layers_, "of the teacher; 0: all it has")->check(CLI::Range(0, 1000));
  app.add_option("--student-config", student_, "JSON of the student (default: the usual one)");
  app.add_option("--teacher", placement_,
                 "where it is: device, host, disk, processors or automatic")
      ->check(CLI::IsMember({"device", "host", "disk", "processors", "automatic"}));
  app.add_option("--weights", weights_, "the teacher's: bf16 or fp8")
      ->check(CLI::IsMember({"bf16", "fp8"}));
  app.add_option("--student-dtype", student_dtype_, "float32 or bfloat16 (default: as the device)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--batch", batch_, "samples of a run")->check(CLI::Range(1, 64));
  app.add_option("--accumulate", runs_, "runs of a step")->check(CLI::Range(1, 64));
  app.add_flag("--gradient-checkpointing", recompute_, "the student's blocks are computed again");
  app.add_flag("--two-programs", two_programs_, "teacher and student one after the other");
  declare_machine(app, machine_, {"gpu", "ram", "json"});
  app.add_option("--steps", steps_, "timed steps, after two that are not")
      ->check(CLI::Range(1, 1000));
  app.add_option("--folder", folder_, "where the file of random weights goes");
  app.add_flag("--kernels", kernels_, "a table of what takes the time, by operation");
}

fit::Request BenchDistill::request() const {
  fit::Request r = {.job = student::FitJob()};
  student::FitJob& j = student::job_of(r);
  const auto preset = wan::find_preset(model_ == "14B" ? "wan2.2-t2v-a14b" : model_);
  if (!preset) fail_unknown("--model", model_, {"14B", "wan2.1-t2v-1.3b"});
  j.pair.teacher = *preset;
  if (layers_ > 0) j.pair.teacher.layers = layers_;
  const train::RunTarget target = train::this_machine(machine_);
  r.profile = j.profile = target.profile;
  r.backend = target.backend;
  j.host_threads = target.host_threads;
  j.gpu = r.backend.device == Device::cuda;
  j.pair.teacher_precision = precision_on(r.backend.device);
  j.pair.side_by_side = !two_programs_;
  student::Job& s = j.pair.student;
  if (!student_.empty()) s.config = student::read_config(student_);
  s.batch = batch_;
  s.runs_per_step = runs_;
  const bool narrow = student_dtype_.empty() ? j.gpu : student_dtype_ == "bfloat16";
  s.precision = precision_on(narrow ? Device::cuda : Device::cpu);
  j.recompute = recompute_;
  for (const auto p : {student::TeacherPlacement::automatic, student::TeacherPlacement::device,
                       student::TeacherPlacement::host, student::TeacherPlacement::disk,
                       student::TeacherPlacement::processors}) {
    if (placement_ == name_of(p)) j.placement = p;
  }
  r.budget = train::resolve_budget(target, machine_);
  return r;
}

void BenchDistill::run() {
  fit::Request r = request();
  student::FitJob& job = student::job_of(r);
  GpuInfo info;
  if (job.gpu) info = open_gpu();
  const RandomWeights weights(
      job.pair.teacher, weights_ == "fp8" ? DType::f8_e4m3 : DType::bf16,
      placement_ == "disk" ? RandomWeights::Blocks::each : RandomWeights::Blocks::alike,
      {.folder = folder_});
  job.teacher = weights.groups();
  Stopwatch watch;
  const fit::PlannedRun planned = fitting_plan(r);
  const std::string policy = text_of(planned.job.as<student::FitJob>().under(planned.policy));
  const double plan_seconds = watch.lap();
  BenchPair bench(planned);
  const double load_seconds = watch.lap();
  bench.step();
  bench.step();
  std::vector<double> times, links, computes, stalls;
  for (std::int64_t i = 0; i < steps_; ++i) {
    const Stopwatch at;
    bench.step();
    times.push_back(at.seconds());
    links.push_back(bench.link());
    computes.push_back(bench.compute());
    stalls.push_back(bench.stalled());
  }
  const auto middle = [](std::vector<double>& v) {
    std::ranges::sort(v);
    return v[v.size() / 2];
  };
  const double seconds = middle(times), link = middle(links), compute = middle(computes);
  const double bound = std::max(link, compute);
  nlohmann::ordered_json j = {{"teacher", job.pair.teacher.name},
                              {"student_parameters", parameter_count(job.pair.student.config)},
                              {"batch", batch_},
                              {"policy", policy},
                              {"ms", seconds * 1e3},
                              {"ms_min", times.front() * 1e3},
                              {"ms_max", times.back() * 1e3},
                              {"link_ms", link * 1e3},
                              {"compute_ms", compute * 1e3},
                              {"stall_ms", middle(stalls) * 1e3},
                              {"over_bound", seconds / bound},
                              {"predicted_ms", planned.seconds_per_step() * 1e3},
                              {"plan_seconds", plan_seconds},
                              {"load_seconds", load_seconds},
                              {"loss", bench.loss()}};
  const MemoryUse memory =
      memory_use(planned, bench.plan(), bench.runner(), job.gpu ? &info : nullptr);
  memory.add_to(j);
  KernelTimes kernels;
  if (kernels_ && job.gpu) {
    kernels = bench.kernels();
    j["kernels"] = kernels.json();
  }
  if (machine_.json) return print(j.dump(2) + "\n");
  print(fmt::format("{} teaches {} parameters, batch {}: {:.1f} ms ({:.1f} to {:.1f})\n",
                    job.pair.teacher.name, parameter_count(job.pair.student.config), batch_,
                    seconds * 1e3, times.front() * 1e3, times.back() * 1e3));
  print(
      fmt::format("link {:.1f} ms, compute {:.1f} ms: {:.2f} x the larger; stall {:.1f} ms, "
                  "predicted {:.1f} ms\n",
                  link * 1e3, compute * 1e3, seconds / bound, j["stall_ms"].get<double>(),
                  planned.seconds_per_step() * 1e3));
  print(policy + "\n");
  print(memory.text());
  print(kernels.table());
}

}  // namespace

std::unique_ptr<Command> bench_distill() { return std::make_unique<BenchDistill>(); }

}  // namespace ballast
