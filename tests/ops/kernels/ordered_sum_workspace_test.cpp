// Ordered sums on a GPU wait in memory that their instruction declares: a plan has it, and nothing
// is allocated beside the arena.

#include <gtest/gtest.h>

#include "ops/flow_loss.h"
#include "ops/global_norm.h"
#include "ops/kernels/ordered_sum_cuda.h"
#include "ops/layer_norm.h"
#include "ops/rms_norm.h"
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

  // Bytes of the workspaces that the last instruction declares.
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
  void record_rms_norm(const Shape& x, bool trained) {
    rms_norm_backward(pb_, operand("x", x), operand("r", {x[0]}), operand("w", {x[1]}),
                      operand("dy", x), operand("dx", x),
                      trained ? operand("dw", {x[1]}) : Buffer());
  }
  void record_layer_norm(const Shape& x, std::int64_t tables) {
    layer_norm_backward(pb_, operand("x", x), operand("stats", {x[0], 2}), {}, operand("dy", x),
                        operand("dx", x), false,
                        {.dmul = {}, .dadd = operand("d", {tables, x[1]})});
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

// A float for each column and eighth of a quantum, of whole quanta in at most 1 MiB.
TEST_F(OrderedSumWorkspace, OfColumnsIsDeclaredWhereTheyAreSummed) {
  record_rms_norm({100, 64}, true);
  EXPECT_EQ(declared(), 4 * 64 * 4);
  record_rms_norm({32760, 5120}, true);
  EXPECT_EQ(declared(), 6 * 8 * 5120 * 4);
}

// Were it one for each, streamed weights and gradients would wait for its memory.
TEST_F(OrderedSumWorkspace, OfColumnsIsOneForAllOfAProgram) {
  record_layer_norm({100, 64}, 1);
  EXPECT_EQ(declared(), 4 * 64 * 4);
  const auto written = [&](std::size_t i) {
    const BufferList& writes = set_.programs.at(0).instructions.at(i).writes;
    return writes[writes.size() - 1];
  };
  record_rms_norm({100, 128}, true);
  EXPECT_EQ(declared(), 4 * 128 * 4);
  record_rms_norm({100, 64}, true);
  EXPECT_EQ(declared(), 4 * 128 * 4);
  EXPECT_EQ(written(0), written(1));
  EXPECT_EQ(written(1), written(2));
}

TEST_F(OrderedSumWorkspace, OfColumnsIsNoneWhereTheyAreSummedWithoutOrNotAtAll) {
  record_rms_norm({100, 64}, false);
  EXPECT_EQ(declared(), 0);
  record_rms_norm({100, 60}, true);  // not in eights
  EXPECT_EQ(declared(), 0);
  record_rms_norm({100, 65536}, true);  // not even one quantum
  EXPECT_EQ(declared(), 0);
  record_layer_norm({100, 64}, 3);
  EXPECT_EQ(declared(), 0);
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
  record_rms_norm({100, 64}, true);
  EXPECT_EQ(declared(), 0);
}

}  // namespace
}  // namespace ballast::ops::ordered_sum_workspace_test
