// The scratch that the linear products ask for, and that they need no other memory.

#include <gtest/gtest.h>

#include "core/thread_pool.h"
#include "ops/linear/linear.h"
#include "ops/linear/sgemm.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/linear_calls.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::linear_workspace_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;
using support::SampleWeight;
using support::Workspace;

TEST(LinearWorkspace, IsNoneForF32AndAFewMegabytesAThreadOtherwise) {
  LinearSize s = {.rows = 4096, .inputs = 14336, .outputs = 14336, .threads = 3};
  EXPECT_EQ(linear_workspace(s), 0);
  EXPECT_EQ(linear_dx_workspace(s), 0);
  EXPECT_EQ(linear_dw_workspace(s), 0);
  s.x = s.y = DType::bf16;
  s.w_in_place = false;
  EXPECT_LE(linear_workspace(s), 3 * (6 << 20));
  EXPECT_LE(linear_dx_workspace(s), 3 * (6 << 20));
  EXPECT_LE(linear_dw_workspace(s), 3 * (2 << 20));
  s.rows = 0;
  EXPECT_EQ(linear_workspace(s), 0);
}

TEST(LinearWorkspace, OfTheGpuHoldsWhatMustBeCopied) {
  const std::int64_t library = 8 << 20, mib = 1 << 20;
  LinearSize s = {.rows = 4096,
                  .inputs = 1024,
                  .outputs = 2048,
                  .x = DType::bf16,
                  .y = DType::bf16,
                  .device = Device::cuda,
                  .w = DType::bf16};
  const std::int64_t plain = linear_workspace(s), plain_dx = linear_dx_workspace(s);
  EXPECT_GE(plain, library);
  EXPECT_LE(plain, library + mib);
  EXPECT_EQ(plain_dx, library);
  EXPECT_LE(linear_dw_workspace(s), library + mib);
  s.w = DType::f8_e4m3;  // expanded to bf16
  EXPECT_EQ(linear_workspace(s), plain + 4 * mib);
  EXPECT_EQ(linear_dx_workspace(s), plain_dx + 4 * mib);
  s.w = DType::bf16;
  s.x_aligned = false;  // goes through a copy in either direction
  EXPECT_EQ(linear_workspace(s), plain + 8 * mib);
  EXPECT_EQ(linear_dx_workspace(s), plain_dx + 8 * mib);
  s.x_aligned = true;
  s.x = DType::f32;  // rounded where it is read, f32 where it is written
  EXPECT_EQ(linear_workspace(s), plain + 8 * mib);
  EXPECT_EQ(linear_dx_workspace(s), plain_dx);
  s.rows = 0;
  EXPECT_EQ(linear_workspace(s), 0);
  EXPECT_EQ(linear_dw_workspace(s), 0);
}

TEST(LinearWorkspace, IsRefusedWhenOneByteShort) {
  SampleTensor x(DType::bf16, {3, 4}), y(DType::f32, {3, 5});
  const SampleWeight w(DType::f32, 5, 4);
  ThreadPool pool(1);
  Linear call = {.x = x.view(), .w = w.view(), .y = y.view()};
  const std::int64_t need = linear_workspace(linear_size(call, 1));
  Workspace enough(need), less(need - 1);
  call.workspace = enough.view();
  EXPECT_NO_THROW(linear(call, support::test_stream(pool)));
  call.workspace = less.view();
  EXPECT_THROW(linear(call, support::test_stream(pool)), Error);
}

TEST(Linear, AllocatesNothingAfterWarmUp) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  if (support::test_device() == Device::cuda) GTEST_SKIP() << "the driver allocates as it launches";
  ThreadPool pool(3);
  warm_up_blas(pool);
  SampleTensor x(DType::bf16, {600, 300}), y(DType::bf16, {600, 200});
  SampleTensor dw(DType::f32, {200, 300}), dbias(DType::f32, {200});
  x.fill_normal(1);
  const SampleWeight w = SampleWeight(DType::f8_e4m3, 200, 300).fill(2);
  Workspace workspace(3 * (6 << 20));
  const auto step = [&] {
    linear({.x = x.view(), .w = w.view(), .y = y.view(), .workspace = workspace.view()},
           support::test_stream(pool));
    linear_dx({.dy = y.view(), .w = w.view(), .dx = x.view(), .workspace = workspace.view()},
              support::test_stream(pool));
    linear_dw({.x = x.view(),
               .dy = y.view(),
               .dw = dw.view(),
               .dbias = dbias.view(),
               .workspace = workspace.view()},
              support::test_stream(pool));
  };
  allocation_hook::arm();
  for (int i = 0; i < 5; ++i) step();
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
}

// A slot of streamed weights may hold f32 weights at any byte.
TEST(LinearRecorded, PlansScratchForF32WeightsAtAnOddByte) {
  RecordedProgram p(1);
  SampleTensor x(DType::f32, {4, 6}), slot(DType::f16, {200});
  x.fill_normal(1);
  const Buffer bx = p.input("x", x), bslot = p.input("slot", slot);
  const Buffer odd = p.pb.view(bslot, 2, DType::f32, {5, 6});
  const Buffer even = p.pb.view(bslot, 4, DType::f32, {5, 6});
  linear(p.pb, bx, {.weight = odd}, DType::f32);
  linear(p.pb, bx, {.weight = even}, DType::f32);
  EXPECT_EQ(p.instruction(0).writes.size(), 2u);
  if (support::test_device() == Device::cpu) {  // the GPU's library always has a workspace
    EXPECT_EQ(p.instruction(1).writes.size(), 1u);
  }
  p.run();
}

}  // namespace
}  // namespace ballast::ops::linear_workspace_test
