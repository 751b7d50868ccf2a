// A smaller transformer that learns the answers of a larger one.

#include <gtest/gtest.h>

#include <cmath>

#include "core/to_size.h"
#include "models/wan/recognise.h"
#include "tests/ref/dit.h"
#include "tests/support/errors.h"
#include "tests/support/reference_dit.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"

namespace ballast::train {
namespace {

using support::difference;
using support::RunTrace;
using support::TinyTraining;
using support::trace_of;
using support::widened;

constexpr const char* kStudent = "layers = 1\ndim = 128\nffn_dim = 96\n";
constexpr const char* kDistillOptimizer = "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";

wan::Config teacher_config() {
  wan::Config c = support::trainable_config(2);
  c.dim = 256;
  c.heads = 2;
  return c;
}

class TaughtRun : public ::testing::Test {
 protected:
  TaughtRun() : training_(teacher_config()) {
    training_.add_clips(4, {4, 1, 4, 4});
    data::write_text_rows(data::empty_caption_path(training_.path("clips")), "wan",
                          {.tokens = 1, .dim = 8, .rows = support::normal_values("empty", 8, 1)},
                          {.durability = Durability::process});
  }

  std::string config(const std::string& distill = kStudent, const std::string& extra = "",
                     const std::string& model = "") {
    return training_.write_config(
        fmt::format("epochs = 1\ngradient_accumulation_steps = {}\n{}", samples_, extra),
        model + kDistillOptimizer + "[distill]\nmethod = 'mse'\n" + distill);
  }
  static support::Variant resident() { return {"resident", find_policy("resident")}; }

  TinyTraining training_;
  int samples_ = 2;  // of a step
};

// The first `rows` and `columns` of a matrix of so many columns, with the factor of its inputs.
std::vector<double> cut(const std::vector<double>& from, std::int64_t width, std::int64_t rows,
                        std::int64_t columns, bool scaled) {
  const double factor =
      scaled ? std::sqrt(static_cast<double>(width) / static_cast<double>(columns)) : 1;
  std::vector<double> to;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t k = 0; k < columns; ++k) {
      to.push_back(factor * from[to_size(r * width + k)]);
    }
  }
  return to;
}

// A student of one block and one head by the rule of docs/distillation.md.
ref::Dit student_of(ref::Dit& teacher, const wan::Config& student) {
  std::map<std::string, std::vector<double>> weights;
  each_parameter(student, [&](int, const std::string& name, const Shape& shape) {
    const std::vector<double>& from = teacher.weights().at(name);
    std::int64_t rows = shape[0], columns = shape.elements() / shape[0];
    std::int64_t width = columns;
    if (name.ends_with("modulation")) {
      rows = shape[1], columns = 128, width = 256;
    } else if (name.starts_with("time_projection")) {
      // Six parts of 256 rows, of which 128 stay.
      width = name.ends_with("weight") ? 256 : 1;
      std::vector<double>& to = weights[name];
      for (std::int64_t p = 0; p < 6; ++p) {
        const auto begin = from.begin() + p * 256 * width;
        const std::vector<double> part(begin, begin + 256 * width);
        const auto some = cut(part, width, 128, width == 256 ? 128 : 1, width == 256);
        to.insert(to.end(), some.begin(), some.end());
      }
      return;
    } else if (columns == 128) {
      width = 256;
    } else if (columns == 96) {
      width = 160;
    }
    weights[name] = cut(from, width, rows, columns,
                        shape.rank() > 1 && width > columns && !name.ends_with("modulation"));
  });
  return {student, std::move(weights)};
}

TEST_F(TaughtRun, TheFirstLossIsThatOfTheFormulas) {
  if (support::test_device() == Device::cuda) GTEST_SKIP() << "bf16 is too coarse";
  samples_ = 1;  // 512 rows of text take seconds in double
  const TrainOutcome done = support::train_in_process(
      config(std::string(kStudent) + "guidance = 3\n", "max_steps = 1"), resident());
  const RunHistory history = read_run_log(done.folder + "/" + std::string(kRunLogFile));
  ASSERT_EQ(history.steps.size(), 1u);
  const StepRecord& step = history.steps[0];

  wan::Config small = teacher_config();
  small.layers = 1, small.dim = 128, small.heads = 1, small.ffn_dim = 96;
  ref::Dit teacher = support::reference_dit(teacher_config());
  const ref::Dit student = student_of(teacher, small);
  double sum = 0;
  for (std::size_t i = 0; i < step.samples.size(); ++i) {
    std::string id = step.samples[i];
    id = id.substr(id.rfind('/') + 1);
    ref::DitSample s;
    s.size = {1, 4, 4};
    s.timestep_row.assign(4, 0);
    s.latent = widened(support::normal_values(id, 64, 1));
    const RandomSource noise = random_source(0, "noise", 1, fmt::format("sample.{}", i));
    for (std::size_t e = 0; e < 64; ++e) {
      s.latent[e] = (1 - step.t[i]) * s.latent[e] + step.t[i] * normal(noise, e);
    }
    const auto text = [&](const std::string& name, std::int64_t tokens) {
      s.context = widened(support::normal_values(name, tokens * 8, 1));
      s.context.resize(512 * 8, 0.0);
    };
    text("empty", 1);
    const auto u = teacher.forward(s, {1000 * step.t[i]});
    text(id + ".text", 3);
    const auto v = teacher.forward(s, {1000 * step.t[i]});
    const auto own = student.forward(s, {1000 * step.t[i]});
    for (std::size_t e = 0; e < 64; ++e) {
      const double d = own[e] - (u[e] + 3 * (v[e] - u[e]));
      sum += d * d / 64;
    }
  }
  EXPECT_NEAR(step.loss, sum, 1e-4 * sum);
}

TEST_F(TaughtRun, HasTheSameBitsUnderEveryPolicyAndGoesOn) {
  const std::string path = config(std::string(kStudent) + "guidance = 2\n");
  const RunTrace whole = trace_of(path, resident());
  ASSERT_EQ(whole.steps.size(), 2u);
  MemoryPolicy lean = *find_policy("recompute");
  lean.streaming = Streaming{.stream_from = StreamSource::host};
  lean.samples_per_pass = 1;
  // The teacher streams from its file.
  PreparedRun run = prepare_run(read_config(path), support::small_machine(), Purpose::train);
  run.request.policy = lean;
  wan::job_of(run.request).teacher->policy =
      MemoryPolicy{.name = "stream", .streaming = Streaming{.slots = 1, .matrices_ahead = 1}};
  auto planned = fit::find_plan(run.request);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(planned));
  const TrainOutcome streamed =
      train(std::move(run), std::move(std::get<fit::PlannedRun>(planned)), {});
  EXPECT_EQ(difference(whole, support::read_trace(streamed.folder)), "");

  const TrainOutcome first = support::train_in_process(
      config(std::string(kStudent) + "guidance = 2\n", "max_steps = 1"), resident());
  const RunTrace second =
      trace_of(config(std::string(kStudent) + "guidance = 2\n"),
               {"second", find_policy("resident"), 1, {{"resume", {first.folder}, "--resume"}}});
  EXPECT_EQ(whole.steps, second.steps);
  for (const auto& [name, bytes] : whole.files) EXPECT_EQ(second.files.at(name), bytes) << name;

  const WeightFiles saved = WeightFiles::open(streamed.folder + "/epoch1/model.safetensors");
  const wan::Config model = recognised_config(saved, wan::TensorMap(saved), saved.path());
  EXPECT_EQ(model.layers, 1);
  EXPECT_EQ(model.dim, 128);
}

TEST_F(TaughtRun, TheTimestepChoosesTheTeachersExpert) {
  const std::string student = config(kStudent, "max_steps = 1");
  const TrainOutcome made = support::train_in_process(student, resident());
  const std::string from =
      fmt::format("student_path = '{}/step1/model.safetensors'\n", made.folder);
  const auto first_step = [&](const char* low, const char* high, const char* times) {
    const std::filesystem::path folder = training_.path(std::string(low) + "_" + high);
    for (const auto& [name, kind] :
         {std::pair("low_noise_model", low), {"high_noise_model", high}}) {
      std::filesystem::create_directories(folder / name);
      const support::TinyCheckpoint weights(teacher_config(), DType::f32, kind);
      std::filesystem::copy(weights.path(), folder / name / "model.safetensors",
                            std::filesystem::copy_options::overwrite_existing);
    }
    training_.use_model(folder.string());
    return trace_of(config(from, "max_steps = 1\nexperts = 'both'\n",
                           std::string("boundary = 0.5\n") + times),
                    resident())
        .steps.at(1);
  };
  const char *noisy = "min_t = 0.6\n", *clean = "max_t = 0.4\n";
  EXPECT_EQ(first_step("a.", "b.", noisy), first_step("b.", "b.", noisy));
  EXPECT_EQ(first_step("a.", "b.", clean), first_step("a.", "a.", clean));
}

TEST_F(TaughtRun, AnotherTeacherMakesAnotherFirstStudent) {
  const auto first_student = [&] {
    return prepare_run(read_config(config()), support::small_machine(), Purpose::train)
        .checkpoints[0]
        .path();
  };
  const std::string first = first_student();
  EXPECT_EQ(first_student(), first);
  const support::TinyCheckpoint other(teacher_config(), DType::f32, "b.");
  training_.use_model(other.path());
  const std::string second = first_student();
  EXPECT_NE(test::read_whole(second), test::read_whole(first));
}

TEST_F(TaughtRun, IsPlannedWithItsTeacher) {
  PreparedRun run = prepare_run(read_config(config()), support::small_machine(), Purpose::plan);
  EXPECT_TRUE(run.checkpoints.empty()) << "a plan writes nothing";
  const auto all = fit::find_plan(run.request);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(all));
  const auto& planned = std::get<fit::PlannedRun>(all);
  EXPECT_EQ(planned.job.as<wan::FitJob>().teacher->policy->stream().slots, 0);
  // Somewhat less than that, and the teacher streams. The processors' device memory is the host's.
  Bytes& budget =
      run.request.backend.device == Device::cuda ? run.request.budget.gpu : run.request.budget.host;
  budget = planned.needed(Tier::device) - Bytes{500'000};
  if (run.request.backend.device == Device::cpu) budget += planned.needed(Tier::host);
  run.request.policy = planned.policy;
  const auto less = fit::find_plan(run.request);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(less));
  EXPECT_GT(std::get<fit::PlannedRun>(less).job.as<wan::FitJob>().teacher->policy->stream().slots,
            0);
  run.request.budget.gpu = run.request.budget.host = Bytes{1 << 20};
  EXPECT_TRUE(std::holds_alternative<Refusal>(fit::find_plan(run.request)));
}

TEST_F(TaughtRun, StudentsThatMakeNoSenseAreRefused) {
  const auto prepared = [&](const std::string& distill, const std::string& model = "") {
    return prepare_run(read_config(config(distill, "", model)), support::small_machine(),
                       Purpose::plan);
  };
  EXPECT_FAILS(prepared(""), ErrorCode::input, "as large as its teacher");
  EXPECT_FAILS(prepared("layers = 3\n"), ErrorCode::input, "layers = 3");
  EXPECT_FAILS(prepared("dim = 100\n"), ErrorCode::input, "multiple of 128");
  EXPECT_FAILS(prepared("layers = 1\n", "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"),
               ErrorCode::input, "trained whole");
}

}  // namespace
}  // namespace ballast::train
