// Forward products of blocks in f8_e4m3: the rules of every other plan hold, and what cannot be
// done is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/to_size.h"
#include "plan/predict.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_dit.h"

namespace ballast::support::fp8_products_test {
namespace {

using wan::Mode;

class Fp8Products : public ::testing::Test {
 protected:
  Results run(TinyJob job, const TinyCheckpoint& file) const {
    job.fp8_matmul = true;
    return dit(job, file).run();
  }
  TinyDit dit(const TinyJob& job, const TinyCheckpoint& file) const {
    return TinyDit(config_, file.path(), tiny_batch({{3, 20, 40}, {2, 6, 30}}, config_.text_len),
                   job);
  }

  wan::Config config_ = tiny_config();
  TinyCheckpoint f32_{config_};
};

double relative_distance(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  double off = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); i += 4) {
    float x, y;
    std::memcpy(&x, a.data() + i, 4);
    std::memcpy(&y, b.data() + i, 4);
    off += static_cast<double>(x - y) * static_cast<double>(x - y);
    size += static_cast<double>(y) * static_cast<double>(y);
  }
  return std::sqrt(off / size);
}

TEST_F(Fp8Products, PoliciesChangeNoBit) {
  const TinyCheckpoint f8(config_, DType::f8_e4m3);  // with one scale per matrix
  const std::vector<MemoryPolicy> policies = {
      *find_policy("stream1"), *find_policy("recompute"), *find_policy("chunked"),
      MemoryPolicy{.name = "everything at once",
                   .streaming = Streaming{.slots = 2, .stream_from = StreamSource::host},
                   .activations = Activations::attention_kept,
                   .kept_blocks = 1,
                   .offload = true,
                   .chunk_tokens = 256,
                   .heads_per_group = 1}};
  struct Case {
    const TinyCheckpoint& file;
    DType activation;
    Mode mode;
  };
  for (const Case& c : {Case{f32_, DType::f32, Mode::infer}, Case{f32_, DType::bf16, Mode::lora},
                        Case{f8, DType::bf16, Mode::infer}, Case{f8, DType::f32, Mode::lora}}) {
    TinyJob job = {.mode = c.mode, .precision = {.activation = c.activation}};
    job.update = c.mode == Mode::lora;
    const Results resident = run(job, c.file);
    for (const MemoryPolicy& policy : policies) {
      job.policy = policy;
      EXPECT_EQ(difference(resident, run(job, c.file)), "")
          << name_of(c.mode) << " " << policy.name << " " << name_of(c.activation);
    }
  }
}

// Three bits of fraction in weights and activations; residual connections keep the rest exact.
TEST_F(Fp8Products, ComeNearTheExactOnesAndAreOthers) {
  for (const Mode mode : {Mode::infer, Mode::lora}) {
    const Results exact = dit({.mode = mode}, f32_).run(), fp8 = run({.mode = mode}, f32_);
    ASSERT_EQ(exact.size(), fp8.size());
    for (const char* name : {"output.0", "output.1"}) {
      const double off = relative_distance(fp8.at(name), exact.at(name));
      EXPECT_GT(off, 0.002) << name;
      EXPECT_LT(off, 0.08) << name;
    }
    if (mode == Mode::infer) continue;
    // Gradients go through the forward pass that was run.
    EXPECT_LT(relative_distance(fp8.at("blocks.1.ffn.0.da"), exact.at("blocks.1.ffn.0.da")), 0.2);
  }
}

TEST_F(Fp8Products, EmbeddingsAndHeadKeepTheirPrecision) {
  const TinyDit d = dit({.fp8_matmul = true}, f32_);
  int products = 0, others = 0, roundings = 0;
  for (const Instruction& i :
       d.set().programs[to_size(d.set().program_index("step"))].instructions) {
    const auto is = [&](const char* name) { return i.name.ends_with(name); };
    products += is("fp8_linear");
    roundings += is("quantize_rows");
    others += is(".linear");
    const bool in_block = i.name.find("blocks.") != std::string::npos;
    EXPECT_TRUE(!is("fp8_linear") || in_block) << i.name;
    EXPECT_TRUE(!is(".linear") || !in_block) << i.name;
  }
  EXPECT_EQ(products, 2 * 3 * 10);  // samples, layers, matrices
  EXPECT_EQ(roundings, 2 * 3 * 7);  // q, k and v share theirs, and so do k and v of the text
  EXPECT_GT(others, 0);
}

TEST_F(Fp8Products, ThePlanIsWhatTheRunTouches) {
  for (const Mode mode : {Mode::infer, Mode::lora}) {
    TinyDit d = dit({.mode = mode, .policy = *find_policy("chunked"), .fp8_matmul = true}, f32_);
    d.run();
    EXPECT_EQ(d.runner().high_water(Tier::device).count, d.plan().peak_of(Tier::device).count);
  }
}

TEST_F(Fp8Products, ArePredictedWithTheirOwnRate) {
  const TinyDit d = dit({.fp8_matmul = true}, f32_);
  MachineProfile profile = *find_profile("h200");
  profile.memory_bandwidth = 1e30;  // nothing but products takes time
  profile.launch_seconds = 0;
  const int step = d.set().program_index("step");
  const auto seconds = [&](double fp8) {
    profile.fp8_gemm_flops = fp8;
    return predict(d.set(), d.plan(), step, profile).busy[to_size(Lane::compute)];
  };
  EXPECT_GT(seconds(1e9), 1.5 * seconds(2e9));
  EXPECT_DOUBLE_EQ(seconds(0), seconds(1.9 * profile.gemm_flops));
}

class Fp8Refusals : public Fp8Products {};

TEST_F(Fp8Refusals, TrainedWeights) {
  EXPECT_FAILS(dit({.mode = Mode::full, .fp8_matmul = true}, f32_), ErrorCode::usage,
               "need frozen weights");
}

TEST_F(Fp8Refusals, OtherFormatsOfEightBits) {
  EXPECT_FAILS(dit({.format = WeightFormat::int8_rows, .fp8_matmul = true}, f32_), ErrorCode::usage,
               "not int8");
}

TEST_F(Fp8Refusals, GpusWithoutUnits) {
  wan::DitJob job = {.config = config_};
  EXPECT_FAILS(use_fp8_products(job, {.device = Device::cuda, .sm = 86}), ErrorCode::device,
               "compute capability 8.6");
  use_fp8_products(job, {.device = Device::cuda, .sm = 89});
  EXPECT_TRUE(job.fp8_matmul);
  EXPECT_EQ(job.format, WeightFormat::f8_e4m3_rows);
  job.format = WeightFormat::f8_e4m3;  // asked for without scales
  use_fp8_products(job, {});
  EXPECT_EQ(job.format, WeightFormat::f8_e4m3);
}

TEST_F(Fp8Refusals, ScalesOfGroupsOfInputs) {
  auto groups = planned_groups(config_, DType::f8_e4m3);
  for (WeightGroup& g : groups) {
    for (StoredTensor& t : g.tensors) {
      if (t.data.shape.rank() != 2 || t.data.dtype != DType::f8_e4m3) continue;
      t.scale = StoredBytes{.shape = {t.data.shape[0], 2}, .dtype = DType::f32, .extent = {}};
    }
  }
  ProgramSet set;
  set.executable = false;
  const wan::DitJob job = {.config = config_,
                           .fp8_matmul = true,
                           .batches = {{.latents = {{1, 4, 4}}, .timestep_rows = 1}}};
  EXPECT_FAILS(wan::Dit(set, job, groups), ErrorCode::input, "blocks.0.self_attn.q");
}

}  // namespace
}  // namespace ballast::support::fp8_products_test
