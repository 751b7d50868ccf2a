// Whole runs on the GPU of this machine; skipped where there is none.

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>

#include "memory/gpu.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"

namespace ballast::train {
namespace {

using support::difference;
using support::read_trace;
using support::RunTrace;
using support::TinyTraining;

constexpr const char* kLora =
    "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
    "[optimizer]\ntype = 'adamw'\nlr = 1e-2\n";
constexpr const char* kFull = "[optimizer]\ntype = 'adamw'\nlr = 2e-3\n";

// All of a safetensors file but its header.
std::string tensors_in(const std::string& path) {
  const std::string file = test::read_whole(path);
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  return file.substr(sizeof header + header);
}

class GpuTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_is_usable()) GTEST_SKIP() << "this build or machine has no usable GPU";
  }
  // flags: as on the command line.
  TrainOutcome train_on_gpu(const std::string& config, const std::vector<Setting>& flags = {},
                            std::optional<MemoryPolicy> policy = {}) {
    PreparedRun run = prepare_run(read_config(config, flags),
                                  this_machine({.device = DeviceChoice::cuda}), Purpose::train);
    if (policy) run.request.policy = policy;
    auto outcome = fit::find_plan(run.request);
    if (!std::holds_alternative<fit::PlannedRun>(outcome)) throw std::runtime_error("refused");
    return train(std::move(run), std::move(std::get<fit::PlannedRun>(outcome)), {});
  }
};

TEST_F(GpuTraining, LossFalls) {
  TinyTraining t;
  t.add_clips(1, {4, 1, 4, 4});
  const TrainOutcome o = train_on_gpu(t.write_config("epochs = 150", kFull));
  const RunHistory h = read_run_log(o.folder + "/" + std::string(kRunLogFile));
  ASSERT_EQ(h.steps.size(), 150u);
  const auto mean = [&](std::size_t from, std::size_t to) {
    double sum = 0;
    for (std::size_t i = from; i < to; ++i) sum += h.steps[i].loss;
    return sum / static_cast<double>(to - from);
  };
  EXPECT_LT(mean(130, 150), 0.7 * mean(0, 20));
  EXPECT_TRUE(std::filesystem::exists(o.folder + "/epoch150/model.safetensors"));
}

TEST_F(GpuTraining, KeepsToItsPlan) {
  TinyTraining t;
  t.add_clips(2, {4, 2, 8, 8});
  const TrainOutcome o = train_on_gpu(t.write_config("epochs = 3", kLora));
  EXPECT_EQ(o.steps, 6);
  EXPECT_LE(o.measured, o.planned);
  if (open_gpu().context.count == 0) GTEST_SKIP() << "the driver does not say what contexts take";
  EXPECT_GT(o.measured_gpu, Bytes{});
  // Memory is handed out in pieces of 2 MiB, and the context's size depends on the driver.
  EXPECT_LE(o.measured_gpu, o.planned_gpu + 64_MiB);
}

TEST_F(GpuTraining, ResumedRunEndsInTheSameBits) {
  for (const char* tables : {kLora, kFull}) {
    TinyTraining t(support::trainable_config(2));
    t.add_clips(3, {4, 1, 4, 4}, "small");
    t.add_clips(2, {4, 2, 4, 4}, "long");
    const RunTrace whole = read_trace(train_on_gpu(t.write_config("epochs = 2", tables)).folder);
    ASSERT_EQ(whole.steps.size(), 10u);
    const TrainOutcome first =
        train_on_gpu(t.write_config("epochs = 2\nmax_steps = 4", tables, "part.toml"));
    const TrainOutcome second = train_on_gpu(t.write_config("epochs = 2", tables),
                                             {{"resume", {first.folder}, "--resume"}});
    RunTrace resumed = read_trace(second.folder);
    // What the first part saved at its own end is not part of the whole run.
    std::erase_if(resumed.files, [&](const auto& f) { return !whole.files.contains(f.first); });
    EXPECT_EQ(difference(whole, resumed), "") << tables;
  }
}

TEST_F(GpuTraining, EveryPolicyEndsInTheSameBits) {
  TinyTraining t(support::trainable_config(3));
  t.add_clips(3, {4, 2, 8, 8});
  const std::string config = t.write_config("epochs = 1", kLora);
  const RunTrace resident = read_trace(train_on_gpu(config, {}, find_policy("resident")).folder);
  for (const char* name : {"stream1", "stream2", "recompute", "offload"}) {
    EXPECT_EQ(difference(resident, read_trace(train_on_gpu(config, {}, find_policy(name)).folder)),
              "")
        << name;
  }
}

TEST_F(GpuTraining, StartsFromALoraThatItSaved) {
  TinyTraining t(support::trainable_config(1));
  t.add_clips(2, {4, 1, 4, 4});
  const TrainOutcome first =
      train_on_gpu(t.write_config("epochs = 2\nsave_dtype = 'float32'", kLora));
  const std::string saved = first.folder + "/epoch2";
  ASSERT_TRUE(std::filesystem::exists(saved + "/adapter_model.safetensors"));
  const TrainOutcome second = train_on_gpu(
      t.write_config("epochs = 1\nsave_dtype = 'float32'",
                     fmt::format("[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                                 "init_from_existing = '{}'\n[optimizer]\ntype = 'adamw'\nlr = 0\n"
                                 "weight_decay = 0\n",
                                 saved)));
  // At a learning rate of 0 it ends with what it began with.
  EXPECT_EQ(tensors_in(second.folder + "/epoch1/adapter_model.safetensors"),
            tensors_in(saved + "/adapter_model.safetensors"));
}

}  // namespace
}  // namespace ballast::train
