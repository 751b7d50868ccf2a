#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "train/config/read_config.h"

namespace ballast::train::config_flow_matching_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TrainConfig read(const std::vector<std::string>& flags) { return read_config(flags); }

TEST(FlowMatchingConfig, HasItsTrainersDefaults) {
  const TrainConfig c = read({"--dataset_path", "data"});
  EXPECT_EQ(c.dialect, Dialect::flow_matching);
  EXPECT_EQ(c.method, Method::full);
  EXPECT_EQ(c.model.transformer_dtype, DType::bf16);
  EXPECT_EQ(c.dataset.config, "data");
  EXPECT_EQ(c.dataset.named, "--dataset_path");
  EXPECT_EQ(c.output_dir, "checkpoints");
  EXPECT_EQ(c.output_name, "wan22_flow");
  EXPECT_EQ(c.epochs, 100);
  EXPECT_EQ(c.save.epochs, 1);
  EXPECT_EQ(c.max_grad_norm, 1);
  EXPECT_EQ(c.schedule.style, ScheduleStyle::per_epoch_cosine);
  EXPECT_EQ(c.schedule.kind, ScheduleKind::cosine);
  EXPECT_EQ(c.schedule.learning_rate, 1e-4);
  EXPECT_EQ(c.schedule.min_rate, 1e-6);
  EXPECT_EQ(c.timesteps.sampling, TimestepSampling::shifted_table);
  EXPECT_EQ(c.timesteps.shift, 8);
  EXPECT_EQ(c.timesteps.time_offset, 0);
  EXPECT_EQ(c.optimizer.kind, OptimizerKind::adamw);
  EXPECT_EQ(c.optimizer.beta2, 0.999);
  EXPECT_EQ(c.optimizer.weight_decay, 0.01);
  EXPECT_EQ(c.memory.checkpointing, Checkpointing::automatic);
  EXPECT_THAT(c.notes, IsEmpty());
}

TEST(FlowMatchingConfig, HonoursItsFlagsWithDashesAndUnderscores) {
  for (const char* eight_bit : {"--use_8bit_adam", "--use-8bit-adam"}) {
    const TrainConfig c =
        read({"--dataset-path", "data", "--batch-size", "2", "--num_epochs", "7", "--learning-rate",
              "3e-5", "--checkpoint_dir", "out", "--gradient-checkpointing", eight_bit, "--model",
              "m.safetensors", "--ram", "64GB"});
    EXPECT_EQ(c.micro_batch.plain, 2);
    EXPECT_EQ(c.epochs, 7);
    EXPECT_EQ(c.schedule.learning_rate, 3e-5);
    EXPECT_EQ(c.output_dir, "out");
    EXPECT_EQ(c.memory.checkpointing, Checkpointing::recompute);
    EXPECT_EQ(c.optimizer.kind, OptimizerKind::adamw8bit);
    EXPECT_EQ(c.model.checkpoint, "m.safetensors");
    EXPECT_EQ(c.memory.ram, 64_GB);
  }
}

TEST(FlowMatchingConfig, NotesFlagsWithoutEffect) {
  const TrainConfig c =
      read({"--dataset_path", "d", "--num_workers", "4", "--vae_gradient_checkpointing",
            "--torch_compile", "--local_rank", "-1"});
  EXPECT_THAT(c.notes, ElementsAre(HasSubstr("--num_workers"),
                                   HasSubstr("--vae_gradient_checkpointing: no VAE is trained"),
                                   HasSubstr("--torch_compile"), HasSubstr("--local_rank")));
}

TEST(FlowMatchingConfig, ExplainsWrongFlags) {
  EXPECT_FAILS(read({"--dataset_path", "d", "--num_epoch", "3"}), ErrorCode::usage,
               "--num_epoch: unknown flag, did you mean num_epochs?");
  EXPECT_FAILS(read({"--dataset_path", "d", "--num_epochs", "0"}), ErrorCode::usage, "at least 1");
  EXPECT_FAILS(read({"--dataset_path", "d", "--batch_size", "0"}), ErrorCode::usage, "at least 1");
  EXPECT_FAILS(read({"--dataset_path"}), ErrorCode::usage, "expected one value");
}

}  // namespace
}  // namespace ballast::train::config_flow_matching_test
