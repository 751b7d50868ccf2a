// A failure that the GPU comes to long after it was given the work. It leaves a process without a
// GPU, so this test is the only one of its process (tests/CMakeLists.txt). The instructions are
// operations: layers above the plan, which its own tests do not know.

#include <gmock/gmock.h>

#include "core/error.h"
#include "memory/gpu.h"
#include "ops/fill.h"
#include "plan/runner.h"
#include "tests/support/test_device.h"

namespace ballast::gpu_failure_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(GpuFailure, SaysWhatWasDoneBeforeIt) {
  if (support::test_device() == Device::cpu) GTEST_SKIP() << "needs a GPU";
  if (open_gpu().name == "emulated GPU") GTEST_SKIP() << "its memory is the process's own";
  ProgramSet set;
  set.backend = {.device = Device::cuda};
  ProgramBuilder pb(set, "step");
  const Buffer x = pb.persistent("x", {1 << 20}, DType::f32, Role::input);
  const auto fills = [&](int count, const char* block) {
    const auto scope = pb.scope(block);
    for (int i = 0; i < count; ++i) ops::fill(pb, x, 1);
  };
  fills(40, "before");
  {
    const auto scope = pb.scope("bad");
    pb.emit("write", {.writes = {x}}, [=](const Bindings& b) {
      if (b.step().step < 3) return;
      TensorView nowhere = b.out(x);
      nowhere.data = reinterpret_cast<std::byte*>(0x1000);
      ops::fill({.to = nowhere, .value = 1}, b.stream());  // a kernel: a memset is refused at once
    });
  }
  fills(200, "behind");
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run("step", {.step = 1});
  runner.run("step", {.step = 2});  // from now on by recordings
  try {
    runner.run("step", {.step = 3});
    FAIL() << "the GPU wrote to address 4096";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::device);
    std::string trail;
    for (const std::string& line : e.trail()) trail += line + "\n";
    EXPECT_THAT(trail, AllOf(HasSubstr("before bad.write of program step"),
                             Not(HasSubstr("one of the 241 instructions"))));
  }
}

}  // namespace
}  // namespace ballast::gpu_failure_test
