// What a run that fails says: phase, instruction, and who holds memory.

#include <gmock/gmock.h>
#include <signal.h>

#include <new>

#include "core/crash_handler.h"
#include "core/error.h"
#include "plan/live_buffers.h"
#include "plan/program_builder.h"
#include "plan/runner.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

// A program "step" whose second instruction does what `broken` does, with 4 KB of weights, a
// temporary of 1 KB that lives and one of 2 KB that is dead by then.
struct FailingRun {
  explicit FailingRun(std::function<void()> broken) {
    ProgramBuilder pb(set, "step");
    const Buffer w = pb.persistent("w", {1000}, DType::f32, Role::weights);
    const Buffer dead = pb.temp("dead", {500}, DType::f32);
    const Buffer x = pb.temp("x", {250}, DType::f32);
    pb.emit("first", {.reads = {w}, .writes = {dead, x}}, [](const Bindings&) {});
    pb.emit("broken", {.reads = {w, x}, .writes = {w}}, [broken](const Bindings&) { broken(); });
    plan = plan_memory(set);
  }
  std::vector<std::string> trail() {
    try {
      Runner(set, plan).run("step");
    } catch (const Error& e) {
      message = e.what();
      code = e.code();
      return e.trail();
    }
    return {};
  }
  ProgramSet set;
  MemoryPlan plan;
  std::string message;
  ErrorCode code = ErrorCode::internal;
};

TEST(Failure, OfADeviceNamesInstructionProgramAndHolders) {
  FailingRun run([] { fail(ErrorCode::device, "launching x: an illegal address"); });
  const std::vector<std::string> trail = run.trail();
  ASSERT_EQ(trail.size(), 2u);
  EXPECT_EQ(trail[0], "running broken of program step");
  EXPECT_EQ(
      trail[1],
      "holding 5.000 kB in RAM (compute share, --gpu) (weights 4.000 kB, activations 1.000 kB; "
      "largest w 4.000 kB, x 1.000 kB) and nothing in RAM");
}

TEST(Failure, OfTheAllocatorIsNoLongerNameless) {
  FailingRun run([] { throw std::bad_alloc(); });
  const std::vector<std::string> trail = run.trail();
  ASSERT_EQ(trail.size(), 2u);
  EXPECT_EQ(run.code, ErrorCode::device);
  EXPECT_THAT(run.message, HasSubstr("the system has no memory left for this process"));
  EXPECT_EQ(trail[0], "running broken of program step");
  EXPECT_THAT(trail[1], HasSubstr("largest w"));
}

TEST(Failure, OfAnInputSpeaksOfTheInputAlone) {
  FailingRun run([] { fail(ErrorCode::input, "a.safetensors is cut short"); });
  EXPECT_THAT(run.trail(), ::testing::ElementsAre("running broken of program step"));
}

TEST(FailureDeathTest, OfTheProcessSaysWhatWasRunning) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto crash = [](int signal) {
    ::signal(signal, SIG_DFL);  // a sanitizer's handler would follow ours otherwise
    report_lanes_on_crash();
    FailingRun run([signal] { ::raise(signal); });
    (void)run.trail();
  };
  EXPECT_EXIT(crash(SIGSEGV), ::testing::KilledBySignal(SIGSEGV),
              "crashed by SIGSEGV.*\n.*while running broken of program step");
  EXPECT_EXIT(crash(SIGABRT), ::testing::KilledBySignal(SIGABRT), "while running broken");
}

}  // namespace
}  // namespace ballast
