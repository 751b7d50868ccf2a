// None of a memory policy, a number of threads or a split of a step into runs may change a bit of
// what is trained.

#include <gtest/gtest.h>

#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"

namespace ballast::train {
namespace {

using support::difference;
using support::RunTrace;
using support::TinyTraining;
using support::trace_of;
using support::train_in_process;
using support::Variant;

MemoryPolicy named(const char* name) { return *find_policy(name); }

template <class Change>
MemoryPolicy changed(const char* name, Change&& change) {
  MemoryPolicy p = named(name);
  change(p);
  return p;
}

constexpr auto kOneSample = [](MemoryPolicy& p) { p.samples_per_pass = 1; };
constexpr auto kTwoSamples = [](MemoryPolicy& p) { p.samples_per_pass = 2; };
constexpr auto kStateOnHost = [](MemoryPolicy& p) { p.state_on_host = true; };
constexpr auto kStateOnDisk = [](MemoryPolicy& p) { p.disk_state_groups = 3; };  // of five
constexpr auto kFromHost = [](MemoryPolicy& p) { p.streaming->stream_from = StreamSource::host; };

// A few that differ in everything.
std::vector<Variant> some_variants() {
  return {{"stream1, one sample", changed("stream1", kOneSample), 1},
          {"recompute, state on disk", changed("recompute", kStateOnDisk), 2},
          {"chunked, state on host", changed("chunked", kStateOnHost), 2},
          {"offload from host, two samples, state on host",
           changed("offload",
                   [](MemoryPolicy& p) {
                     p.streaming = Streaming{.slots = 2, .stream_from = StreamSource::host};
                     p.samples_per_pass = 2;
                     p.state_on_host = true;
                   }),
           1}};
}

class SameBits : public ::testing::Test {
 protected:
  // Three blocks, so that slots are used twice.
  SameBits() : training_(support::trainable_config(3)) {
    training_.add_clips(3, {4, 2, 24, 24}, "wide");  // 288 tokens: two chunks
    training_.add_clips(3, {4, 1, 8, 16}, "small");
  }

  // Two steps with three samples each: the first changes B alone, the second A as well.
  std::string config(const std::string& tables, const std::string& extra = "") {
    return training_.write_config("epochs = 1\ngradient_accumulation_steps = 3\n" + extra, tables);
  }
  void expect_same(const std::string& config, const std::vector<Variant>& variants) {
    const RunTrace resident = trace_of(config, {"resident", named("resident")});
    ASSERT_EQ(resident.steps.size(), 2u);
    ASSERT_EQ(resident.files.size(), 2u);
    for (const Variant& v : variants) {
      EXPECT_EQ(difference(resident, trace_of(config, v)), "") << v.name;
    }
  }

  TinyTraining training_;
};

constexpr const char* kLora =
    "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
    "[optimizer]\ntype = 'adamw'\nlr = 1e-2\n";

TEST_F(SameBits, EveryPolicyTrainsTheSameLora) {
  std::vector<Variant> all;
  for (const MemoryPolicy& p : named_policies()) all.push_back({p.name, p, 2});
  for (Variant& v : some_variants()) all.push_back(std::move(v));
  all.push_back({"one thread", named("resident"), 1});
  all.push_back({"three threads", named("resident"), 3});
  all.push_back({"one sample", changed("resident", kOneSample), 2});
  all.push_back({"two samples", changed("resident", kTwoSamples), 3});
  all.push_back({"state on host", changed("resident", kStateOnHost), 2});
  all.push_back({"from host", changed("stream2", kFromHost), 2});
  all.push_back({"two groups stay", changed("stream1", [](MemoryPolicy& p) { p.keep_groups(2); })});
  all.push_back(
      {"a block is kept", changed("recompute", [](MemoryPolicy& p) { p.kept_blocks = 1; })});
  expect_same(config(kLora), all);
}

TEST(SameBitsOfHeads, GroupsOfHeadsTrainTheSameLora) {
  wan::Config two_heads = support::trainable_config(1);
  two_heads.dim = 256;
  two_heads.heads = 2;
  TinyTraining training(two_heads);
  training.add_clips(3, {4, 2, 8, 8});
  const std::string config = training.write_config("epochs = 1", kLora);
  EXPECT_EQ(difference(trace_of(config, {"resident", named("resident")}),
                       trace_of(config, {"grouped", named("grouped")})),
            "");
}

TEST_F(SameBits, DropoutIsTheSameUnderEveryPolicy) {
  expect_same(config("[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\ndropout = 0.3\n"
                     "[optimizer]\ntype = 'adamw'\nlr = 1e-2\n"),
              some_variants());
}

TEST_F(SameBits, DropsOfRanksAndAdaptersAreTheSameUnderEveryPolicy) {
  const std::string lora = config(kLora);
  const auto traced = [&](Variant v) {
    v.change = [](TrainConfig& c) {
      c.adapter.hidden_dropout = 0.2;
      c.adapter.rank_dropout = 0.3;
      c.adapter.module_dropout = 0.2;
    };
    return trace_of(lora, v);
  };
  const RunTrace resident = traced({"resident", named("resident")});
  EXPECT_NE(difference(resident, trace_of(lora, {"all", named("resident")})), "");
  for (const Variant& v : some_variants()) EXPECT_EQ(difference(resident, traced(v)), "") << v.name;
}

TEST_F(SameBits, NarrowFactorsWithEightBitStatesAreTheSame) {
  expect_same(config("[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'bfloat16'\n"
                     "[optimizer]\ntype = 'AdamW8bitKahan'\nlr = 1e-2\nema_decay = 0.9\n"),
              some_variants());
}

TEST_F(SameBits, AdafactorIsTheSame) {
  expect_same(config("[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                     "[optimizer]\ntype = 'adafactor'\nlr = 1e-2\nscale_parameter = false\n"
                     "relative_step = false\nema_decay = 0.9\n"),
              some_variants());
}

// What a full fine-tune can do: its weights stream from host memory.
std::vector<Variant> full_variants() {
  return {{"from host", changed("stream2", kFromHost), 1},
          {"one slot, recomputed, one sample",
           changed("recompute",
                   [](MemoryPolicy& p) {
                     p.streaming = Streaming{.slots = 1, .stream_from = StreamSource::host};
                     p.samples_per_pass = 1;
                   })},
          {"two groups stay", changed("chunked",
                                      [](MemoryPolicy& p) {
                                        p.streaming = Streaming{.slots = 2,
                                                                .resident_groups = 2,
                                                                .stream_from = StreamSource::host};
                                        p.samples_per_pass = 2;
                                      })},
          {"state of three groups on disk", changed("stream1", [](MemoryPolicy& p) {
             p.streaming->stream_from = StreamSource::host;
             p.keep_groups(2);
             p.disk_state_groups = 3;
           })}};
}

TEST_F(SameBits, FullFineTuneIsTheSame) {
  expect_same(config("[optimizer]\ntype = 'adamw'\nlr = 1e-3\nema_decay = 0.9\n"), full_variants());
}

class SameBitsInBf16 : public SameBits, public ::testing::WithParamInterface<const char*> {};

TEST_P(SameBitsInBf16, FullFineTuneIsTheSame) {
  const std::string path =
      config(fmt::format("[optimizer]\ntype = 'adamw_optimi'\nlr = 1e-3\n"
                         "rounding = '{}'\n",
                         GetParam()));
  std::string text = test::read_whole(path);
  const std::string f32 = "dtype = 'float32'";
  text.replace(text.find(f32), f32.size(), "dtype = 'bfloat16'");
  std::ofstream(path) << text;
  expect_same(path, full_variants());
}
INSTANTIATE_TEST_SUITE_P(Roundings, SameBitsInBf16,
                         ::testing::Values("nearest", "kahan", "stochastic"),
                         [](const auto& param) { return std::string(param.param); });

// Its learning rates are of whole tensors, wherever they lie and however they come.
TEST_F(SameBits, FullFineTuneWithStableAdamWIsTheSame) {
  expect_same(config("[optimizer]\ntype = 'stableadamw'\nlr = 1e-2\nema_decay = 0.9\n"),
              full_variants());
}

TEST_F(SameBits, ABudgetThatForcesStreamingChangesNothing) {
  if (support::test_device() == Device::cuda) GTEST_SKIP() << "RAM does not bound a GPU's arena";
  const std::string path = config(kLora);
  const RunTrace resident = trace_of(path, {"resident", named("resident")});
  PreparedRun run = prepare_run(read_config(path), support::small_machine(), Purpose::train);
  run.request.policy = std::nullopt;
  const Bytes most = [&] {
    const fit::PlannedRun p = plan_run(run.request, named("resident"));
    return p.needed(Tier::device) + p.needed(Tier::host);
  }();
  Bytes least = most;
  for (const MemoryPolicy& p : run.request.job->leanest()) {
    const fit::PlannedRun lean = plan_run(run.request, p);
    least = std::min(least, lean.needed(Tier::device) + lean.needed(Tier::host));
  }
  ASSERT_LT(least, most);
  run.request.budget.host = run.request.budget.gpu = least;
  auto outcome = fit::find_plan(run.request);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(outcome));
  auto& planned = std::get<fit::PlannedRun>(outcome);
  EXPECT_GT(planned.policy.stream().slots, 0);
  const TrainOutcome o = train(std::move(run), std::move(planned), {});
  EXPECT_EQ(difference(resident, support::read_trace(o.folder)), "");
}

// The tensors of a checkpoint do not depend on where they lived.
TEST_F(SameBits, ARunGoesOnUnderAnotherPolicy) {
  const std::string lora = config(kLora);
  const RunTrace whole = trace_of(lora, {"resident", named("resident")});
  const std::string half = config(kLora, "max_steps = 1");
  const TrainOutcome first = train_in_process(half, {"resident", named("resident")});
  ASSERT_EQ(first.steps, 1);
  const RunTrace second = trace_of(config(kLora), {"stream1, state on host",
                                                   changed("stream1", kStateOnHost),
                                                   1,
                                                   {{"resume", {first.folder}, "--resume"}}});
  EXPECT_EQ(whole.steps, second.steps);
  EXPECT_EQ(whole.files.at("checkpoints/step-00000002/state.safetensors"),
            second.files.at("checkpoints/step-00000002/state.safetensors"));
}

// Masters, moments and an average are copied from and to the scratch file piece by piece.
TEST_F(SameBits, ACheckpointOfStateOnDiskIsTheSame) {
  const std::string tables = "[optimizer]\ntype = 'adamw'\nlr = 1e-3\nema_decay = 0.9\n";
  const auto narrow = [&](const std::string& extra) {
    const std::string path = config(tables, extra);
    std::string text = test::read_whole(path);
    const std::string f32 = "dtype = 'float32'";
    text.replace(text.find(f32), f32.size(), "dtype = 'bfloat16'");
    std::ofstream(path) << text;
    return path;
  };
  const RunTrace whole = trace_of(narrow(""), {"stream2", changed("stream2", kFromHost)});
  const TrainOutcome first =
      train_in_process(narrow("max_steps = 1"), {"state on disk", named("state-on-disk")});
  ASSERT_EQ(first.steps, 1);
  const RunTrace second = trace_of(
      narrow(""),
      {"state on disk", named("state-on-disk"), 1, {{"resume", {first.folder}, "--resume"}}});
  EXPECT_EQ(whole.steps, second.steps);
  EXPECT_EQ(whole.files.at("checkpoints/step-00000002/state.safetensors"),
            second.files.at("checkpoints/step-00000002/state.safetensors"));
}

}  // namespace
}  // namespace ballast::train
