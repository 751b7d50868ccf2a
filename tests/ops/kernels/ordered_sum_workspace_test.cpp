// Ordered sums on a GPU wait in memory that their instruction declares: a plan has it, and nothing
// is allocated beside the arena.

#include <gtest/gtest.h>

#include "ops/flow_loss.h"
#include "ops/global_norm.h"
#include "ops/kernels/ordered_sum_cuda.h"
#include "plan/program_builder.h"

namespace ballast::ops::ordered_sum_workspace_test {
namespace {

class OrderedSumWorkspace : public testing::Test {
 protected:
  explicit OrderedSumWorkspace(Device device = Device::cuda) {
    set_.executable = false;
    set_.backend.device = device;
  }

  Buffer operand(std::string_view name, const Shape& shape, DType dtype = DType::f32,
                 Tier tier = Tier::device) {
    return pb_.persistent(name, shape, dtype, Role::gradient, tier);
  }

  // Bytes of the workspaces that the last instruction declares; each lives for it alone.
  std::int64_t declared() const {
    const Instruction& last = set_.programs.at(0).instructions.back();
    EXPECT_FALSE(last.prepare) << last.name;
    std::uint64_t bytes = 0;
    for (const Buffer b : last.writes) {
      if (set_.spec(b).role == Role::workspace) bytes += set_.spec(b).bytes;
    }
    return static_cast<std::int64_t>(bytes);
  }

  void record_sum(Tier tier = Tier::device) {
    const Buffer sum = operand("sum", {1}, DType::f64, tier);
    sum_squares(pb_, operand("x", {100}, DType::f32, tier), sum, sum_squares_scratch(pb_, sum));
  }
  void record_loss() {
    flow_loss(pb_,
              {.pred = operand("pred", {4, 4}),
               .target = operand("target", {4, 4}),
               .loss = operand("loss", {1}, DType::f64)},
              {});
  }

  ProgramSet set_;
  ProgramBuilder pb_{set_, "test"};
};

class OrderedSumOnProcessors : public OrderedSumWorkspace {
 protected:
  OrderedSumOnProcessors() : OrderedSumWorkspace(Device::cpu) {}
};

TEST_F(OrderedSumWorkspace, IsDeclaredByTheInstruction) {
  record_sum();
  EXPECT_EQ(declared(), cuda::kSumScratchBytes);
  record_loss();
  EXPECT_EQ(declared(), cuda::kSumScratchBytes);
}

TEST_F(OrderedSumWorkspace, IsNoneForWhatLiesInRam) {
  record_sum(Tier::host);
  EXPECT_EQ(declared(), 0);
}

TEST_F(OrderedSumOnProcessors, NeedNone) {
  record_sum();
  EXPECT_EQ(declared(), 0);
  record_loss();
  EXPECT_EQ(declared(), 0);
}

}  // namespace
}  // namespace ballast::ops::ordered_sum_workspace_test
