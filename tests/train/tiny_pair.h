#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/to_size.h"
#include "fit/fit.h"
#include "models/student/fit_job.h"
#include "models/wan/weights.h"
#include "plan/runner.h"
#include "tests/support/reference_dit.h"
#include "train/recipes/distill_batches.h"

// A teacher and a student of a few thousand weights.
namespace ballast::train::tiny {

inline wan::Config tiny_teacher() {
  wan::Config c = support::tiny_config();
  c.in_dim = c.out_dim = 4;
  return c;
}

inline student::Config tiny_student() {
  return {.hidden_size = 16,
          .depth = 2,
          .num_heads = 2,
          .num_channels = 3,
          .image_size = 16,
          .patch_size = 4,
          .text_max_length = 7,
          .text_dim = 20,
          .teacher_channels = 4};
}

inline constexpr std::int64_t kTokens = 5;  // of every prompt

// Distillation batches that depend on nothing but their number.
inline void fill_distill_batch(std::int64_t number, std::span<DistillSample> distill_batch) {
  for (std::size_t i = 0; i < distill_batch.size(); ++i) {
    DistillSample& l = distill_batch[i];
    const std::string n = fmt::format("{}.{}", number, i);
    const auto put = [&](const std::string& site, std::span<float> to) {
      std::ranges::copy(support::normal_values(site + n, std::ssize(to), 1), to.begin());
    };
    put("latent", l.latent);
    put("text", l.text);
    std::ranges::fill(l.context, 0.0f);
    put("context", l.context.first(kTokens * l.text.size()));
    l.t = 100 + 37 * static_cast<double>(number) + static_cast<double>(i);
  }
}

struct TinyPair {
  explicit TinyPair(const MemoryPolicy& policy = {}, bool side_by_side = true,
                    std::int64_t batch = 2) {
    student::FitJob& job = student::job_of(request);
    job.pair.teacher = tiny_teacher();
    job.pair.teacher_policy = policy;
    job.pair.side_by_side = side_by_side;
    job.pair.student.config = tiny_student();
    job.pair.student.batch = batch;
    job.teacher = weight_groups(job.pair.teacher, file, names);
    request.backend = {.device = Device::cpu, .threads = 2};
    request.profile.gemm_flops = request.profile.attention_flops = 1e10;
    request.profile.attention_backward_flops = 1e10;
    request.profile.memory_bandwidth = request.profile.upload_bandwidth = 1e9;
    request.profile.download_bandwidth = request.profile.disk_bandwidth = 1e9;
    job.profile = request.profile;
    request.budget = {.gpu = Bytes{1u << 30}, .host = Bytes{2u << 30}, .disk = {}};
  }
  const std::string& path() {
    static const support::TinyCheckpoint kFile(tiny_teacher());
    static const std::string kPath = kFile.path();
    return kPath;
  }

  WeightFiles file = WeightFiles::open(path());
  wan::TensorMap names = wan::TensorMap(file);
  fit::Request request = {.job = student::FitJob()};
};

// The pair as it was planned.
inline student::PairJob pair_of(const fit::PlannedRun& planned) {
  return planned.job.as<student::FitJob>().under(planned.policy);
}

inline std::vector<float> weight_of(const std::string& name, const Shape& shape) {
  return support::parameter_values("student." + name, shape);
}

// A loaded pair whose student has the weights above.
class PairRun {
 public:
  explicit PairRun(TinyPair& tiny) {
    set_.backend = tiny.request.backend;
    const student::FitJob& job = student::job_of(tiny.request);
    pair_.emplace(set_, job.pair, job.teacher, job.profile);
    plan_ = plan_memory(set_);
    runner_.emplace(set_, plan_);
    distill_batches_.emplace(*pair_, *runner_, fill_distill_batch, TeacherInput::repeated);
    distill_batches_->load();
    for (const student::Parameter& p : student().parameters()) {
      const std::vector<float> v = weight_of(p.name, set_.spec(p.value).shape);
      runner_->write(p.value, std::as_bytes(std::span(v)));
    }
    runner_->run("init_state");
  }
  void step(std::int64_t number) {
    runner_->run(student::Student::kZero);
    distill_batches_->learn(
        number, [&](const char* program) { runner_->run(program, {.step = number + 1}); });
    loss = *runner_->view(student().loss()).as<double>();
    runner_->run("grad_norm");
  }
  void update(std::int64_t number) {
    runner_->run("update", {.step = number + 1, .learning_rate = 0.01});
  }
  std::vector<float> get(Buffer b) {
    std::vector<float> v(to_size(set_.spec(b).shape.elements()));
    runner_->read(b, std::as_writable_bytes(std::span(v)));
    return v;
  }
  const student::Student& student() const { return pair_->student(); }
  const student::Pair& pair() const { return *pair_; }
  const MemoryPlan& plan() const { return plan_; }
  const Runner& runner() const { return *runner_; }
  double loss = 0;

 private:
  ProgramSet set_;
  std::optional<student::Pair> pair_;
  MemoryPlan plan_;
  std::optional<Runner> runner_;
  std::optional<DistillBatches> distill_batches_;
};

// Two steps; all weights after them.
inline std::vector<float> two_steps(TinyPair pair) {
  PairRun run(pair);
  std::vector<float> all;
  for (std::int64_t n = 0; n < 2; ++n) {
    run.step(n);
    run.update(n);
    all.push_back(static_cast<float>(run.loss));
  }
  for (const student::Parameter& p : run.student().parameters()) {
    const std::vector<float> v = run.get(p.value);
    all.insert(all.end(), v.begin(), v.end());
  }
  EXPECT_EQ(run.runner().high_water(Tier::device), run.plan().peak_of(Tier::device));
  return all;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace ballast::train::tiny
