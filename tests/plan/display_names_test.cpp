#include "plan/display_names.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(DisplayNames, AnInstructionIsSaidInWords) {
  EXPECT_EQ(instruction_text("blocks.3.backward.attention_backward"),
            "attention backward of block 3");
  EXPECT_EQ(instruction_text("blocks.12.linear"), "matrix product of block 12");
  EXPECT_EQ(instruction_text("blocks.39.backward.linear_dw"), "weight gradients of block 39");
  EXPECT_EQ(instruction_text("encoder.5.backward.rms_norm"),
            "rms norm (backward) of encoder block 5");
  EXPECT_EQ(instruction_text("inputs.patchify"), "patchify of inputs");
  EXPECT_EQ(instruction_text("adamw"), "adamw");
}

TEST(DisplayNames, AMomentNamesThePhase) {
  EXPECT_EQ(moment_text("step.1", "blocks.3.backward.attention_backward"),
            "in the step: attention backward of block 3");
  EXPECT_EQ(moment_text("init_state", ""), "in the optimizer set-up");
}

TEST(DisplayNames, OnTheCpuThereIsNoGpuMemory) {
  EXPECT_EQ(memory_name(Tier::device), "GPU memory");
  EXPECT_EQ(memory_name(Tier::device, true), "RAM (compute share, --gpu)");
  EXPECT_EQ(memory_name(Tier::host, true), "RAM");
}

}  // namespace
}  // namespace ballast
