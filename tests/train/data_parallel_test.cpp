// Ranks that share the samples of a step train what one rank trains with the same columns, to the
// bit: adapters, models, checkpoints, logged losses.

#include <gmock/gmock.h>

#include <filesystem>

#include "dist/thread_ranks.h"
#include "tests/dist/run_ranks.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"

namespace ballast::train {
namespace {

using support::difference;
using support::RunTrace;
using support::TinyTraining;
using support::Variant;
using testing::Each;
using testing::IsEmpty;
using testing::SizeIs;

struct Shares {
  int ranks = 1;
  std::int64_t columns = 0;
  std::optional<std::int64_t> global_batch = {};
};

using Options = std::function<void(int rank, TrainOptions&)>;

// What ranks in threads of this process leave; errors: what each failed with.
struct RanksRun {
  std::string folder;
  std::vector<std::int64_t> steps;
  std::vector<std::optional<Error>> errors;
};

RanksRun run_threads(const std::string& config, const Shares& shares, const Variant& how = {},
                     const Options& change = {}) {
  ThreadRanks transport;
  RanksRun all;
  all.steps.resize(to_size(shares.ranks));
  all.errors = test::run_ranks(shares.ranks, [&](int rank) {
    TrainConfig wanted = read_config(config, how.flags);
    if (how.change) how.change(wanted);
    wanted.parallel = {.ranks = shares.ranks,
                       .columns = shares.columns,
                       .global_batch = shares.global_batch,
                       .rank = rank};
    PreparedRun run =
        prepare_run(std::move(wanted), support::small_machine(how.threads), Purpose::train);
    run.request.budget.host = run.request.budget.gpu = 2_GB;
    if (how.policy) run.request.policy = how.policy;
    if (how.policy && how.policy->disk_state_groups > 0) run.request.budget.disk = 1_GB;
    auto outcome = fit::find_plan(run.request);
    auto* planned = std::get_if<fit::PlannedRun>(&outcome);
    check(planned != nullptr, "refused under {}", how.name);
    TrainOptions options;
    options.handle_signals = false;
    options.ranks = {.rank = rank,
                     .size = shares.ranks,
                     .join = [&](std::string_view group, int mine, int size) {
                       return transport.join(group, mine, size);
                     }};
    if (change) change(rank, options);
    const TrainOutcome done = train(std::move(run), std::move(*planned), options);
    all.steps[to_size(rank)] = done.steps;
    if (rank == 0) all.folder = done.folder;
  });
  return all;
}

RunTrace trace_of(const std::string& config, const Shares& shares, const Variant& how = {}) {
  const RanksRun run = run_threads(config, shares, how);
  EXPECT_THAT(test::texts_of(run.errors), IsEmpty()) << shares.ranks << " ranks";
  return run.folder.empty() ? RunTrace() : support::read_trace(run.folder);
}

constexpr const char* kAdapter =
    "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
    "[optimizer]\ntype = 'adamw'\nlr = 1e-2\n";
constexpr const char* kWhole = "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";

void add_empty_caption(const TinyTraining& training) {
  const std::int64_t width = training.config().text_dim;
  const std::vector<float> text = support::normal_values("empty", width, 1);
  data::write_text_rows(data::empty_caption_path(training.path("clips")), "wan",
                        {.tokens = 1, .dim = width, .rows = text},
                        {.durability = Durability::process});
}

class DataParallelTraining : public ::testing::Test {
 protected:
  DataParallelTraining() : training_(support::trainable_config(2)) {
    if (support::test_device() == Device::cuda) return;
    training_.add_clips(12, {4, 1, 8, 16}, "small");
    training_.add_clips(5, {4, 2, 8, 8}, "other");
  }
  void SetUp() override {
    if (support::test_device() == Device::cuda) {
      GTEST_SKIP() << "ranks in threads of one process share no GPU";
    }
  }

  void expect_same(const std::string& config, std::int64_t columns, std::int64_t samples,
                   std::initializer_list<int> ranks, const Variant& how = {}) {
    const RunTrace alone = trace_of(config, {1, columns, samples}, how);
    ASSERT_GE(alone.steps.size(), 2u);
    ASSERT_EQ(alone.files.size(), 2u);
    for (const int n : ranks) {
      EXPECT_EQ(difference(alone, trace_of(config, {n, columns, samples}, how)), "")
          << n << " ranks, " << columns << " columns, " << how.name;
    }
  }

  TinyTraining training_;
};

TEST_F(DataParallelTraining, EveryNumberOfRanksTrainsTheSameLora) {
  const std::string config = training_.write_config("epochs = 2", kAdapter);
  expect_same(config, 4, 4, {2, 3, 4});
  expect_same(config, 3, 4, {2, 3});  // one column has two samples
}

// Epochs end with steps of fewer samples; some of them leave columns, and ranks, without any.
TEST_F(DataParallelTraining, RanksWithoutSamplesTakePartInTheExchange) {
  const std::string config = training_.write_config("epochs = 1", kAdapter);
  expect_same(config, 6, 6, {2, 4, 5, 6});
}

TEST_F(DataParallelTraining, PoliciesAndPassesDoNotChangeTheSums) {
  const std::string config = training_.write_config("epochs = 1", kAdapter);
  const RunTrace alone = trace_of(config, {1, 2, 6});
  std::vector<Variant> variants;
  const auto add = [&](const char* name, auto&& change) {
    MemoryPolicy p = *find_policy(name);
    change(p);
    variants.push_back({name, p, 1});
  };
  add("resident", [](MemoryPolicy& p) { p.samples_per_pass = 1; });
  add("stream1", [](MemoryPolicy& p) { p.samples_per_pass = 2; });
  add("offload", [](MemoryPolicy& p) {
    p.streaming = Streaming{.slots = 2, .stream_from = StreamSource::host};
    p.state_on_host = true;
  });
  for (const Variant& v : variants) {
    for (const int ranks : {1, 2}) {
      EXPECT_EQ(difference(alone, trace_of(config, {ranks, 2, 6}, v)), "") << v.name << ranks;
    }
  }
}

TEST_F(DataParallelTraining, AFullFineTuneIsTheSame) {
  const std::string config = training_.write_config("epochs = 1", kWhole);
  expect_same(config, 4, 4, {2, 3, 4});
  MemoryPolicy on_host = *find_policy("stream2");
  on_host.streaming->stream_from = StreamSource::host;
  expect_same(config, 3, 4, {3}, {"gradients on the host", on_host});
  MemoryPolicy on_disk = *find_policy("stream1");
  on_disk.disk_state_groups = 3;
  expect_same(config, 2, 4, {2}, {"state on disk", on_disk});
}

// A critic and a student whose gradients wait for other columns at the same time.
TEST_F(DataParallelTraining, StepDistillationIsTheSame) {
  add_empty_caption(training_);
  const std::string config = training_.write_config(
      "epochs = 1", std::string(kAdapter) +
                        "[distill]\nmethod = 'dmd2'\nstudent_every = 2\nregression_steps = 1\n"
                        "teacher_steps = 2\n");
  expect_same(config, 4, 4, {2, 3, 4});
  MemoryPolicy one_by_one = *find_policy("stream1");
  one_by_one.samples_per_pass = 1;
  expect_same(config, 3, 6, {2, 3}, {"one sample at a time", one_by_one});
}

TEST_F(DataParallelTraining, ATaughtStudentIsTheSame) {
  wan::Config teacher = support::trainable_config(2);
  teacher.dim = 256;
  teacher.heads = 2;
  TinyTraining taught(teacher);
  taught.add_clips(11, {4, 1, 4, 4});
  add_empty_caption(taught);
  const std::string config =
      taught.write_config("epochs = 1", std::string(kWhole) +
                                            "[distill]\nmethod = 'mse'\nlayers = 1\ndim = 128\n"
                                            "ffn_dim = 96\nguidance = 3\n");
  expect_same(config, 4, 4, {2, 3, 4});
}

// Steps are those of one expert or the other; what waits for other columns shares its buffers.
TEST_F(DataParallelTraining, BothExpertsAreTheSame) {
  namespace fs = std::filesystem;
  const std::string folder = training_.path("experts");
  for (const std::string side : {"low", "high"}) {
    const support::TinyCheckpoint expert(training_.config(), DType::f32, side + ".");
    fs::create_directories(folder + "/" + side + "_noise_model");
    fs::copy(expert.path(), folder + "/" + side + "_noise_model/model.safetensors");
  }
  training_.use_model(folder);
  const std::string config = training_.write_config("epochs = 2\nexperts = 'both'",
                                                    "boundary = 0.5\n" + std::string(kAdapter));
  const RunTrace alone = trace_of(config, {1, 4, 4});
  ASSERT_EQ(alone.files.size(), 3u);  // an adapter of each expert, and the checkpoint
  for (const int ranks : {2, 3}) {
    EXPECT_EQ(difference(alone, trace_of(config, {ranks, 4, 4})), "") << ranks << " ranks";
  }
}

TEST_F(DataParallelTraining, OneColumnIsARunAsEver) {
  const std::string config =
      training_.write_config("epochs = 1\ngradient_accumulation_steps = 3", kAdapter);
  EXPECT_EQ(difference(support::trace_of(config), trace_of(config, {1, 1, 3})), "");
  EXPECT_NE(difference(support::trace_of(config), trace_of(config, {1, 3, 3})), "");
}

// As trainers count: a batch size is that of each rank.
TEST_F(DataParallelTraining, RanksMultiplyTheBatch) {
  const std::string config =
      training_.write_config("epochs = 1\ngradient_accumulation_steps = 2", kAdapter);
  EXPECT_EQ(difference(trace_of(config, {1, 3, 6}), trace_of(config, {3})), "");
}

TEST_F(DataParallelTraining, AnyNumberOfRanksResumesToTheSameBits) {
  const std::string tables = kAdapter;
  const std::string whole = training_.write_config("epochs = 3", tables, "whole.toml");
  const RunTrace alone = trace_of(whole, {1, 4, 4});
  std::string folder;
  const auto go = [&](int ranks, std::int64_t until, const Shares& more) {
    const std::string config = training_.write_config("epochs = 3", tables, "parts.toml");
    Variant how = {.name = "parts"};
    how.change = [&](TrainConfig& c) {
      if (!folder.empty()) c.resume = folder;
    };
    const RanksRun run = run_threads(config, {ranks, more.columns, more.global_batch}, how,
                                     [&](int, TrainOptions& o) {
                                       auto steps = std::make_shared<std::int64_t>(0);
                                       o.on_step = [=](const StepRecord& r) { *steps = r.step; };
                                       o.stop = [=] { return *steps >= until; };
                                     });
    EXPECT_THAT(test::texts_of(run.errors), IsEmpty()) << ranks;
    folder = run.folder;
  };
  go(4, 3, {.global_batch = 4});
  go(1, 5, {});
  go(3, 1000, {});
  const RunTrace parts = support::read_trace(folder);
  EXPECT_EQ(difference(alone, parts), "");
}

TEST_F(DataParallelTraining, AStopOnOneRankStopsAllAfterTheSameStep) {
  const std::string config = training_.write_config("epochs = 3", kAdapter);
  const RanksRun run = run_threads(config, {3, 0, 3}, {}, [](int rank, TrainOptions& o) {
    if (rank == 1) o.stop = [asked = 0]() mutable { return ++asked == 2; };
  });
  EXPECT_THAT(test::texts_of(run.errors), IsEmpty());
  EXPECT_THAT(run.steps, Each(2));
  EXPECT_THAT(support::read_trace(run.folder).steps, SizeIs(2));
}

// Nobody waits for a rank that fails outside of an exchange.
TEST_F(DataParallelTraining, ARankThatFailsEndsAll) {
  const std::string config = training_.write_config("epochs = 3", kAdapter);
  for (const int failing : {0, 2}) {
    const RanksRun run = run_threads(config, {3, 0, 3}, {}, [=](int rank, TrainOptions& o) {
      o.on_step = [=](const StepRecord& r) {
        if (rank == failing && r.step == 2) fail(ErrorCode::io, "no space left");
      };
    });
    for (int r = 0; r < 3; ++r) {
      ASSERT_TRUE(run.errors[to_size(r)]) << r;
      EXPECT_EQ(run.errors[to_size(r)]->code(), r == failing ? ErrorCode::io : ErrorCode::lost);
    }
  }
}

TEST_F(DataParallelTraining, WhatCannotBeDividedIsRefused) {
  const std::string config = training_.write_config("epochs = 1", kAdapter);
  const auto refused = [&](const Shares& shares, const char* text) {
    TrainConfig c = read_config(config);
    c.parallel = {
        .ranks = shares.ranks, .columns = shares.columns, .global_batch = shares.global_batch};
    EXPECT_FAILS(prepare_run(std::move(c), support::small_machine(), Purpose::plan),
                 ErrorCode::usage, text);
  };
  refused({4, 2, 4}, "4 ranks for 2 columns");
  refused({2, 8, 4}, "4 samples for 8 columns");
  const std::string pairs =
      training_.write_config("epochs = 1\nmicro_batch_size_per_gpu = 2", kAdapter);
  TrainConfig c = read_config(pairs);
  c.parallel = {.ranks = 1, .columns = 0, .global_batch = 3};
  EXPECT_FAILS(prepare_run(std::move(c), support::small_machine(), Purpose::plan), ErrorCode::usage,
               "expected a multiple of the batch size 2");
}

}  // namespace
}  // namespace ballast::train
