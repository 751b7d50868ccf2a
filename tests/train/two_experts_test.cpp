// Both experts in one run: each is trained on its own side of the boundary, from its own weights.

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "models/wan/lora_read.h"
#include "tests/ref/global_norm.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/checkpoint/checkpoint.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;
using support::difference;
using support::RunTrace;
using support::TinyTraining;
using support::trace_of;

constexpr double kBoundary = 0.5;

class TwoExperts : public ::testing::Test {
 protected:
  TwoExperts() : training_(support::trainable_config(1)) {
    training_.add_clips(4, {4, 1, 4, 4});
    const support::TinyCheckpoint low(training_.config(), DType::f32, "low."),
        high(training_.config(), DType::f32, "high.");
    put(low, "low"), put(high, "high");
  }

  // A folder of two experts; the names are those of the weights behind them.
  std::string config(const std::string& low, const std::string& high,
                     const std::string& extra = "") {
    const fs::path folder = training_.path(low + "_" + high);
    for (const auto& [name, from] :
         {std::pair("low_noise_model", low), {"high_noise_model", high}}) {
      fs::create_directories(folder / name);
      fs::copy(training_.path(from + ".safetensors"), folder / name / "model.safetensors",
               fs::copy_options::overwrite_existing);
    }
    training_.use_model(folder.string());
    return training_.write_config(
        "epochs = 6\ngradient_accumulation_steps = 2\nexperts = 'both'\n" + extra,
        fmt::format("boundary = {}\n[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                    "[optimizer]\ntype = 'adamw'\nlr = 1e-2\n",
                    kBoundary),
        low + "_" + high + ".toml");
  }

  TinyTraining training_;

 private:
  void put(const support::TinyCheckpoint& from, const std::string& name) {
    fs::copy(from.path(), training_.path(name + ".safetensors"));
  }
};

TEST_F(TwoExperts, EachIsTrainedOnItsSideFromItsOwnWeights) {
  const TrainOutcome outcome = support::train_in_process(config("low", "high"));
  const RunTrace both = support::read_trace(outcome.folder);
  // An expert's steps never touch the other's adapters. So with the same weights in both folders
  // its side goes as before, and the other side does not.
  const RunTrace lows = trace_of(config("low", "low")), highs = trace_of(config("high", "high"));

  const RunHistory history = read_run_log(outcome.folder + "/" + std::string(kRunLogFile));
  std::int64_t steps[2] = {};
  for (const StepRecord& s : history.steps) {
    ASSERT_EQ(s.t.size(), 2u);
    const bool high = s.t[0] >= kBoundary;
    EXPECT_EQ(s.t[1] >= kBoundary, high) << "step " << s.step << " is on both sides";
    ++steps[high];
    const std::string& text = both.steps.at(s.step);
    EXPECT_EQ((high ? highs : lows).steps.at(s.step), text);
    EXPECT_NE((high ? lows : highs).steps.at(s.step), text);
  }
  EXPECT_GT(steps[0], 1);
  EXPECT_GT(steps[1], 1);
  const auto found = find_checkpoint(outcome.folder).found;
  ASSERT_TRUE(found);
  EXPECT_EQ(found->state.counts.at("expert_steps.0"), steps[0]);
  EXPECT_EQ(found->state.counts.at("expert_steps.1"), steps[1]);

  const std::string low = "epoch6/adapter_model_low_noise.safetensors",
                    high = "epoch6/adapter_model_high_noise.safetensors";
  EXPECT_EQ(both.files.size(), 3u);
  EXPECT_EQ(both.files.at(low), lows.files.at(low));
  EXPECT_EQ(both.files.at(high), highs.files.at(high));
  EXPECT_NE(both.files.at(high), lows.files.at(high));
}

TEST_F(TwoExperts, AreNotTrainedWhole) {
  TrainConfig c = read_config(config("low", "high"));
  c.method = ballast::train::Method::full;
  EXPECT_FAILS(prepare_run(std::move(c), support::small_machine(), Purpose::train),
               ErrorCode::input, "trained by adapters, not whole");
}

TEST_F(TwoExperts, StreamedWeightsAreThoseOfTheRightExpert) {
  const std::string path = config("low", "high");
  EXPECT_EQ(difference(trace_of(path, {"resident", find_policy("resident")}),
                       trace_of(path, {"stream1", find_policy("stream1"), 1})),
            "");
  MemoryPolicy from_host = *find_policy("stream2");
  from_host.streaming->stream_from = StreamSource::host;
  EXPECT_EQ(difference(trace_of(path, {"resident", find_policy("resident")}),
                       trace_of(path, {"from host", from_host})),
            "");
}

TEST_F(TwoExperts, AResumedRunIsTheSame) {
  const RunTrace whole = trace_of(config("low", "high"));
  for (const int stop : {1, 4, 7}) {
    const TrainOutcome first =
        support::train_in_process(config("low", "high", fmt::format("max_steps = {}", stop)));
    const RunTrace second =
        trace_of(config("low", "high"),
                 {"resumed", std::nullopt, 1, {{"resume", {first.folder}, "--resume"}}});
    EXPECT_EQ(whole.steps, second.steps) << "stopped after " << stop;
    for (const auto& [name, bytes] : whole.files) EXPECT_EQ(second.files.at(name), bytes) << name;
  }
}

// With --scale_weight_norms, which a diffusion-pipe file has no word for.
class LimitedNorms : public TwoExperts {
 protected:
  static constexpr double kMax = 0.03;

  std::string path(const std::string& extra = "max_steps = 6") {
    return config("low", "high", "save_dtype = 'float32'\n" + extra);
  }
  // kohya's files have an alpha, and so a scale.
  static support::Variant with(double most, const std::string& name = "resident",
                               std::optional<MemoryPolicy> policy = find_policy("resident"),
                               int threads = 2) {
    return {name, policy, threads, {}, [most](TrainConfig& c) {
              c.adapter.alpha = 2;
              c.adapter.max_norm = most;
              c.adapter.up_rate_ratio = 2;
              c.lora_format = LoraFormat::kohya;
            }};
  }
  // The largest norm of every file that was saved, by expert. limit: what the files say of it.
  static std::map<std::string, std::vector<double>> norms_in(const std::string& folder,
                                                             const std::string& limit) {
    std::map<std::string, std::vector<double>> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const std::string file = entry.path().filename().string();
      if (!file.ends_with("_noise.safetensors")) continue;
      const wan::LoraReader lora = wan::LoraReader::open(entry.path().string());
      EXPECT_EQ(lora.modules().size(), 10u);
      const auto said = lora.metadata().find("ss_scale_weight_norms");
      EXPECT_EQ(said == lora.metadata().end() ? "" : said->second, limit);
      EXPECT_EQ(lora.metadata().at("ss_network_args"), R"({"loraplus_lr_ratio": "2"})");
      double largest = 0;
      for (const wan::LoraModule& m : lora.modules()) {
        EXPECT_EQ(m.scale(), 0.5);
        largest = std::max(
            largest, ref::product_norm(numbers(m.down), numbers(m.up), to_size(m.rank), m.scale()));
      }
      all[file].push_back(largest);
    }
    return all;
  }

 private:
  static std::vector<double> numbers(const wan::LoraNumbers& n) {
    std::vector<float> values(to_size(n.elements()));
    n.read(0, values);
    return {values.begin(), values.end()};
  }
};

TEST_F(LimitedNorms, HoldInEveryFile) {
  const std::string config = path("max_steps = 6\nsave_every_n_steps = 1");
  const auto limited = norms_in(support::train_in_process(config, with(kMax)).folder, "0.03"),
             free = norms_in(support::train_in_process(config, with(0)).folder, "");
  ASSERT_EQ(limited.size(), 2u);
  for (const auto& [file, norms] : limited) {
    EXPECT_EQ(norms.size(), 6u) << file;
    for (const double norm : norms) EXPECT_LE(norm, kMax * (1 + 1e-5)) << file;
    EXPECT_GE(std::ranges::max(norms), kMax * (1 - 1e-5)) << file;
    EXPECT_GT(std::ranges::max(free.at(file)), 2 * kMax) << file;
  }
}

TEST_F(LimitedNorms, AreTheSameUnderEveryPolicyAndAfterAStop) {
  const RunTrace resident = trace_of(path(), with(kMax));
  MemoryPolicy from_host = *find_policy("stream2"), on_disk = *find_policy("recompute");
  from_host.streaming->stream_from = StreamSource::host;
  from_host.state_on_host = true;
  on_disk.disk_state_groups = 3;
  for (const support::Variant& how :
       {with(kMax, "stream1", find_policy("stream1"), 1),
        with(kMax, "from host, state there", from_host), with(kMax, "state on disk", on_disk)}) {
    EXPECT_EQ(difference(resident, trace_of(path(), how)), "") << how.name;
  }
  const TrainOutcome first = support::train_in_process(path("max_steps = 3"), with(kMax));
  support::Variant resumed = with(kMax, "resumed");
  resumed.flags = {{"resume", {first.folder}, "--resume"}};
  const RunTrace whole = trace_of(path(), resumed);
  EXPECT_EQ(resident.steps, whole.steps);
  for (const auto& [name, bytes] : resident.files) EXPECT_EQ(whole.files.at(name), bytes) << name;
}

TEST_F(LimitedNorms, AreNotThoseOfAnAverage) {
  TrainConfig c = read_config(path());
  c.adapter.max_norm = kMax;
  c.optimizer.ema_decay = 0.9;
  EXPECT_FAILS(prepare_run(std::move(c), support::small_machine(), Purpose::train),
               ErrorCode::input, "ema_decay");
}

}  // namespace
}  // namespace ballast::train
