// Whole runs of DMD2: what is trained depends on the configuration alone, and what is saved can be
// sampled with.

#include <gmock/gmock.h>

#include "core/to_size.h"
#include "infer/video_sampler.h"
#include "models/wan/weights.h"
#include "tests/support/errors.h"
#include "tests/support/test_device.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"

namespace ballast::train {
namespace {

using support::difference;
using support::RunTrace;
using support::TinyTraining;
using support::trace_of;
using support::Variant;

constexpr const char* kDistill = "[distill]\nmethod = 'dmd2'\nstudent_every = 2\n";
constexpr const char* kWarm =
    "[distill]\nmethod = 'dmd2'\nstudent_every = 2\nregression_steps = 1\nteacher_steps = 2\n";

class Dmd2Run : public ::testing::Test {
 protected:
  Dmd2Run() : training_(support::trainable_config(2)) {
    training_.add_clips(4, {4, 1, 4, 4});
    const std::vector<float> text = support::normal_values("empty", training_.config().text_dim, 1);
    data::write_text_rows(data::empty_caption_path(training_.path("clips")), "wan",
                          {.tokens = 1, .dim = training_.config().text_dim, .rows = text},
                          {.durability = Durability::process});
  }

  // Two samples in a step, two steps in an epoch.
  std::string config(const std::string& distill = kDistill, const std::string& extra = "") {
    return training_.write_config("epochs = 2\ngradient_accumulation_steps = 2\n" + extra,
                                  "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                                  "[optimizer]\ntype = 'adamw'\nlr = 1e-2\nbetas = [0.0, 0.999]\n" +
                                      distill);
  }
  static Variant with(const char* policy, std::int64_t samples, bool on_host = false) {
    MemoryPolicy p = *find_policy(policy);
    p.samples_per_pass = samples;
    p.state_on_host = on_host;
    return {policy, p};
  }

  TinyTraining training_;
};

TEST_F(Dmd2Run, HasTheSameBitsUnderEveryPolicy) {
  const RunTrace resident = trace_of(config(kWarm), with("resident", 0));
  EXPECT_EQ(resident.steps.size(), 4u);
  ASSERT_EQ(resident.files.size(), 2u);
  for (const Variant& v : {with("stream1", 1), with("offload", 0, true)}) {
    EXPECT_EQ(difference(resident, trace_of(config(kWarm), v)), "") << v.name;
  }
  MemoryPolicy from_host = *find_policy("stream2");
  from_host.streaming->stream_from = StreamSource::host;
  from_host.streaming->matrices_ahead = 2;
  from_host.samples_per_pass = 1;
  EXPECT_EQ(difference(resident, trace_of(config(kWarm), {"from host", from_host, 1})), "");
}

TEST_F(Dmd2Run, GoesOnWhereItStopped) {
  const MemoryPolicy resident = *find_policy("resident");
  const RunTrace whole = trace_of(config(kWarm), {"whole", resident});
  for (const int stop : {1, 2}) {
    const TrainOutcome first = support::train_in_process(
        config(kWarm, fmt::format("max_steps = {}", stop)), {"first", resident});
    const RunTrace second =
        trace_of(config(kWarm), {"second", resident, 1, {{"resume", {first.folder}, "--resume"}}});
    EXPECT_EQ(whole.steps, second.steps) << "stopped after " << stop;
    for (const auto& [name, bytes] : whole.files) {
      EXPECT_EQ(second.files.at(name), bytes) << name << " of a run stopped after " << stop;
    }
  }
}

// The file of a run of so many steps.
std::string saved_lora(const std::string& config, int steps) {
  return support::train_in_process(config, {"resident", find_policy("resident")}).folder +
         fmt::format("/step{}/adapter_model.safetensors", steps);
}

TEST_F(Dmd2Run, SavesAStudentThatCanBeSampledWith) {
  const wan::Config& model = training_.config();
  const WeightFiles file = WeightFiles::open(training_.model_path());
  const std::vector<float> text = support::normal_values("clip0.text", 3 * model.text_dim, 1);
  const auto sampled = [&](const wan::LoraReader* lora) {
    infer::VideoJob job;
    wan::job_of(job.request).dit.config = model;
    wan::job_of(job.request).experts = {weight_groups(model, file, wan::TensorMap(file))};
    const RunTarget machine = support::small_machine();
    job.request.backend = machine.backend;
    job.request.profile = machine.profile;
    wan::job_of(job.request).dit.precision = precision_on(machine.backend.device);
    job.request.policy = find_policy("resident");
    job.request.budget = {.gpu = 1_GiB, .host = 1_GiB, .disk = 1_GiB};
    job.sampler = infer::distilled_steps();
    job.latent = {1, 4, 4};
    job.guidance = {1, 1};
    if (lora != nullptr) job.loras = {{lora, 1, -1}};
    auto outcome = fit::find_plan(fit_request(job));
    return infer::VideoSampler(job, std::move(std::get<fit::PlannedRun>(outcome)))
        .run({.prompt = text, .seed = 3});
  };
  // The student's first step is the second.
  const wan::LoraReader none =
      wan::LoraReader::open(saved_lora(config(kDistill, "max_steps = 1"), 1), &model);
  const wan::LoraReader one =
      wan::LoraReader::open(saved_lora(config(kDistill, "max_steps = 2"), 2), &model);
  EXPECT_EQ(one.modules().size(), 20u);
  EXPECT_EQ(one.dialect(), wan::LoraDialect::comfy);
  EXPECT_EQ(one.metadata().at("ballast.distilled"), "dmd2");
  EXPECT_EQ(one.metadata().at("ballast.timesteps"), "1000,750,500,250");
  EXPECT_EQ(one.metadata().at("ballast.shift"), "5");
  const std::vector<float> plain = sampled(nullptr);
  // On a GPU products with an adapter are longer and may be added up in another order.
  const double rounding = support::test_device() == Device::cpu ? 0 : 0.02;
  EXPECT_THAT(sampled(&none), ::testing::Pointwise(::testing::DoubleNear(rounding), plain));
  EXPECT_NE(sampled(&one), plain);
}

TEST_F(Dmd2Run, TheCriticsRateIsItsOwn) {
  const std::string still = std::string(kDistill) + "critic_lr_ratio = 0\n";
  const auto trace = [&](const std::string& distill) {
    return trace_of(config(distill, "max_steps = 2"), with("resident", 0));
  };
  const RunTrace a = trace(kDistill), b = trace(still);
  EXPECT_EQ(a.steps.at(1), b.steps.at(1));
  EXPECT_NE(a.steps.at(2), b.steps.at(2));
}

TEST_F(Dmd2Run, IsPlannedAndRefusedLikeTraining) {
  const auto prepared = [&] {
    return prepare_run(read_config(config()), support::small_machine(), Purpose::plan);
  };
  PreparedRun run = prepared();
  EXPECT_NE(run.title.find("distilled to 4 steps"), std::string::npos) << run.title;
  const auto outcome = fit::find_plan(run.request);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(outcome));
  const auto& planned = std::get<fit::PlannedRun>(outcome);
  double least = 0;  // what every step has
  for (const char* program : {"step.critic", "predict", "update.critic"}) {
    const auto p = to_size(planned.set.program_index(program));
    least += planned.times[p].seconds;
  }
  EXPECT_GT(planned.seconds_per_step(), least);
  run.request.budget.gpu = run.request.budget.host = Bytes{1 << 20};
  const auto refused = fit::find_plan(run.request);
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_FALSE(possible_changes(run, std::get<Refusal>(refused)).empty());
}

TEST_F(Dmd2Run, ConfigurationsThatMakeNoSenseAreRefused) {
  const auto prepared = [&](const std::string& distill) {
    return prepare_run(read_config(config(distill)), support::small_machine(), Purpose::train);
  };
  const auto with = [](const char* line) { return std::string(kDistill) + line + "\n"; };
  EXPECT_FAILS(prepared("[distill]\nmethod = 'gan'\n"), ErrorCode::input, "dmd2");
  EXPECT_FAILS(prepared(with("steps = [500, 750]")), ErrorCode::usage, "750");
  EXPECT_FAILS(prepared(with("steps = []")), ErrorCode::usage, "0 listed");
  EXPECT_FAILS(prepared(with("min_t = 0.99")), ErrorCode::input, "min_t");
  EXPECT_FAILS(prepared(with("rollout = 'sideways'")), ErrorCode::input, "data_latent");
  EXPECT_FAILS(prepared("[distill]\nmethod = 'dmd2'\nstudent_every = 0\n"), ErrorCode::input,
               "student_every");
  const std::string full = training_.write_config(
      "epochs = 1", std::string("[optimizer]\ntype = 'adamw'\nlr = 1e-2\n") + kDistill);
  EXPECT_FAILS(read_config(full), ErrorCode::input, "adapter");
  std::filesystem::remove(data::empty_caption_path(training_.path("clips")));
  EXPECT_FAILS(prepared(kDistill), ErrorCode::input, "empty caption");
  prepared(with("guidance = 1"));
}

}  // namespace
}  // namespace ballast::train
