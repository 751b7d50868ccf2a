// A run whose output cannot be written, from the start or at some time later.

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "report/flight_record.h"
#include "tests/e2e/training_process.h"
#include "tests/support/small_disk.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using support::TinyTraining;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kForever = "epochs = 100000\nsteps_per_print = 100000\n";

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++n;
  return n;
}

// Takes every byte that is left on the disk.
void fill(const std::string& disk) {
  std::ofstream greedy(disk + "/greedy", std::ios::binary);
  const std::string block(4096, 'x');
  while (greedy.write(block.data(), 4096).flush()) {
  }
}

class TrainingDisk : public testing::Test {
 protected:
  TrainingDisk() { run_.add_clips(4, {4, 1, 4, 4}); }
  void SetUp() override {
    if (!disk_.mounted()) GTEST_SKIP() << "no right to mount a small disk here";
  }
  std::string folder() {
    fs::create_directories(run_.path("disk"));
    return run_.path("disk");
  }

  TinyTraining run_;
  SmallDisk disk_{folder(), "size=8m"};
  std::string out_ = disk_.path() + "/out";
};

TEST_F(TrainingDisk, FullWhenACheckpointIsSavedEndsTheRunAndKeepsTheOneBefore) {
  const std::string config =
      run_.write_config(std::string(kForever) + "checkpoint_every_n_steps = 10");
  TrainingProcess process({config, "--output_dir", out_, "--ignore-limits"});
  ASSERT_TRUE(process.wait_for([&] {
    return fs::exists(newest_run(out_) + "/checkpoints/step-00000010/COMMITTED");
  })) << process.err();
  fill(disk_.path());
  const Finished f = process.finish();
  EXPECT_EQ(f.exit_code, 6) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("while saving the checkpoint step-"),
                           HasSubstr("the newest checkpoint is of step "),
                           AnyOf(HasSubstr("are missing; earlier checkpoints are untouched"),
                                 HasSubstr("No space left on device"))));
  expect_whole_checkpoint(newest_run(out_), 10);

  fs::remove(disk_.path() + "/greedy");
  const auto step = train::find_checkpoint(newest_run(out_)).found->state.step;
  const Finished again =
      train({config, "--output_dir", out_, "--resume", "--max_steps", std::to_string(step + 2)});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr(fmt::format("finished after {} steps", step + 2)));
}

TEST_F(TrainingDisk, TooFullForStateOnDiskEndsTheRunBeforeItBegins) {
  const std::string config =
      run_.write_config("epochs = 1", "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n");
  const std::vector<std::string> arguments = {config, "--output_dir", out_, "--policy",
                                              "state-on-disk"};
  const Finished refused = train(arguments);
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("more disk space needed"));
  std::vector<std::string> allowed = arguments;
  allowed.insert(allowed.end(), {"--disk", "1GB"});
  fill(disk_.path());
  const std::string greedy = disk_.path() + "/greedy";
  fs::resize_file(greedy, fs::file_size(greedy) - (256 << 10));  // for what every run writes
  const Finished full = train(allowed);
  EXPECT_EQ(full.exit_code, 3) << full.err;
  EXPECT_THAT(full.err, AllOf(HasSubstr("more disk space needed in " + out_),
                              HasSubstr("\n  optimizer state "), HasSubstr("\n  checkpoints ")));
  allowed.push_back("--ignore-limits");
  const Finished ignored = train(allowed);
  EXPECT_EQ(ignored.exit_code, 6) << ignored.err;
  EXPECT_THAT(ignored.err,
              AllOf(HasSubstr("the optimizer's state takes"), HasSubstr("are missing")));
}

TEST_F(TrainingDisk, TooSmallForCheckpointsIsRefusedBeforeAnythingIsDone) {
  const std::string config = run_.write_config("epochs = 10\ncheckpoint_every_n_steps = 1");
  const std::vector<std::string> arguments = {config, "--output_dir", out_};
  fill(disk_.path());
  const std::string greedy = disk_.path() + "/greedy";
  fs::resize_file(greedy, fs::file_size(greedy) - (640 << 10));  // enough for the logs alone
  const Finished refused = train(arguments);
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("more disk space needed in " + out_), HasSubstr("\n  checkpoints "),
                    HasSubstr("4 of "), HasSubstr("3 kept and the one that is written"),
                    HasSubstr("--keep_checkpoints 1"), HasSubstr("--ignore-limits")));
  EXPECT_FALSE(fs::exists(out_));
  std::vector<std::string> plan = {"plan"};
  plan.insert(plan.end(), arguments.begin(), arguments.end());
  EXPECT_EQ(run_ballast(plan).exit_code, 3);
  // With room for what it announces the run ends well.
  fs::remove(greedy);
  const Finished f = train(arguments);
  EXPECT_EQ(f.exit_code, 0) << f.err;
}

TEST_F(TrainingDisk, WhatAResumedRunHasAlreadyIsNotNeededTwice) {
  const std::string config = run_.write_config("epochs = 10\ncheckpoint_every_n_steps = 1");
  const auto planned = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"plan", config, "--output_dir", out_, "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished f = run_ballast(all);
    EXPECT_EQ(f.exit_code, 0) << f.err;
    const auto files = nlohmann::json::parse(f.out)["files"];
    EXPECT_EQ(files["lines"][0]["name"], "checkpoints");
    return files["lines"][0]["bytes"].get<std::int64_t>();
  };
  const std::int64_t fresh = planned({});
  ASSERT_EQ(train({config, "--output_dir", out_, "--max_steps", "8"}).exit_code, 0);
  EXPECT_EQ(4 * planned({"--resume"}), fresh);
  // No file is larger than what was announced for all of them.
  std::uintmax_t written = 0;
  for (const auto& e : fs::recursive_directory_iterator(newest_run(out_) + "/checkpoints")) {
    if (e.is_regular_file()) written += e.file_size();
  }
  EXPECT_LE(written, static_cast<std::uintmax_t>(fresh) * 3 / 4);
}

TEST_F(TrainingDisk, FullWhenTheLoraIsSavedEndsTheRunAndKeepsTheOneBefore) {
  TrainingProcess process({run_.write_config(std::string(kForever) + "save_every_n_steps = 10"),
                           "--output_dir", out_, "--ignore-limits"});
  ASSERT_TRUE(process.wait_for([&] {
    return fs::exists(newest_run(out_) + "/step10/adapter_model.safetensors");
  })) << process.err();
  fill(disk_.path());
  const Finished f = process.finish();
  EXPECT_EQ(f.exit_code, 6) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("No space left on device"), HasSubstr(newest_run(out_)),
                           HasSubstr("while saving the model after step ")));
  expect_whole_model(newest_run(out_) + "/step10");
  for (const auto& e : fs::directory_iterator(newest_run(out_))) {
    EXPECT_THAT(e.path().filename().string(), Not(HasSubstr(".tmp-")));
  }
}

TEST_F(TrainingDisk, FullForLogsIsAWarningAndTrainingGoesOn) {
  TrainingProcess process({run_.write_config(kForever), "--output_dir", out_, "--ignore-limits"});
  ASSERT_TRUE(process.wait_for([&] { return steps_logged(out_) >= 5; })) << process.err();
  fill(disk_.path());
  ASSERT_TRUE(process.wait_for([&] { return count(process.err(), "training continues") == 2; }))
      << process.err();
  const int logged = steps_logged(out_);
  // A dozen steps that the log cannot tell of; the flight record has its space from the start.
  const std::string record = newest_run(out_) + "/" + std::string(kFlightFile);
  ASSERT_TRUE(process.wait_for([&] { return read_flight_record(record).state.step > logged + 12; }))
      << process.err();
  fs::remove(disk_.path() + "/greedy");
  ASSERT_TRUE(process.wait_for([&] { return steps_logged(out_) > logged + 5; })) << process.err();
  process.send(SIGINT);
  const Finished f = process.finish();
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("run_log.jsonl"), HasSubstr("tfevents"),
                           HasSubstr("No space left on device")));
  EXPECT_EQ(count(f.err, "training continues"), 2)
      << "once for the log, once for TensorBoard's file";
  expect_whole_checkpoint(newest_run(out_), logged + 5);
  EXPECT_TRUE(fs::exists(newest_run(out_) + "/report.html"));
}

TEST_F(TrainingDisk, ReadOnlyFromTheStartIsNamed) {
  if (!disk_.make_read_only()) GTEST_SKIP() << "no right to make it read-only";
  const Finished f = train({run_.write_config(), "--output_dir", out_});
  EXPECT_EQ(f.exit_code, 6) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr(out_), HasSubstr("Read-only file system")));
}

TEST(TrainingOutput, AFileWhereTheFolderShouldBeIsNamedAndStays) {
  TinyTraining run;
  run.add_clips(2, {4, 1, 4, 4});
  const TempDir dir;
  const std::string file = dir.write("out", "precious");
  const Finished f = train({run.write_config(), "--output_dir", file});
  EXPECT_EQ(f.exit_code, 6) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr(file), HasSubstr("Not a directory")));
  EXPECT_EQ(read_whole(file), "precious");
}

TEST(TrainingOutput, ASecondProcessInTheSameRunIsTurnedAway) {
  TinyTraining run;
  run.add_clips(2, {4, 1, 4, 4});
  const std::string config = run.write_config(std::string(kForever) + "checkpoint_every_n_steps=5");
  const std::string out = run.path("out");
  TrainingProcess first({config});
  ASSERT_TRUE(first.wait_for([&] { return steps_logged(out) >= 6; })) << first.err();
  const Finished second = train({config, "--resume"});
  EXPECT_EQ(second.exit_code, 6) << second.err;
  EXPECT_THAT(
      second.err,
      AllOf(HasSubstr(fmt::format("process {} is training in this run folder", first.pid())),
            HasSubstr("start without resume")));
  const int before = steps_logged(out);
  ASSERT_TRUE(first.wait_for([&] { return steps_logged(out) > before; })) << first.err();
  first.send(SIGTERM);
  EXPECT_EQ(first.finish().exit_code, 0) << first.err();
  expect_whole_checkpoint(newest_run(out), before);
}

}  // namespace
}  // namespace ballast::test
