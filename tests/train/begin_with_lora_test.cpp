// Runs whose adapter begins with the factors of a LoRA file (init_from_existing,
// --network_weights).

#include <gtest/gtest.h>

#include "core/convert.h"
#include "io/safetensors.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/config/read_config.h"

namespace ballast::train {
namespace {

class BeginsWithLora : public ::testing::Test {
 protected:
  BeginsWithLora() : training_(support::trainable_config(1)) {
    training_.add_clips(2, {4, 1, 4, 4});
    first_ = support::train_in_process(
                 training_.write_config("epochs = 2\nsave_dtype = 'float32'", tables("float32", 4)))
                 .folder +
             "/epoch2";
  }

  static std::string tables(const char* dtype, int rank, const std::string& more = "") {
    return fmt::format(
        "[adapter]\ntype = 'lora'\nrank = {}\ndtype = '{}'\n{}"
        "[optimizer]\ntype = 'adamw'\nlr = {}\nweight_decay = 0\n",
        rank, dtype, more, more.empty() ? "1e-2" : "0");
  }
  std::string from_first() const { return fmt::format("init_from_existing = '{}'\n", first_); }

  static std::map<std::string, std::vector<float>> values_in(const std::string& folder) {
    std::map<std::string, std::vector<float>> all;
    const auto file = SafetensorsFile::open(folder + "/adapter_model.safetensors");
    for (const SafetensorsEntry& e : file.entries()) {
      EXPECT_EQ(e.dtype, FileDType::f32);
      std::vector<float>& values = all[std::string(e.name)];
      values.resize(e.bytes / sizeof(float));
      file.file().read(e.offset, std::as_writable_bytes(std::span(values)));
    }
    return all;
  }

  support::TinyTraining training_;
  std::string first_;
};

TEST_F(BeginsWithLora, FactorsMayBeNarrower) {
  // At a learning rate of 0 a run ends with what it began with.
  const TrainOutcome second = support::train_in_process(training_.write_config(
      "epochs = 1\nsave_dtype = 'float32'", tables("bfloat16", 4, from_first())));
  const auto began = values_in(first_), ended = values_in(second.folder + "/epoch1");
  ASSERT_EQ(began.size(), ended.size());
  bool any = false;
  for (const auto& [name, values] : began) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      // bf16 has eight bits.
      EXPECT_NEAR(ended.at(name)[i], values[i], 0x1p-8 * std::abs(values[i])) << name << " " << i;
      any = any || values[i] != 0;
    }
  }
  EXPECT_TRUE(any);
}

TEST_F(BeginsWithLora, AnotherRankIsNamedBeforeAnythingIsPlanned) {
  const auto prepare = [&](TrainConfig config) {
    return prepare_run(std::move(config), support::small_machine(), Purpose::plan);
  };
  const std::string config =
      training_.write_config("epochs = 1", tables("float32", 8, from_first()));
  EXPECT_FAILS(prepare(read_config(config)), ErrorCode::input,
               "has rank 4, this run trains rank 8");
  TrainConfig of_file = read_config(config);
  of_file.adapter.rank = 0;  // --dim_from_weights
  of_file.adapter.alpha = 1;
  const PreparedRun run = prepare(std::move(of_file));
  EXPECT_EQ(run.config.adapter.rank, 4);
  EXPECT_EQ(run.config.adapter.alpha, 4);
  EXPECT_EQ(wan::job_of(run.request).dit.lora.rank, 4);
}

}  // namespace
}  // namespace ballast::train
