#include "report/run_log.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::read_whole;
using test::TempDir;

StepRecord sample_step(std::int64_t step) {
  StepRecord r;
  r.time = 1700000000.5 + static_cast<double>(step);
  r.step = step;
  r.epoch = 1 + step / 10;
  r.loss = 1.0 / (3.0 + static_cast<double>(step));
  r.lr = 1e-4 / 3;
  r.grad_norm = static_cast<double>(0.1f);
  r.seconds = 1.25;
  r.times = {
      .compute = 1, .upload = 0.5, .disk = 0.25, .waiting = 0.125, .data = 0.0625, .save = 0};
  r.planned = {{10}, {20}, {0}, {40}};
  r.measured = {{9}, {19}, {0}, {1ull << 63}};
  r.samples = {"clip \"one\"\n#0", "völkisch\xff"};
  r.t = {0.1, 1.0 / 3};
  return r;
}

TEST(RunLog, StepReadsBackToTheSameBits) {
  const TempDir dir;
  const StepRecord written = sample_step(7);
  RunLog(dir.path("run.jsonl"), 0).step(written);
  const RunHistory history = read_run_log(dir.path("run.jsonl"));
  ASSERT_EQ(history.steps.size(), 1u);
  StepRecord expected = written;
  expected.samples[1] = "völkisch\xEF\xBF\xBD";  // not UTF-8: replaced, so that the line is JSON
  EXPECT_EQ(history.steps[0], expected);
  EXPECT_EQ(history.unreadable, 0);
}

TEST(RunLog, StepWithBatchesTellsTheSpeed) {
  const TempDir dir;
  StepRecord written = sample_step(7);
  written.samples = {"1", "2", "3", "4", "5"};
  written.batches = 2;
  RunLog(dir.path("run.jsonl"), 0).step(written);
  const auto line = nlohmann::json::parse(read_whole(dir.path("run.jsonl")));
  EXPECT_EQ(line["batches"], 2);
  EXPECT_EQ(line["samples_per_second"], 4.0);
  EXPECT_EQ(line["batches_per_second"], 1.6);
  EXPECT_EQ(read_run_log(dir.path("run.jsonl")).steps.at(0), written);
}

TEST(RunLog, ReadsOfManyStepsOnlyWhatIsAskedFor) {
  const TempDir dir;
  {
    RunLog log(dir.path("run.jsonl"), 0);
    for (std::int64_t s = 1; s <= 10; ++s) {
      log.step(sample_step(s));
      log.event(s, "memory", "x");
    }
  }
  const RunHistory history = read_run_log(dir.path("run.jsonl"), 4);
  ASSERT_EQ(history.steps.size(), 2u);
  EXPECT_EQ(history.steps[0].step, 4);
  EXPECT_EQ(history.steps[1].step, 8);
  EXPECT_EQ(history.events.size(), 10u);
  EXPECT_EQ(step_stride(4096), 1);
  EXPECT_EQ(step_stride(4097), 2);
  EXPECT_LE(1'000'000 / step_stride(1'000'000), kMaxSteps);
}

TEST(RunLog, EveryLineIsOneJsonObjectWithKindTimeAndStep) {
  const TempDir dir;
  {
    RunLog log(dir.path("run.jsonl"), 0);
    RunInfo info;
    info.title = "two\nlines";
    info.config = "a = \"b\"\n";
    log.run(info);
    log.step(sample_step(1));
    log.eval(1, "eval0", 0.5);
    log.event(1, "checkpoint", "wrote \"it\"");
  }
  std::istringstream lines(read_whole(dir.path("run.jsonl")));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto j = nlohmann::json::parse(line);
    EXPECT_TRUE(j.at("kind").is_string());
    EXPECT_GT(j.at("time").get<double>(), 1.6e9);
    EXPECT_TRUE(j.at("step").is_number_integer());
  }
  EXPECT_EQ(count, 4);
}

TEST(RunLog, NotANumberIsNullAndReadsBackAsOne) {
  const TempDir dir;
  StepRecord r = sample_step(1);
  r.loss = NAN;
  r.grad_norm = INFINITY;
  RunLog(dir.path("run.jsonl"), 0).step(r);
  EXPECT_THAT(read_whole(dir.path("run.jsonl")), ::testing::HasSubstr("\"loss\":null"));
  EXPECT_TRUE(std::isnan(read_run_log(dir.path("run.jsonl")).steps.at(0).loss));
}

TEST(RunLog, ResumedLogTellsOfEachStepOnce) {
  const TempDir dir;
  const std::string path = dir.path("run.jsonl");
  {
    RunLog log(path, 0);
    log.run({});
    for (std::int64_t s = 1; s <= 9; ++s) {
      log.step(sample_step(s));
      if (s == 5) log.event(5, "checkpoint", "");
      if (s == 8) log.eval(8, "eval0", 1);
    }
  }
  {
    RunLog log(path, 5);
    log.event(5, "resume", "");
    for (std::int64_t s = 6; s <= 8; ++s) log.step(sample_step(s));
  }
  const RunHistory history = read_run_log(path);
  ASSERT_EQ(history.steps.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(history.steps[i].step, static_cast<int>(i) + 1);
  ASSERT_EQ(history.events.size(), 2u);
  EXPECT_EQ(history.events[1].event, "resume");
  EXPECT_TRUE(history.evals.empty());
}

// Wherever a kill cuts the last line, resuming repairs the log and goes on.
TEST(RunLog, ATornLastLineIsRepairedAtEveryCut) {
  const TempDir dir;
  const std::string path = dir.path("run.jsonl");
  {
    RunLog log(path, 0);
    for (std::int64_t s = 1; s <= 3; ++s) log.step(sample_step(s));
  }
  const std::string whole = read_whole(path);
  const std::size_t third = whole.rfind('\n', whole.size() - 2) + 1;
  for (std::size_t cut = third; cut < whole.size(); ++cut) {
    std::filesystem::remove(path);  // truncating it would make some file systems write it to disk
    dir.write("run.jsonl", whole.substr(0, cut));
    const bool only_its_end_is_missing = cut + 1 == whole.size();
    EXPECT_EQ(read_run_log(path).steps.size(), only_its_end_is_missing ? 3u : 2u) << cut;
    RunLog log(path, 3);
    if (!only_its_end_is_missing) log.step(sample_step(3));
    EXPECT_EQ(read_whole(path), whole) << cut;
  }
}

TEST(RunLog, StartingAnewLeavesNothingOfAnEarlierRun) {
  const TempDir dir;
  dir.write("run.jsonl", "{\"kind\":\"event\",\"step\":0,\"event\":\"old\"}\nrubbish");
  RunLog log(dir.path("run.jsonl"), 0);
  EXPECT_EQ(read_whole(log.path()), "");
}

TEST(RunLog, LinesOfOthersAreCountedAndNeverStopTheReader) {
  const TempDir dir;
  std::string hostile = "\n[1,2]\n{\"kind\":7,\"step\":1}\n{\"kind\":\"step\",\"step\":\"x\"}\n";
  hostile += "{\"kind\":\"step\",\"step\":3,\"loss\":\"high\",\"samples\":{},\"memory\":[]}\n";
  hostile += std::string(100000, '[') + "\n" + std::string(1000, '\0') + "\n\xff\xfe\n";
  hostile +=
      "{\"kind\":\"run\",\"step\":0,\"info\":{\"plan\":[[],{\"roles\":[[1]]}],\"title\":{}}}";
  const RunHistory history = read_run_log(dir.write("run.jsonl", hostile));
  ASSERT_EQ(history.steps.size(), 1u);
  EXPECT_EQ(history.steps[0].step, 3);
  EXPECT_TRUE(std::isnan(history.steps[0].loss));
  EXPECT_EQ(history.unreadable, 6);
  ASSERT_TRUE(history.info.has_value());
  EXPECT_EQ(history.info->title, "");
}

TEST(RunLog, MissingFileIsAnIoError) {
  EXPECT_FAILS(read_run_log("/nonexistent/run.jsonl"), ErrorCode::io, "/nonexistent/run.jsonl");
}

TEST(RunLog, StepAllocatesNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const TempDir dir;
  RunLog log(dir.path("run.jsonl"), 0);
  const StepRecord record = sample_step(1);
  log.step(record);
  allocation_hook::arm();
  log.step(record);
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
}

TEST(RunInfo, TimesThatAreNoDatesAreUnknown) {
  for (const double time : {1e300, -1e300, 253402300800.0, std::nan("")}) {
    EXPECT_EQ(iso_time(time), "unknown") << time;
  }
  EXPECT_EQ(iso_time(253402300799.0), "9999-12-31T23:59:59Z");
}

TEST(RunInfo, ReadsBackFromJson) {
  RunInfo info;
  info.title = "a \"run\"";
  info.command = "ballast train x.toml";
  info.started = iso_time(1700000000);
  info.total_steps = 12;
  info.summary = {{"dataset", "3 clips"}, {"rank", "16"}};
  info.environment = {{"processors", "2"}};
  info.planned = {{1}, {2}, {3}, {4}};
  info.allowed = {{10}, {20}, {30}, {40}};
  info.plan = {{"step", "device", {100}, {90}, {{"weights", {60}}, {"activation", {40}}}}};
  info.config = "line one\nline two\n";
  info.notes = {"wandb keys have no effect"};
  EXPECT_EQ(info.started, "2023-11-14T22:13:20Z");
  EXPECT_EQ(run_info_from_json(to_json(info)), info);
}

}  // namespace
}  // namespace ballast
