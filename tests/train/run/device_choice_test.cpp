#include "train/run/device_choice.h"

#include <gmock/gmock.h>

#include "fit/refusal_text.h"
#include "memory/budget.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_training.h"
#include "train/config/read_config.h"
#include "train/run/run_plan.h"
#include "train/run/run_summary.h"

namespace ballast::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kAdamW = "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";

GpuInfo gpu_called(std::string name, int sm) {
  GpuInfo g;
  g.name = std::move(name);
  g.sm = sm;
  g.memory = 24_GiB;
  g.free = 22_GiB;
  g.driver = g.runtime = 13000;
  return g;
}

TEST(DeviceChoice, ProcessorsCanAlwaysBeAskedFor) {
  const RunTarget t = this_machine({.device = DeviceChoice::cpu, .threads = 3});
  EXPECT_EQ(t.backend.device, Device::cpu);
  EXPECT_EQ(t.profile.device, Device::cpu);
  EXPECT_EQ(t.backend.threads, 3);
}

TEST(DeviceChoice, AutomaticTakesWhatIsThere) {
  const RunTarget t = this_machine({});
  EXPECT_EQ(t.backend.device, gpu_is_usable() ? Device::cuda : Device::cpu);
}

TEST(DeviceChoice, AGpuThatIsNotThereIsAnErrorThatSaysWhatToDo) {
  if (gpu_is_usable()) GTEST_SKIP() << "there is a GPU";
  const auto error = test::error_of([] { this_machine({.device = DeviceChoice::cuda}); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::device);
  ASSERT_FALSE(error->advice().empty());
  EXPECT_EQ(error->advice().back().change, "--device cpu");
}

TEST(DeviceChoice, PlansForTheGpuThatWasOpened) {
  const RunTarget t =
      gpu_target(gpu_called("NVIDIA GeForce RTX 4090", 89), {.deterministic = false});
  EXPECT_EQ(t.backend.device, Device::cuda);
  EXPECT_EQ(t.backend.sm, 89);
  EXPECT_FALSE(t.backend.deterministic);
  EXPECT_EQ(t.profile.name, "this");
  EXPECT_EQ(t.profile.description, "NVIDIA GeForce RTX 4090, rates of rtx4090");
  EXPECT_TRUE(t.profile.estimate);
  EXPECT_EQ(t.profile.gemm_flops, find_profile("rtx4090")->gemm_flops);
  EXPECT_EQ(t.profile.device_memory, 22_GiB - 256_MiB + t.profile.library_bytes);
}

// 100 GiB are free, but a control group leaves 10 GiB of them.
Machine machine_in_group() {
  Machine m;
  m.ram = 128_GiB;
  m.ram_available = 100_GiB;
  m.own_memory = 1_GiB;
  m.cgroup.groups = {{"/sys/fs/cgroup/job/memory.max", 16_GiB, 10_GiB}};
  m.cgroup.memory = 16_GiB;
  m.cgroup.memory_left = 10_GiB;
  return m;
}

TEST(ResolvedBudget, WithoutAGpuRamBoundsBoth) {
  const RunTarget cpu = this_machine({.device = DeviceChoice::cpu, .threads = 1});
  const Machine m = machine_in_group();
  const Budget free = resolve_budget(cpu, {}, m);
  EXPECT_EQ(free.host, 10_GiB - 512_MiB);
  EXPECT_EQ(free.gpu, free.host);
  EXPECT_EQ(free.disk, Bytes{});
  const Budget given = resolve_budget(cpu, {.gpu = 1_GiB, .ram = 2_GiB, .disk = 3_GiB}, m);
  EXPECT_EQ(given, (Budget{.gpu = 1_GiB, .host = 2_GiB, .disk = 3_GiB}));
}

TEST(ResolvedBudget, AGpuHasWhatIsFreeThere) {
  const RunTarget gpu = gpu_target(gpu_called("NVIDIA GeForce RTX 4090", 89), {});
  const Machine m = machine_in_group();
  EXPECT_EQ(resolve_budget(gpu, {}, m).gpu, gpu.profile.device_memory);
  EXPECT_EQ(resolve_budget(gpu, {.gpu = 8_GiB}, m).gpu, 8_GiB);
  EXPECT_EQ(resolve_budget(gpu, {.gpu = 80_GiB}, m).gpu, gpu.profile.device_memory);
}

TEST(ResolvedBudget, LimitsOfTheSystemHoldUnlessTheyAreIgnored) {
  const RunTarget cpu = this_machine({.device = DeviceChoice::cpu, .threads = 1});
  const RunTarget gpu = gpu_target(gpu_called("NVIDIA GeForce RTX 4090", 89), {});
  const Machine m = machine_in_group();
  EXPECT_LE(resolve_budget(cpu, {.ram = 64_GiB}, m).host, 16_GiB);
  EXPECT_TRUE(resolve_budget(cpu, {.ram = 64_GiB}, m).ram_limit.has_value());
  for (const RunTarget* target : {&cpu, &gpu}) {
    const Budget b =
        resolve_budget(*target, {.gpu = 80_GiB, .ram = 64_GiB, .ignore_limits = true}, m);
    EXPECT_EQ(b, (Budget{.gpu = 80_GiB, .host = 64_GiB, .disk = {}}));
    EXPECT_FALSE(b.ram_limit || b.gpu_limit);
  }
}

TEST(ResolvedBudget, LimitsHereAreNotThoseOfAnotherMachine) {
  const RunTarget other = target_of(*find_profile("h200"), {});
  const Budget b = resolve_budget(other, {.gpu = 140_GB, .ram = 200_GB}, machine_in_group());
  EXPECT_EQ(b, (Budget{.gpu = 140_GB, .host = 200_GB, .disk = {}}));
}

TEST(ResolvedBudget, WhereNothingIsLeftItIsNotZero) {
  Machine m;
  m.ram_available = 100_MiB;
  const RunTarget cpu = this_machine({.device = DeviceChoice::cpu, .threads = 1});
  EXPECT_EQ(resolve_budget(cpu, {}, m).host, Bytes{1}) << "0 means no limit to some models";
}

TEST(DeviceChoice, AnotherMachineHasItsOwnDevice) {
  const RunTarget t = target_of(*find_profile("rtx3090"), {.device = DeviceChoice::cpu});
  EXPECT_EQ(t.backend.device, Device::cuda);
  EXPECT_EQ(t.backend.sm, 86);
}

TEST(DeviceChoice, IsReadFromFileAndFlags) {
  support::TinyTraining training;
  const auto read = [&](const std::string& memory, const std::vector<std::string>& flags = {}) {
    std::vector<std::string> arguments = {
        training.write_config("epochs = 1", kAdamW + "[memory]\n" + memory)};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return read_config(arguments).memory;
  };
  EXPECT_EQ(read("").device, DeviceChoice::automatic);
  EXPECT_TRUE(read("").deterministic);
  EXPECT_EQ(read("device = 'cuda'").device, DeviceChoice::cuda);
  EXPECT_EQ(read("device = 'cuda'", {"--device", "cpu"}).device, DeviceChoice::cpu);
  EXPECT_FALSE(read("deterministic = false").deterministic);
  EXPECT_FALSE(read("", {"--non-deterministic"}).deterministic);
  EXPECT_FALSE(read("").fp8_matmul);
  EXPECT_TRUE(read("fp8_matmul = true").fp8_matmul);
  EXPECT_TRUE(read("", {"--fp8-matmul"}).fp8_matmul);
  EXPECT_FAILS(read("device = 'gpu'"), ErrorCode::input, "expected one of auto, cpu, cuda");
  EXPECT_FAILS(read("", {"--device", "cud"}), ErrorCode::usage, "(cuda?)");
}

// A run planned for a GPU that this machine need not have.
struct GpuPlan {
  GpuPlan(const std::string& config, const RunTarget& target)
      : run(prepare_run(read_config(config), target, Purpose::plan)),
        planned(std::get<fit::PlannedRun>(fit::find_plan(run.request))) {}
  std::string table() const {
    return plan_table(title_of(run), view_of(run.request, planned, &run), {.details = true});
  }
  PreparedRun run;
  fit::PlannedRun planned;
};

TEST(GpuPlan, SaysWhatIsTrainedAndWhoseRamItIs) {
  support::TinyTraining training;
  training.add_clips(8, {4, 1, 4, 4});
  const RunTarget target = target_of(*find_profile("rtx3090"), {});
  const std::string steps =
      "epochs = 1\nmicro_batch_size_per_gpu = 2\ngradient_accumulation_steps = 2";
  const std::string lora = "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n" + kAdamW;
  const GpuPlan p(training.write_config(steps, lora), target);
  // Two blocks; 8 matrices of 128 x 128, 2 of 128 x 160; rank 4.
  EXPECT_EQ(title_of(p.run).sizes.parameters, 2 * 4 * (8 * 256 + 2 * 288));
  EXPECT_THAT(p.table(), HasSubstr("trains     21.0 K trainable parameters, effective batch 4\n"));
  const GpuPlan full(training.write_config(steps, kAdamW), target);
  std::int64_t stored = 0;
  for (const WeightTensor& t : full.run.checkpoints[0].tensors()) {
    stored += t.entry->shape.elements();
  }
  EXPECT_EQ(title_of(full.run).sizes.parameters, stored);

  constexpr const char* kWhose = "is this machine's, not the target's; --ram sets the target's";
  EXPECT_THAT(p.table(), HasSubstr(kWhose));
  Refusal refusal = {.policy = "auto", .needed = {}, .shortages = {}};
  refusal.shortages.push_back({.tier = Tier::host,
                               .program = "step",
                               .at = {},
                               .needed = 2_GB,
                               .allowed = 1_GB,
                               .roles = {}});
  EXPECT_THAT(fit::refusal_text(refusal, title_of(p.run)), HasSubstr(kWhose));
  const GpuPlan given(training.write_config(steps, lora + "[memory]\nram = '8GB'\n"), target);
  EXPECT_THAT(given.table(), Not(HasSubstr(kWhose)));
  EXPECT_THAT(fit::refusal_text(refusal, title_of(given.run)), Not(HasSubstr(kWhose)));
  const GpuPlan here(training.write_config(steps, lora),
                     gpu_target(gpu_called("NVIDIA GeForce RTX 3090", 86), {}));
  EXPECT_THAT(here.table(), Not(HasSubstr(kWhose)));
}

TEST(GpuPlan, CountsContextAndPinnedMemory) {
  support::TinyTraining training;
  training.add_clips(1, {4, 1, 4, 4});
  const RunTarget target = gpu_target(gpu_called("NVIDIA A100-SXM4-80GB", 80), {});
  const GpuPlan p(training.write_config("epochs = 1"), target);
  EXPECT_EQ(p.run.request.backend.sm, 80);
  EXPECT_EQ(wan::job_of(p.run.request).dit.precision.activation, DType::bf16);
  EXPECT_EQ(wan::job_of(p.run.request).dit.precision.residual, DType::bf16);
  EXPECT_EQ(p.run.request.budget.gpu, target.profile.device_memory);
  const MemoryNumbers planned = planned_memory(p.run.request, p.planned);
  const Bytes map = map_of_pinned(p.planned.plan.peak_of(Tier::host));
  Bytes recordings;
  for (const ProcessLine& l : p.planned.lines) {
    if (l.name == kRecordings && l.tier == Tier::device) recordings += l.bytes;
  }
  EXPECT_GT(recordings, Bytes{0});
  EXPECT_EQ(planned.device,
            p.planned.plan.peak_of(Tier::device) + target.profile.library_bytes + map + recordings);
  EXPECT_EQ(planned.ram, p.planned.needed(Tier::host));
  const std::string table = p.table();
  EXPECT_THAT(table, HasSubstr("NVIDIA A100-SXM4-80GB, rates of a100 (rates are estimates)"));
  EXPECT_THAT(table, HasSubstr("CUDA context and libraries"));
  EXPECT_THAT(table, HasSubstr("CUDA libraries in RAM"));
  EXPECT_THAT(table, HasSubstr("GPU page tables"));
  EXPECT_THAT(table, HasSubstr("  of it pinned for the GPU"));
  EXPECT_THAT(table, Not(HasSubstr("BLAS buffers")));
}

TEST(GpuPlan, Fp8ProductsNeedAGpuThatHasThem) {
  support::TinyTraining training;
  training.add_clips(1, {4, 1, 4, 4});
  const std::string config =
      training.write_config("epochs = 1", "[adapter]\ntype = 'lora'\nrank = 4\n" + kAdamW +
                                              "[memory]\nfp8_matmul = true\n");
  const GpuPlan p(config, gpu_target(gpu_called("NVIDIA H200", 90), {}));
  EXPECT_EQ(wan::job_of(p.run.request).dit.format, WeightFormat::f8_e4m3_rows);
  EXPECT_EQ(title_of(p.run).weights, "fp8_rows, fp8 products");
  EXPECT_FAILS(GpuPlan(config, gpu_target(gpu_called("NVIDIA A100-SXM4-80GB", 80), {})),
               ErrorCode::device, "compute capability 8.0");
}

TEST(GpuPlan, KeepsToWhatIsAllowedOfTheGpu) {
  support::TinyTraining training;
  training.add_clips(1, {4, 1, 4, 4});
  const RunTarget target = gpu_target(gpu_called("NVIDIA H200", 90), {});
  PreparedRun run = prepare_run(
      read_config(training.write_config("epochs = 1", kAdamW + "[memory]\ngpu = '400MB'\n")),
      target, Purpose::plan);
  const auto outcome = fit::find_plan(run.request);  // the context alone is more
  ASSERT_TRUE(std::holds_alternative<Refusal>(outcome));
  EXPECT_EQ(std::get<Refusal>(outcome).shortages[0].tier, Tier::device);
}

}  // namespace
}  // namespace ballast::train
