// The memory a whole training process has, against its plan and against limits of the kernel.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "core/to_size.h"
#include "memory/process_memory.h"
#include "report/run_log.h"
#include "tests/e2e/training_process.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/memory_group.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using support::TinyTraining;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kLora =
    "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
    "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";
constexpr const char* kFull = "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";

// What the plan says the process needs.
Bytes planned_total(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"plan"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.push_back("--json");
  const Finished f = run_ballast(all);
  EXPECT_EQ(f.exit_code, 0) << f.err;
  const json plan = json::parse(f.out);
  const auto peak = [&](const char* tier) { return plan[tier]["peak_bytes"].get<std::uint64_t>(); };
  return {peak("device") + peak("host")};
}

// Runs with a RAM budget of exactly what is planned, and looks at the process all the time.
void expect_within_plan(const std::string& what, const std::string& config,
                        std::vector<std::string> arguments = {}) {
  SKIP_WITHOUT_ALLOCATION_HOOK();  // sanitizers keep shadow memory that no plan knows
  // Two threads everywhere: more of them have BLAS buffers that so small a run does not touch.
  arguments.insert(arguments.begin(), {config, "--threads", "2"});
  const Bytes planned = planned_total(arguments);
  arguments.insert(arguments.end(), {"--ram", fmt::format("{}B", planned.count)});
  TrainingProcess process(arguments);
  const std::string proc = fmt::format("/proc/{}", process.pid());
  Bytes most;
  process.wait_for([&] {
    if (const auto m = process_memory(Counting::exact, proc.c_str())) {
      most = std::max(most, m->total());
    }
    return false;
  });
  const Finished f = process.finish();
  ASSERT_EQ(f.exit_code, 0) << what << "\n" << f.err;
  EXPECT_LE(most, planned) << what;
  EXPECT_GT(most.count, 1u << 20) << "nobody looked at the process";
  // Far above is no plan either.
  EXPECT_LE(planned.count, most.count + (10u << 20)) << what;
  testing::Test::RecordProperty(what + "_planned", std::to_string(planned.count));
  testing::Test::RecordProperty(what + "_measured", std::to_string(most.count));
}

TEST(TrainingMemory, OfALoraIsWithinItsPlan) {
  TinyTraining run;
  run.add_clips(4, {4, 2, 8, 8});
  expect_within_plan("resident", run.write_config("epochs = 10", kLora));
}

TEST(TrainingMemory, OfALoraStreamedFromDiskIsWithinItsPlan) {
  TinyTraining run(support::trainable_config(6));
  run.add_clips(4, {4, 2, 8, 8});
  expect_within_plan("streamed", run.write_config("epochs = 10", kLora), {"--policy", "stream2"});
}

TEST(TrainingMemory, OfAFullFineTuneIsWithinItsPlan) {
  TinyTraining run;
  run.add_clips(4, {4, 2, 8, 8});
  expect_within_plan("full", run.write_config("epochs = 10", kFull));
}

TEST(TrainingMemory, WithCheckpointsAndEvaluationIsWithinItsPlan) {
  TinyTraining run;
  run.add_clips(4, {4, 2, 8, 8});
  run.add_clips(2, {4, 1, 8, 8}, "held", "held");
  expect_within_plan("evaluated",
                     run.write_config(fmt::format("epochs = 10\ncheckpoint_every_n_steps = 5\n"
                                                  "save_every_n_steps = 5\neval_every_n_steps = 5\n"
                                                  "eval_datasets = ['{}']",
                                                  run.path("held")),
                                      kLora));
}

// Weights of 58 MB and a dataset of 55 MB, most of it captions.
class TrainingLimit : public testing::Test {
 protected:
  static constexpr int kClips = 26;

  static wan::Config large() {
    wan::Config c = support::trainable_config(12);
    c.dim = 384, c.heads = 3, c.ffn_dim = 1536, c.text_dim = 1024;
    return c;
  }

  TrainingLimit() : run_(large(), DType::bf16) {
    const data::LatentShape shape = {4, 1, 4, 4};
    const std::vector<float> latent(to_size(shape.elements()), 0.5f);
    const std::vector<float> text(512 * 1024, 0.25f);
    for (int i = 0; i < kClips; ++i) {
      data::write_cached_sample(run_.path("clips"), fmt::format("clip{:02}", i),
                                {.shape = shape, .latent = latent},
                                {.tokens = 512, .dim = 1024, .rows = text, .caption = "x"},
                                {.durability = Durability::process});
    }
    std::uint64_t bytes = 0;
    for (const auto& e : fs::recursive_directory_iterator(run_.path("clips"))) {
      if (e.is_regular_file()) bytes += e.file_size();
    }
    data_bytes_ = {bytes};
    model_bytes_ = {fs::file_size(run_.model_path())};
  }

  TinyTraining run_;
  Bytes data_bytes_, model_bytes_;
};

TEST_F(TrainingLimit, EqualToTheRamBudgetIsKept) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  constexpr Bytes kLimit{50 << 20};
  const MemoryGroup group(kLimit);
  if (!group.made()) GTEST_SKIP() << group.reason();
  ASSERT_GT(data_bytes_, kLimit);
  ASSERT_GT(model_bytes_, kLimit);
  const Finished f = train({run_.write_config("epochs = 1\nsteps_per_print = 10\n"
                                              "checkpoint_every_n_steps = 10"),
                            "--threads", "2", "--ram", fmt::format("{}B", kLimit.count)},
                           [&] { group.join(); });
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("finished after 26 steps"));
  const std::string run = newest_run(run_.path("out"));
  expect_whole_checkpoint(run, kClips);
  const RunHistory h = read_run_log(run + "/run_log.jsonl");
  ASSERT_EQ(h.steps.size(), to_size(kClips));
  Bytes most;
  for (const StepRecord& s : h.steps) most = std::max(most, s.measured.ram);
  EXPECT_LE(h.info->planned.ram, kLimit);
  EXPECT_THAT(f.err, testing::Not(HasSubstr("warning")));
  EXPECT_LE(most, h.info->planned.ram);
  EXPECT_LE(group.most().value_or(kLimit), kLimit);
}

TEST_F(TrainingLimit, BelowTheRamBudgetIsWhatIsPlannedFor) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  constexpr Bytes kLimit{50 << 20};
  const MemoryGroup group(kLimit);
  if (!group.made()) GTEST_SKIP() << group.reason();
  const Finished f = train({run_.write_config("epochs = 1"), "--threads", "2", "--ram", "1GB"},
                           [&] { group.join(); });
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("--ram 1.000 GB, but /"), HasSubstr(" is 52.43 MB")));
  const RunHistory h = read_run_log(newest_run(run_.path("out")) + "/run_log.jsonl");
  EXPECT_LE(h.info->planned.ram, kLimit);
  EXPECT_LE(group.most().value_or(kLimit), kLimit);
}

TEST_F(TrainingLimit, BelowEveryPlanIsRefusedByName) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const MemoryGroup group(Bytes{14'000'128});  // whole pages
  if (!group.made()) GTEST_SKIP() << group.reason();
  const Finished f = train({run_.write_config("epochs = 1"), "--threads", "2", "--ram", "1GB"},
                           [&] { group.join(); });
  EXPECT_EQ(f.exit_code, 3) << f.err;
  const std::string unwrapped = std::regex_replace(f.err, std::regex("\n +"), " ");
  EXPECT_THAT(unwrapped, AllOf(HasSubstr("more RAM needed"), HasSubstr(group.limit_file()),
                               HasSubstr(" is 14.00 MB: at most "), HasSubstr("--ignore-limits"),
                               HasSubstr("raise " + group.limit_file() + " to ")));
  EXPECT_FALSE(fs::exists(run_.path("out")));
}

TEST_F(TrainingLimit, ThatIsIgnoredEndsInAnOomKillThatDoctorExplains) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const MemoryGroup group(Bytes{32 << 20});
  if (!group.made()) GTEST_SKIP() << group.reason();
  const Finished f = train(
      {run_.write_config("epochs = 1"), "--threads", "2", "--ram", "400MB", "--ignore-limits"},
      [&] { group.join(); });
  ASSERT_EQ(f.exit_code, 128 + SIGKILL) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("warning"), HasSubstr("--ram 400.0 MB, but "),
                           HasSubstr("the kernel ends the run")));
  const Finished text = run_ballast({"doctor", run_.path("out"), "--no-disk-trial"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("last run: while loading"),
                              HasSubstr("killed by the kernel: out of memory"),
                              HasSubstr("400.0 MB"), HasSubstr("control group"),
                              HasSubstr("above the control group's limit of 33.55 MB"),
                              HasSubstr("[memory] ram = \"30MiB\""), HasSubstr("--resume")));
  const Finished f2 = run_ballast({"doctor", run_.path("out"), "--no-disk-trial", "--json"});
  const json last = json::parse(f2.out)["last_run"];
  EXPECT_EQ(last["outcome"], "died");
  EXPECT_EQ(last["phase"], "load");
  EXPECT_EQ(last["step"], 0);
  EXPECT_THAT(last["out_of_memory"].get<std::string>(), testing::AnyOf("likely", "certain"));
  EXPECT_GT(last["planned"]["ram"].get<std::uint64_t>(), 32u << 20);
  EXPECT_EQ(last["allowed"]["ram"], 400'000'000u);
}

}  // namespace
}  // namespace ballast::test
