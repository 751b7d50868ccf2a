// Random jobs of every model with the plans that were stored for them (tests/golden/plans.jsonl):
// plans may become faster, and fit where they did not, never the other way round.
//
// tools/draw_plan_jobs.py draws such jobs. With BALLAST_STORE_PLANS=1 what this build plans for the
// jobs of the file is stored there: only where an older plan was wrong.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/student/pair_fit.h"
#include "models/t5/fit.h"
#include "models/t5/weights.h"
#include "models/wan/fit.h"
#include "models/wan/weights.h"
#include "models/wan_vae/training_fit.h"
#include "models/wan_vae/weights.h"
#include "plan/recording_cost.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

struct Outcome {
  std::string policy;  // empty: refused
  double seconds = 0;  // predicted for a step
  Bytes device = {}, host = {}, disk = {};
  std::uint64_t instructions = 0;  // recorded for the answer
};

void to_json(Json& json, const Outcome& o) {
  if (o.policy.empty()) {
    json = {{"fits", false}, {"instructions", o.instructions}};
    return;
  }
  json = {{"fits", true},
          {"seconds", o.seconds},
          {"policy", o.policy},
          {"device", o.device.count},
          {"host", o.host.count},
          {"disk", o.disk.count},
          {"instructions", o.instructions}};
}

Bytes bytes_of(const Json& job, const char* key) { return {job.at(key).get<std::uint64_t>()}; }

DType dtype_of(const std::string& name) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3}) {
    if (name == name_of(t)) return t;
  }
  throw std::invalid_argument(name);
}

template <class Enum>
Enum enum_of(const std::string& name, std::initializer_list<std::pair<const char*, Enum>> all) {
  for (const auto& [known, value] : all) {
    if (name == known) return value;
  }
  throw std::invalid_argument(name);
}

// The machine and the budgets, which requests of all models have under the same names.
template <class Request>
void set_machine(Request& r, const Json& job) {
  r.profile = *find_profile(job.at("target").get<std::string>());
  r.backend = {.device = Device::cuda,
               .threads = 8,
               .sm = r.profile.sm,
               .deterministic = job.value("deterministic", true)};
  r.budget = {
      .gpu = bytes_of(job, "gpu"), .host = bytes_of(job, "ram"), .disk = bytes_of(job, "disk")};
}

OptimizerOptions optimizer_of(const Json& job) {
  OptimizerOptions o;
  o.kind = find_optimizer(job.at("optimizer").get<std::string>()).value();
  o.state_dtype = dtype_of(job.value("state", "f32"));
  o.rounding = enum_of<UpdateRounding>(job.value("rounding", "nearest"),
                                       {{"nearest", UpdateRounding::nearest},
                                        {"kahan", UpdateRounding::kahan},
                                        {"stochastic", UpdateRounding::stochastic}});
  return o;
}

template <class Choice>
Choice choice_of(const Json& job, const char* key) {
  return enum_of<Choice>(
      job.value(key, "automatic"),
      {{"automatic", Choice::automatic}, {"on", Choice::on}, {"off", Choice::off}});
}

template <class Run, class Fill>
Outcome outcome_of(std::variant<Run, Refusal> answer, Fill fill) {
  Outcome o;
  if (const Run* run = std::get_if<Run>(&answer)) fill(o, *run);
  return o;
}

template <class Run>
void fill_needs(Outcome& o, const Run& run) {
  o.device = run.needed(Tier::device);
  o.host = run.needed(Tier::host);
  o.disk = run.needed(Tier::disk);
  o.seconds = run.seconds_per_step();
}

Outcome plan_wan(const Json& job) {
  wan::FitRequest r;
  set_machine(r, job);
  r.job.config = wan::find_preset(job.at("model").get<std::string>()).value();
  r.job.mode = enum_of<wan::Mode>(
      job.at("mode").get<std::string>(),
      {{"infer", wan::Mode::infer}, {"lora", wan::Mode::lora}, {"full", wan::Mode::full}});
  r.job.precision = wan::precision_on(Device::cuda);
  r.job.format = find_weight_format(job.value("format", "stored")).value();
  const bool trains = r.job.mode != wan::Mode::infer;
  r.job.noising = trains ? wan::Noising::recorded : wan::Noising::given;
  r.job.record_update = r.job.prefetch = trains;
  if (trains) r.job.optimizer = optimizer_of(job);
  if (trains) r.job.max_grad_norm = job.value("max_grad_norm", 1.0);
  r.job.lora.rank = job.value("rank", 16);
  for (const Json& kind : job.at("batches")) {
    wan::Batch batch;
    for (const Json& z : kind) batch.latents.push_back({z.at(0), z.at(1), z.at(2)});
    batch.timestep_rows = trains ? static_cast<std::int64_t>(batch.latents.size()) : 1;
    r.job.batches.push_back(batch);
  }
  const DType stored = dtype_of(job.value("stored", "bf16"));
  r.experts.assign(job.value("experts", 1), planned_groups(r.job.config, stored));
  if (!trains) r.expert_changes = job.value("expert_changes", 0.05);
  if (job.value("fp8_matmul", false)) use_fp8_products(r.job, r.backend);
  if (job.value("distil", false)) {
    r.job.distil = wan::DistilPrograms{};
    r.job.noising = wan::Noising::prepared;
  }
  if (job.contains("teacher")) {
    const wan::Config teacher = wan::find_preset(job["teacher"].get<std::string>()).value();
    r.teacher =
        wan::TeacherJob{.config = teacher,
                        .precision = wan::precision_on(Device::cuda),
                        .format = find_weight_format(job.value("teacher_format", "stored")).value(),
                        .guided = job.value("guided", false),
                        .experts = {planned_groups(teacher, DType::bf16)}};
    r.job.noising = wan::Noising::prepared;
  }
  r.checkpointing = choice_of<wan::Choice>(job, "checkpointing");
  r.offloading = choice_of<wan::Choice>(job, "offloading");
  return outcome_of(fit(r), [](Outcome& o, const wan::PlannedRun& run) {
    o.policy = run.policy.name;
    fill_needs(o, run);
  });
}

Outcome plan_t5(const Json& job) {
  t5::FitRequest r;
  set_machine(r, job);
  r.job.config = t5::find_preset(job.at("model").get<std::string>()).value();
  r.job.precision = t5::precision_on(Device::cuda);
  r.job.trains = r.job.record_update = true;
  r.job.optimizer = optimizer_of(job);
  r.job.gradient = dtype_of(job.value("gradient", "f32"));
  r.job.max_grad_norm = 1;
  if (job.contains("rank")) r.job.lora = t5::LoraOptions{.rank = job["rank"].get<std::int64_t>()};
  for (const Json& b : job.at("batches")) {
    r.job.batches.push_back({.samples = b.at(0), .source = b.at(1), .target = b.at(2)});
  }
  r.runs_per_step = job.value("runs", 1);
  r.job.accumulates = r.runs_per_step > 1;
  r.groups = planned_groups(r.job.config, dtype_of(job.value("stored", "bf16")));
  r.checkpointing = choice_of<t5::Choice>(job, "checkpointing");
  r.offloading = choice_of<t5::Choice>(job, "offloading");
  return outcome_of(fit(r), [](Outcome& o, const t5::PlannedRun& run) {
    o.policy = run.policy.name;
    fill_needs(o, run);
  });
}

const wan_vae::Config& vae_config(const Json& job) {
  return wan_vae::presets()[job.at("model") == "wan2.1-vae" ? 0 : 1];
}

Outcome plan_vae(const Json& job) {
  wan_vae::FitRequest r;
  set_machine(r, job);
  const wan_vae::Config& c = vae_config(job);
  const bool decode = job.at("mode") == "decode";
  r.job = {.config = c,
           .encode = !decode,
           .decode = decode,
           .height = job.at("latent").at(1),
           .width = job.at("latent").at(2),
           .dtype = dtype_of(job.value("dtype", "bf16"))};
  (decode ? r.decoder : r.encoder) =
      planned_units(decode ? wan_vae::decoder(c) : wan_vae::encoder(c), DType::f32);
  return outcome_of(fit(r), [](Outcome& o, const wan_vae::PlannedVae& run) {
    o = {
        .policy = policy_text(run), .seconds = run.seconds, .device = run.device, .host = run.host};
  });
}

Outcome plan_vae_training(const Json& job) {
  wan_vae::TrainingRequest r;
  set_machine(r, job);
  r.job.config = vae_config(job);
  r.job.dtype = dtype_of(job.value("dtype", "bf16"));
  r.job.train_encoder = job.value("train_encoder", true);
  r.job.optimizer = optimizer_of(job);
  for (const Json& z : job.at("clips")) r.job.clips.push_back({z.at(0), z.at(1), z.at(2)});
  r.encoder = planned_units(wan_vae::encoder(r.job.config), DType::f32);
  r.decoder = planned_units(wan_vae::decoder(r.job.config), DType::f32);
  return outcome_of(fit_training(r), [](Outcome& o, const wan_vae::PlannedTraining& run) {
    o = {.policy = policy_text(run),
         .seconds = run.step_seconds + run.clip_seconds.at(0),
         .device = run.device,
         .host = run.host};
  });
}

Outcome plan_pair(const Json& job) {
  student::PairRequest r;
  set_machine(r, job);
  r.job.teacher = wan::find_preset(job.at("model").get<std::string>()).value();
  r.job.teacher_precision = wan::precision_on(Device::cuda);
  r.job.teacher_format = find_weight_format(job.value("format", "stored")).value();
  r.teacher = planned_groups(r.job.teacher, DType::bf16);
  r.host_threads = 16;
  student::Job& s = r.job.student;
  s.config.hidden_size = job.at("width");
  s.config.num_heads = s.config.hidden_size / 64;
  s.config.depth = job.at("depth");
  s.config.image_size = job.at("image");
  s.batch = job.at("batch");
  s.runs_per_step = job.value("runs", 1);
  s.activation = s.residual = DType::bf16;
  s.optimizer = optimizer_of(job);
  s.max_grad_norm = 1;
  r.recompute = job.value("recompute", false);
  return outcome_of(fit_pair(r), [](Outcome& o, const student::PlannedPair& run) {
    o.policy = text_of(run);
    fill_needs(o, run);
  });
}

Outcome planned(const Json& job) {
  using Plan = Outcome (*)(const Json&);
  const auto plan =
      enum_of<Plan>(job.at("kind").get<std::string>(), {{"wan", plan_wan},
                                                        {"t5", plan_t5},
                                                        {"vae", plan_vae},
                                                        {"vae_training", plan_vae_training},
                                                        {"pair", plan_pair}});
  const std::uint64_t before = recorded_instructions();
  Outcome o = plan(job);
  o.instructions = recorded_instructions() - before;
  return o;
}

const std::string kFile = BALLAST_GOLDEN_DIR "/plans.jsonl";

std::vector<Json> stored_lines() {
  std::ifstream file(kFile);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

// every: of so many jobs one is planned.
void expect_no_worse(std::size_t every) {
  std::vector<Json> lines = stored_lines();
  ASSERT_EQ(lines.size(), 300u);
  const bool store = std::getenv("BALLAST_STORE_PLANS") != nullptr;
  std::uint64_t instructions = 0, stored_instructions = 0;
  for (std::size_t i = 0; i < lines.size(); i += every) {
    const Json& job = lines[i].at("job");
    SCOPED_TRACE(fmt::format("line {}: {}", i + 1, job.dump()));
    const Outcome now = planned(job);
    if (store) {
      lines[i]["plan"] = now;
      continue;
    }
    const Json& stored = lines[i].at("plan");
    instructions += now.instructions;
    stored_instructions += stored.at("instructions").get<std::uint64_t>();
    EXPECT_LE(now.instructions, 1.5 * stored.at("instructions").get<double>());
    if (now.policy.empty()) {
      EXPECT_FALSE(stored.at("fits")) << "refused; it was planned as " << stored;
      continue;
    }
    EXPECT_LE(now.device, bytes_of(job, "gpu")) << now.policy;
    EXPECT_LE(now.host, bytes_of(job, "ram")) << now.policy;
    EXPECT_LE(now.disk, bytes_of(job, "disk")) << now.policy;
    if (!stored.at("fits")) continue;
    EXPECT_LE(now.seconds, 1.000001 * stored.at("seconds").get<double>())
        << now.policy << " instead of " << stored.at("policy");
  }
  EXPECT_LE(instructions, stored_instructions);
  if (!store) return;
  std::ofstream file(kFile);
  for (const Json& line : lines) file << line.dump() << '\n';
}

TEST(PlanCorpus, SampleIsPlannedNoWorse) { expect_no_worse(7); }
TEST(PlanCorpus, WholeIsPlannedNoWorse) { expect_no_worse(1); }

}  // namespace
}  // namespace ballast
