// A distillation whose GPU fails while it runs. The emulated GPU can be told to.

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "memory/gpu.h"
#include "report/flight_record.h"
#include "tests/train/distill_folder.h"

namespace ballast::train {
namespace {

using ::testing::HasSubstr;

TEST(GpuDistillFailure, NamesInstructionAndHoldersAndLeavesAReport) {
  if (!gpu_is_usable()) GTEST_SKIP() << "this build or machine has no usable GPU";
  if (open_gpu().name != "emulated GPU") GTEST_SKIP() << "a real one does not fail when told to";
  const tiny::DistillFolder d;
  DistillRun run = d.prepare({"--output_dir", d.file("out"), "--num_steps", "3"},
                             this_machine({.device = DeviceChoice::cuda}));
  auto planned = std::get<fit::PlannedRun>(fit::find_plan(run.request));
  TrainOptions options;
  options.handle_signals = false;
  std::int64_t steps = 0;
  options.on_step = [&](const StepRecord&) {
    ++steps;
    ::setenv("BALLAST_EMULATED_FAILURE", "25", 1);  // the 25th launch from here
  };
  std::vector<std::string> trail;
  try {
    distill(std::move(run), std::move(planned), options);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::device);
    trail = e.trail();
  }
  ::unsetenv("BALLAST_EMULATED_FAILURE");
  EXPECT_EQ(steps, 1);
  ASSERT_GE(trail.size(), 4u);
  EXPECT_THAT(trail[0], ::testing::MatchesRegex("running .+ of program .+"));
  EXPECT_THAT(trail[1], ::testing::AllOf(HasSubstr("in GPU memory ("), HasSubstr("weights ")));
  EXPECT_THAT(trail[2], HasSubstr("the GPU had done what stands before "));
  EXPECT_THAT(trail[3], HasSubstr("1 steps done"));
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(d.file("out"))) {
    const std::string folder = entry.path().string();
    if (!std::filesystem::exists(folder + "/report.html")) continue;
    ++folders;
    EXPECT_THAT(test::read_whole(folder + "/run_log.jsonl"), HasSubstr(trail[0]));
    EXPECT_THAT(test::read_whole(folder + "/report.html"), HasSubstr(trail[0]));
    EXPECT_EQ(read_flight_record(folder + "/" + std::string(kFlightFile)).state.phase,
              Phase::failed);
  }
  EXPECT_EQ(folders, 1);
}

}  // namespace
}  // namespace ballast::train
