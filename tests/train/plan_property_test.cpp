// Random small runs, each against random budgets: the search for a plan is compared with all
// policies there are, and what it accepts is run.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>

#include "core/to_size.h"
#include "fit/bounds.h"
#include "fit/fit.h"
#include "models/wan/fit_job.h"
#include "report/run_log.h"
#include "tests/support/tiny_training.h"
#include "train/config/read_config.h"
#include "train/trainer.h"

namespace ballast::train {
namespace {

using support::TinyTraining;

constexpr int kRuns = 40, kBudgets = 5, kExecuted = 40;

class Dice {
 public:
  explicit Dice(int run) : site_("run" + std::to_string(run)) {}

  std::int64_t below(std::int64_t n) {
    float u = 0;
    fill_uniform(random_source(11, "plan_property", count_++, site_), 0, &u, 1);
    return std::min(n - 1, static_cast<std::int64_t>(u * static_cast<float>(n)));
  }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[below(static_cast<std::int64_t>(all.size()))];
  }

 private:
  std::string site_;
  std::int64_t count_ = 0;
};

RunTarget target(Device device) {
  if (device == Device::cuda) return {*find_profile("rtx4090"), {Device::cuda, 1}};
  RunTarget t;
  t.profile.name = "this";
  t.profile.gemm_flops = t.profile.attention_flops = t.profile.attention_backward_flops = 50e9;
  t.profile.memory_bandwidth = 10e9;
  t.profile.upload_bandwidth = t.profile.download_bandwidth = 5e9;
  t.profile.disk_bandwidth = 1e9;
  t.backend = {Device::cpu, 1};
  return t;
}

// A run in a folder of its own.
struct RandomRun {
  explicit RandomRun(int number) : dice(number) {
    wan::Config c = support::trainable_config(1 + dice.below(2), dice.one_of({0, 4}));
    c.heads = dice.one_of({1, 1, 2});
    c.dim = 128 * c.heads;
    c.ffn_dim = dice.one_of({96, 160, 512});
    c.text_dim = dice.one_of({8, 40});
    device = dice.one_of({Device::cpu, Device::cpu, Device::cuda});
    files = std::make_unique<TinyTraining>(c, dice.one_of({DType::f32, DType::bf16}));
    const std::int64_t micro = dice.one_of({1, 1, 2}), accumulation = 1 + dice.below(2);
    const data::LatentShape shape = {4, 1 + dice.below(3), 2 * (1 + dice.below(6)),
                                     dice.one_of({2, 4, 8, 20})};
    const int clips = static_cast<int>(micro * accumulation) * 2;
    files->add_clips(clips, shape);
    several_kinds = dice.below(4) == 0;
    if (several_kinds) files->add_clips(clips, {4, 1, 4, 6}, "small");
    full = dice.below(2) == 0;
    const bool both_experts = !full && dice.below(3) == 0;
    std::string extra, tables;
    if (both_experts) {
      extra = "\nexperts = 'both'";
      tables = "boundary = 0.5\n";
      use_two_experts();
    }
    if (!full) {
      tables += fmt::format(
          "transformer_dtype = '{}'\n[adapter]\ntype = 'lora'\nrank = {}\n"
          "dtype = '{}'\n",
          dice.one_of({"float32", "bfloat16", "float8"}), 1 << dice.below(5),
          dice.one_of({"float32", "bfloat16"}));
    }
    tables += fmt::format("[optimizer]\ntype = '{}'\nlr = 1e-3\n",
                          dice.one_of({"adamw", "adamw_optimi", "stableadamw", "AdamW8bit",
                                       "AdamW8bitKahan", "adafactor", "sgd"}));
    config =
        files->write_config(fmt::format("epochs = 1\nmax_steps = 2\nmicro_batch_size_per_gpu = {}\n"
                                        "gradient_accumulation_steps = {}{}",
                                        micro, accumulation, extra),
                            tables);
    what = fmt::format("run {}: {} layers of {}, {} x {} samples of {} x {} x {}, {}, {}", number,
                       c.layers, c.dim, micro, accumulation, shape.frames, shape.height,
                       shape.width, tables, device == Device::cpu ? "cpu" : "cuda");
  }

  // A folder with the model as both of them.
  void use_two_experts() const {
    namespace fs = std::filesystem;
    const fs::path folder = files->path("experts");
    for (const char* name : {"low_noise_model", "high_noise_model"}) {
      fs::create_directories(folder / name);
      fs::copy(files->model_path(), folder / name / "model.safetensors");
    }
    files->use_model(folder.string());
  }

  PreparedRun prepare(const Budget& budget) const {
    PreparedRun run = prepare_run(read_config(config, {}), target(device), Purpose::train);
    run.request.budget = budget;
    return run;
  }

  Dice dice;
  std::unique_ptr<TinyTraining> files;
  Device device = Device::cpu;
  bool several_kinds = false, full = false;
  std::string config, what;
};

// The cross product of all that a policy can say, without what comes to the same and without
// kept_blocks, which are between two of them.
std::vector<MemoryPolicy> all_policies(const fit::Request& r) {
  const wan::DitJob& job = wan::job_of(r).dit;
  const bool full = job.mode == wan::Mode::full;
  const int groups = group_count(job.config);
  std::set<std::int64_t> chunks = {0}, heads = {0}, samples = {0};
  bool several = false;
  for (const MemoryPolicy& p : wan::job_of(r).leanest()) {
    heads.insert(std::min(p.heads_per_group, job.config.heads));
  }
  for (const wan::Batch& b : job.batches) {
    several = several || b.latents.size() > 1;
    for (const wan::LatentSize& z : b.latents) {
      for (const std::int64_t c : {256, 512, 1024}) {
        if (c < z.tokens()) chunks.insert(c);
      }
    }
  }
  if (*heads.rbegin() == job.config.heads) heads = {0};
  heads.insert(1);
  if (job.config.heads == 1) heads = {0};
  if (several) samples.insert(1);
  std::vector<MemoryPolicy> all;
  const auto pieces = [&](MemoryPolicy p) {
    for (const std::int64_t chunk : chunks) {
      for (const std::int64_t head : heads) {
        for (const std::int64_t sample : samples) {
          p.chunk_tokens = chunk, p.heads_per_group = head, p.samples_per_pass = sample;
          all.push_back(p);
        }
      }
    }
  };
  const auto states = [&](MemoryPolicy p) {
    const int most = full ? groups : 0;
    for (p.disk_state_groups = 0; p.disk_state_groups <= most; ++p.disk_state_groups) {
      for (const bool on_host : {false, true}) {
        if (on_host && full) continue;
        p.state_on_host = on_host;
        pieces(p);
      }
    }
  };
  const auto others = [&](MemoryPolicy p) {
    for (const Activations a :
         {Activations::kept, Activations::attention_kept, Activations::recomputed}) {
      for (const bool split_backward : {false, true}) {
        if (split_backward && a == Activations::kept) continue;
        for (const bool offload : {false, true}) {
          p.activations = a, p.split_backward = split_backward, p.offload = offload;
          states(p);
        }
      }
    }
  };
  others({.name = "auto"});
  for (const auto& [slots, matrices_ahead] : {std::pair(1, 0), {2, 0}, {1, 1}, {1, 3}}) {
    for (const StreamSource stream_from : {StreamSource::disk, StreamSource::host}) {
      if (full && stream_from == StreamSource::disk) continue;
      for (int g = 0; g < groups; ++g) {
        others({.name = "auto",
                .streaming = Streaming{.slots = slots,
                                       .matrices_ahead = matrices_ahead,
                                       .resident_groups = g,
                                       .stream_from = stream_from}});
      }
    }
  }
  return all;
}

// The first that fits of all policies. What one needs at least is worked out once for all budgets.
std::optional<MemoryPolicy> any_that_fits(const fit::Request& r,
                                          const std::vector<MemoryPolicy>& all,
                                          fit::NeedsCache& known) {
  const fit::Request one_kind = fit::heaviest(r);  // which needs no more
  for (const MemoryPolicy& p : all) {
    if (excess(r, known.needs_for(one_kind, p)).count > 0) continue;
    if (shortages(r, plan_run(r, p)).empty()) return p;
  }
  return std::nullopt;
}

std::string text_of(const MemoryPolicy& p) {
  const Streaming s = p.stream();
  return fmt::format(
      "slots {} parts {} resident {} home {} act {} halves {} offload {} chunk {} heads {} "
      "samples {} state on host {} on disk {}",
      s.slots, s.matrices_ahead, s.resident_groups, static_cast<int>(s.stream_from),
      name_of(p.activations), p.split_backward, p.offload, p.chunk_tokens, p.heads_per_group,
      p.samples_per_pass, p.state_on_host, p.disk_state_groups);
}

// What some policy needs, sometimes less, sometimes more.
Budget random_budget(RandomRun& run, const fit::Request& r, const std::vector<MemoryPolicy>& all) {
  const fit::PlannedRun some = plan_run(r, all[to_size(run.dice.below(std::ssize(all)))]);
  const auto near = [&](Bytes b) {
    switch (run.dice.below(9)) {
      case 0:
        return Bytes{b.count - std::min<std::uint64_t>(1, b.count)};
      case 1:
        return Bytes{b.count - b.count / 20};
      case 2:
        return Bytes{b.count + b.count / 7};
      default:
        return b;
    }
  };
  const Bytes device = some.needed(Tier::device), host = some.needed(Tier::host);
  return {.gpu = near(device),
          .host = near(run.device == Device::cpu ? device + host : host),
          .disk = run.full ? near(some.needed(Tier::disk)) : 1_GB};
}

// Measured memory is what was planned.
void execute(const RandomRun& random, PreparedRun run, fit::PlannedRun planned) {
  malloc_trim(0);
  const Budget budget = run.request.budget;
  const Bytes device = planned.plan.peak_of(Tier::device), host = planned.plan.peak_of(Tier::host);
  const TrainOutcome done = train(std::move(run), std::move(planned), {});
  EXPECT_EQ(done.steps, 2);
  EXPECT_LE(done.measured, done.planned);
  EXPECT_LE(done.planned, budget.host);
  const RunHistory history = read_run_log(done.folder + "/" + std::string(kRunLogFile));
  const MemoryNumbers& most = history.steps.back().measured;
  EXPECT_LE(most.device, device);
  EXPECT_LE(most.host, host);
  if (!random.several_kinds) {
    EXPECT_EQ(std::tuple(most.device, most.host), std::tuple(device, host));
  }
}

TEST(PlanProperty, RefusesNothingThatFitsAndAcceptsNothingThatDoesNot) {
  int accepted = 0, executed = 0;
  for (int number = 0; number < kRuns; ++number) {
    RandomRun random(number);
    SCOPED_TRACE(random.what);
    const PreparedRun prepared = random.prepare({.gpu = 1_GB, .host = 1_GB, .disk = 1_GB});
    const std::vector<MemoryPolicy> all = all_policies(prepared.request);
    fit::NeedsCache known;
    for (int b = 0; b < kBudgets; ++b) {
      PreparedRun run = random.prepare(random_budget(random, prepared.request, all));
      auto outcome = fit::find_plan(run.request, known);
      if (std::holds_alternative<Refusal>(outcome)) {
        const auto fits = any_that_fits(run.request, all, known);
        EXPECT_FALSE(fits.has_value()) << "budget " << b << ": " << text_of(*fits);
        EXPECT_FALSE(std::get<Refusal>(outcome).shortages.empty());
        continue;
      }
      auto& planned = std::get<fit::PlannedRun>(outcome);
      EXPECT_TRUE(shortages(run.request, plan_run(run.request, planned.policy)).empty());
      ++accepted;
      if (random.device != Device::cpu || executed == kExecuted) continue;
      ++executed;
      execute(random, std::move(run), std::move(planned));
    }
  }
  EXPECT_GT(accepted, kRuns * kBudgets / 4);
  EXPECT_LT(accepted, kRuns * kBudgets);
  EXPECT_EQ(executed, kExecuted);
}

}  // namespace
}  // namespace ballast::train
