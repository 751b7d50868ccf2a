// Where the optimizer's state waits changes no bit of an update.

#include "nn/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "core/convert.h"
#include "core/to_size.h"
#include "nn/scratch_state.h"
#include "plan/predict.h"
#include "plan/runner.h"
#include "tests/support/sample_tensor.h"

namespace ballast {
namespace {

constexpr int kSteps = 3;

struct Job {
  OptimizerOptions options;
  DType weights = DType::f32;  // bf16: with an f32 master, unless rounding makes up for it
  Tier state = Tier::device;
  RunnerDebug debug = {};
};

// Four tensors, one of them smaller than a block of the disk, with a ring that is smaller than
// their states.
class Updates {
 public:
  explicit Updates(const Job& job) {
    set_.backend = {.device = Device::cpu, .threads = 2};
    declare(job);
    plan_ = plan_memory(set_);
    runner_.emplace(set_, plan_, RunnerOptions{.disk_readers = 2, .debug = job.debug});
    fill("weight", 0);
    *runner_->view(factor_).as<float>() = 0.5f;
    runner_->run("init_state");
    for (int step = 1; step <= kSteps; ++step) {
      fill("gradient", step);
      runner_->run("update", {.step = step, .seed = 5, .learning_rate = 1e-2});
    }
  }

  std::map<std::string, std::vector<std::byte>> results() {
    std::map<std::string, std::vector<std::byte>> all;
    const auto take = [&](const std::string& name, Buffer b) {
      all[name].resize(runner_->spec(b).bytes);
      runner_->read(b, all[name]);
    };
    for (const UpdatedTensor& t : tensors_) {
      take(t.name, t.value);
      if (t.narrow) take(t.name + ".narrow", t.narrow);
      for (std::size_t s = 0; s < t.states.size(); ++s) {
        take(t.name + t.specs[s].suffix, t.states[s]);
      }
    }
    return all;
  }
  // Narrow copies made from what is restored.
  void restore() {
    for (const UpdatedTensor& t : tensors_) {
      if (!t.narrow) continue;
      runner_->write(t.narrow, std::vector<std::byte>(runner_->spec(t.narrow).bytes));
    }
    runner_->run("after_restore");
  }
  float value_norm() {
    runner_->run(kValueNorm);
    return *runner_->view(norm_).as<float>();
  }
  // One element of what the forward pass reads becomes `x`, and the master with it.
  void spoil(std::size_t tensor, std::int64_t element, float x) {
    const UpdatedTensor& t = tensors_[tensor];
    const auto put = [&](Buffer b) {
      std::vector<std::byte> bytes(size_of(runner_->spec(b).dtype));
      convert(&x, DType::f32, bytes.data(), runner_->spec(b).dtype, 1);
      runner_->write_part(b, static_cast<std::uint64_t>(element) * bytes.size(), bytes);
    };
    put(t.value);
    if (t.narrow) put(t.narrow);
  }
  Runner& runner() { return *runner_; }
  const MemoryPlan& plan() const { return plan_; }

 private:
  void declare(const Job& job) {
    ProgramBuilder init(set_, "init_state");
    StagingRing ring(init, 3 * kDiskAlignment);
    factor_ = init.persistent("factor", {1}, DType::f32, Role::input);
    norm_ = init.persistent("norm", {1}, DType::f32, Role::output, Tier::host);
    for (const Shape& shape : {Shape{70, 130}, Shape{5}, Shape{33, 160}, Shape{64, 512}}) {
      UpdatedTensor t;
      t.name = "t" + std::to_string(tensors_.size());
      t.state_on_disk = job.state == Tier::disk;
      const Tier near = job.state == Tier::host ? Tier::host : Tier::device;
      t.gradient = init.persistent(t.name + ".grad", shape, DType::f32, Role::gradient, near);
      t.value = init.persistent(t.name, shape, job.weights, Role::weights);
      if (job.weights != DType::f32 && job.options.rounding == UpdateRounding::nearest) {
        t.narrow = t.value;
        t.value = persistent_state(init, t.name + ".master", shape, DType::f32, t.state_tier(init));
      }
      declare_states(init, job.options, t);
      tensors_.push_back(std::move(t));
    }
    record_initial_state(init, tensors_, &ring);
    ProgramBuilder restored(set_, "after_restore");
    record_restored(restored, tensors_, &ring);
    {
      ProgramBuilder update(set_, "update");
      record_update(update, tensors_, factor_, job.options, &ring);
    }
    ProgramBuilder values(set_, kValueNorm);
    record_value_norm(values, tensors_, factor_, norm_);
  }

  void fill(const std::string& what, int step) {
    for (const UpdatedTensor& t : tensors_) {
      const Buffer b = what == "gradient" ? t.gradient : t.narrow ? t.narrow : t.value;
      const TensorView v = runner_->view(b);
      for (std::int64_t i = 0; i < v.elements(); ++i) {
        const float x = std::sin(static_cast<float>(i * (step + 3) + step));
        if (v.dtype == DType::f32) {
          v.as<float>()[i] = x;
        } else {
          v.as<std::uint16_t>()[i] = support::bf16_bits(x);
        }
      }
    }
  }

  ProgramSet set_;
  MemoryPlan plan_;
  std::vector<UpdatedTensor> tensors_;
  Buffer factor_, norm_;
  std::optional<Runner> runner_;
};

std::vector<Job> jobs() {
  std::vector<Job> all;
  for (const OptimizerKind kind :
       {OptimizerKind::adamw, OptimizerKind::adamw_optimi, OptimizerKind::stableadamw,
        OptimizerKind::adamw8bit, OptimizerKind::adamw8bit_kahan, OptimizerKind::adafactor,
        OptimizerKind::sgd}) {
    for (const UpdateRounding rounding :
         {UpdateRounding::nearest, UpdateRounding::kahan, UpdateRounding::stochastic}) {
      for (const DType weights : {DType::f32, DType::bf16}) {
        OptimizerOptions o;
        o.kind = kind;
        o.rounding = rounding;
        o.momentum = 0.9;
        o.ema_decay = 0.9;
        all.push_back({o, weights});
      }
    }
  }
  return all;
}

// A piece comes while the one before goes: beside each other they take little more than one alone.
TEST(UpdateFromHost, UsesBothWaysOfTheLinkAtOnce) {
  ProgramSet set;
  set.executable = false;
  set.backend = {.device = Device::cuda};
  ProgramBuilder init(set, "init_state");
  UpdatedTensor t;
  t.name = "t";
  const Shape shape = {64, 1 << 20};
  const auto on_host = [&](const char* name, DType dtype, Role role) {
    return init.persistent(name, shape, dtype, role, Tier::host);
  };
  t.gradient = on_host("grad", DType::f32, Role::gradient);
  t.value = on_host("master", DType::f32, Role::optimizer);
  t.narrow = on_host("weight", DType::bf16, Role::weights);
  const Buffer factor = init.persistent("factor", {1}, DType::f32, Role::input);
  const OptimizerOptions options;
  declare_states(init, options, t);
  ProgramBuilder update(set, "update");
  record_update(update, {&t, 1}, factor, options);
  MachineProfile p = *find_profile("h200");
  p.upload_bandwidth = p.download_bandwidth = 1e9;
  const PredictedTime time = predict(set, plan_memory(set), 1, p);
  const double there = time.busy[to_size(Lane::upload)];
  const double back = time.busy[to_size(Lane::download)];
  EXPECT_GT(back, 0.8 * there);
  EXPECT_LT(time.seconds, 0.62 * (there + back));
}

TEST(UpdateFromDisk, GivesTheSameBitsAsOnTheDeviceForEveryOptimizer) {
  std::uint32_t seed = 0;
  for (Job job : jobs()) {
    SCOPED_TRACE(fmt::format("{} {} {}", name_of(job.options.kind),
                             static_cast<int>(job.options.rounding), name_of(job.weights)));
    const auto expected = Updates(job).results();
    job.state = Tier::disk;
    Updates disk(job);
    EXPECT_EQ(disk.results(), expected);
    EXPECT_GT(disk.plan().peak_of(Tier::disk).count, 0u);
    EXPECT_EQ(disk.runner().high_water(Tier::disk), disk.plan().peak_of(Tier::disk));
    disk.restore();
    EXPECT_EQ(disk.results(), expected);
    job.debug = {.order = Order::random, .random_seed = ++seed, .poison = true};
    EXPECT_EQ(Updates(job).results(), expected);
  }
}

// The test above can fail: reads and writes of one place on disk are ordered by the plan alone.
TEST(UpdateFromDisk, GoesWrongWithoutWaits) {
  Job job = jobs().front();
  const auto expected = Updates(job).results();
  job.state = Tier::disk;
  int wrong = 0;
  for (std::uint32_t seed = 0; seed < 5; ++seed) {
    job.debug = {.order = Order::random, .random_seed = seed, .ignore_waits = true};
    wrong += Updates(job).results() != expected;
  }
  EXPECT_GT(wrong, 0);
}

// While a piece is at work the disk reads the next one.
TEST(UpdateFromDisk, ReadsAPieceAhead) {
  ProgramSet set;
  {
    ProgramBuilder pb(set, "update");
    StagingRing ring(pb, 64 << 10);
    std::vector<UpdatedTensor> tensors;
    for (const char* name : {"a", "b"}) {
      UpdatedTensor& t = tensors.emplace_back();
      t.name = name;
      t.state_on_disk = true;
      t.value = pb.persistent(name, {100}, DType::f32, Role::weights);
      t.gradient = pb.persistent("g", {100}, DType::f32, Role::gradient);
      declare_states(pb, {}, t);
    }
    const Buffer factor = pb.persistent("factor", {1}, DType::f32, Role::input);
    record_update(pb, tensors, factor, {}, &ring);
  }
  std::string order;
  for (const Instruction& i : set.programs[0].instructions) {
    if (i.lane == Lane::disk) order += i.name == "read_state" ? 'r' : 'w';
    if (i.lane == Lane::compute) order += 'u';
  }
  EXPECT_EQ(order, "rrrruwwuww");
}

TEST(ValueNorm, IsNoNumberWhereverAValueIsNone) {
  for (const Tier state : {Tier::device, Tier::host, Tier::disk}) {
    for (const DType weights : {DType::f32, DType::bf16}) {
      Updates u({.options = {}, .weights = weights, .state = state});
      const float before = u.value_norm();
      ASSERT_TRUE(std::isfinite(before));
      EXPECT_GT(before, 1.0f);
      EXPECT_EQ(u.value_norm(), before);
      constexpr std::int64_t kLast[] = {70 * 130 - 1, 4, 33 * 160 - 1, 64 * 512 - 1};
      for (std::size_t t = 0; t < 4; ++t) {
        for (const std::int64_t at : {std::int64_t{0}, kLast[t]}) {
          for (const float bad :
               {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
            u.spoil(t, at, bad);
            EXPECT_FALSE(std::isfinite(u.value_norm())) << name_of(state) << ' ' << t << ' ' << at;
            u.spoil(t, at, 3e38f);
            EXPECT_TRUE(std::isfinite(u.value_norm()));
            u.spoil(t, at, 0.5f);
          }
        }
      }
      EXPECT_TRUE(std::isfinite(u.value_norm()));
    }
  }
}

}  // namespace
}  // namespace ballast
