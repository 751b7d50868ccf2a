// Text models as they run: the same bits under every policy, plans that are what a run touches,
// gradients that are slopes of the loss.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <memory>

#include "core/random.h"
#include "core/to_size.h"
#include "models/t5/encoder.h"
#include "tests/models/t5/recorded_training.h"
#include "tests/support/padded_products.h"
#include "tests/support/tiny_t5.h"

namespace ballast::t5 {
namespace {

using support::some_tokens;
using support::tiny_t5;
using support::tiny_umt5_encoder;
using support::write_t5;
using training_test::Running;
using training_test::Sample;
using training_test::samples;
using training_test::Training;
using training_test::Values;

std::vector<MemoryPolicy> policies() {
  std::vector<MemoryPolicy> all(named_policies().begin(), named_policies().end());
  all.push_back({.name = "everything at once",
                 .streaming = Streaming{.slots = 1, .resident_groups = 1},
                 .activations = Activations::recomputed,
                 .offload = true,
                 .chunk_tokens = 256,
                 .heads_per_group = 1});
  return all;
}

// ---------------------------------------------------------------- encoder

class T5Encoder : public ::testing::Test {
 protected:
  // States of every prompt, pass by pass.
  std::vector<Values> run(const std::string& path, const MemoryPolicy& policy,
                          const std::vector<std::vector<std::int64_t>>& passes,
                          bool check_peaks = false) {
    const WeightFiles checkpoint = WeightFiles::open(path);
    const TensorMap names(checkpoint);
    const StoredBytes table = embedding_table(config_, checkpoint, names);
    Running<Encoder> r;
    r.set.backend.threads = 2;
    EncoderJob job;
    job.config = config_;
    job.policy = policy;
    job.passes = passes;
    job.rows = table.dtype;
    r.model = std::make_unique<Encoder>(r.set, job, weight_groups(config_, checkpoint, names));
    r.start();
    std::vector<Values> all;
    for (const PassIo& pass : r.model->passes()) {
      for (const PromptIo& io : pass.prompts) {
        const TensorView rows = r.runner->view(io.rows);
        read_rows(table, some_tokens(rows.shape[0], config_.vocabulary), rows);
      }
      r.runner->run(pass.program);
      for (const PromptIo& io : pass.prompts) all.push_back(r.values(io.states));
    }
    if (check_peaks) r.expect_peaks_are_touched();
    return all;
  }

  const Config config_ = tiny_umt5_encoder();
  const test::TempDir dir_, fp8_;
};

TEST_F(T5Encoder, GivesTheSameBitsUnderEveryPolicyAndTouchesItsPlan) {
  const std::string path = write_t5(dir_, config_);
  const std::vector<std::vector<std::int64_t>> passes = {{300, 7}, {1, 40, 9}};
  const std::vector<Values> resident = run(path, {}, passes);
  EXPECT_EQ(resident.size(), 5u);
  std::vector<MemoryPolicy> all = policies();
  all.push_back(
      {.name = "from host", .streaming = Streaming{.slots = 3, .stream_from = StreamSource::host}});
  all.push_back(
      {.name = "filled",
       .streaming =
           Streaming{.slots = 2, .resident_groups = 1, .host_groups = 2, .extra_ring_buffers = 3},
       .chunk_tokens = 256});
  for (const MemoryPolicy& policy : all) {
    SCOPED_TRACE(policy.name);
    EXPECT_EQ(run(path, policy, passes, true), resident);
  }
}

TEST_F(T5Encoder, StatesOfAPromptDoNotDependOnTheOthers) {
  const std::string path = write_t5(dir_, config_);
  const std::vector<Values> together = run(path, {}, {{33, 5, 260}});
  EXPECT_EQ(run(path, {}, {{33}})[0], together[0]);
  EXPECT_EQ(run(path, {}, {{5}, {260}}), (std::vector{together[1], together[2]}));
}

// Two roundings to three bits of fraction: cosines of 0.99 and more are what such files have.
TEST_F(T5Encoder, ScaledFp8FileIsCloseToTheWideOne) {
  const Values wide = run(write_t5(dir_, config_), {}, {{24}})[0];
  for (const MemoryPolicy& policy : {MemoryPolicy(), *find_policy("stream1")}) {
    const Values narrow = run(write_t5(fp8_, config_, DType::f8_e4m3), policy, {{24}})[0];
    double dot = 0, a = 0, b = 0;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      dot += wide[i] * narrow[i], a += wide[i] * wide[i], b += narrow[i] * narrow[i];
    }
    EXPECT_GT(dot / std::sqrt(a * b), 0.99);
    EXPECT_NE(wide, narrow);
  }
}

// ---------------------------------------------------------------- encoder-decoder

// What golden files do not cover: tables in every block of a decoder, a scaled head of its own.
std::vector<Config> kinds() {
  std::vector<Config> all(3, tiny_t5());
  all[1].bias_per_block = all[1].scaled_head = true;
  all[2].gated = false, all[2].tied = true, all[2].layers = 2;
  return all;
}

// Along its own gradient g the loss changes by |g|^2. Every group of tensors by itself, so that
// none hides behind the others: the errors of f32 losses over such a step are about 1 %.
TEST(T5Seq2Seq, GradientsAreSlopesOfTheLoss) {
  for (const Config& c : kinds()) {
    const test::TempDir dir;
    Training t(c, write_t5(dir, c), {}, samples(c));
    t.step();
    const auto gradients = t.gradients();
    const auto start = t.weights();
    ASSERT_EQ(gradients.size(), start.size());
    for (const char* part : {"layer_norm", "Attention.q", "Attention.k", "Attention.v",
                             "Attention.o", "relative_attention_bias", "DenseReluDense.wi",
                             "DenseReluDense.wo", "shared", "lm_head"}) {
      auto along = gradients;
      double squares = 0;
      for (auto& [name, g] : along) {
        if (name.find(part) == std::string::npos) std::ranges::fill(g, 0.0f);
        for (const float x : g) squares += static_cast<double>(x) * x;
      }
      if (squares == 0) {
        EXPECT_TRUE(c.tied && std::string_view(part) == "lm_head") << part;
        continue;
      }
      const double by = 0.01 / std::sqrt(squares);
      t.move(start, along, by);
      const double above = t.step();
      t.move(start, along, -by);
      const double below = t.step();
      EXPECT_NEAR((above - below) / (2 * by * squares), 1, 0.03) << part;
    }
  }
}

TEST(T5Seq2Seq, GivesTheSameBitsUnderEveryPolicyAndTouchesItsPlan) {
  const Config c = tiny_t5();
  const test::TempDir dir;
  const std::string path = write_t5(dir, c);
  std::map<std::string, Values> gradients, weights;
  for (const MemoryPolicy& policy : policies()) {
    SCOPED_TRACE(policy.name);
    Training t(c, path, policy, samples(c));
    t.step();
    const auto g = t.gradients();
    t.runner->run("grad_norm");
    t.runner->run("update", {.step = 1, .learning_rate = 0.01});
    const auto w = t.weights();
    if (gradients.empty()) gradients = g, weights = w;
    EXPECT_EQ(g, gradients);
    EXPECT_EQ(w, weights);
    t.expect_peaks_are_touched();
  }
}

// Dropout belongs to samples and places, gradients add up micro-batch by micro-batch: neither what
// a block keeps nor how a step is cut into runs changes a bit.
TEST(T5Seq2Seq, DropsTheSameUnderEveryPolicyAndInSeveralRuns) {
  const Config c = tiny_t5();
  const test::TempDir dir;
  const std::string path = write_t5(dir, c);
  std::vector<Sample> four = samples(c);
  for (const Sample& s : samples(c)) four.push_back({s.labels, s.source});
  for (Sample& s : four) {
    for (std::int32_t& id : s.source) id = std::max(id, 0);
  }
  const Training::Form form = {.per_batch = 2, .dropout = 0.2};
  Training reference(c, path, {}, four, form);
  const double loss = reference.step();
  const auto gradients = reference.gradients();
  Training plain(c, path, {}, four, {.per_batch = 2});
  EXPECT_NE(plain.step(), loss);
  for (const char* name : {"recompute", "keep-attention", "stream1", "grouped", "offload"}) {
    SCOPED_TRACE(name);
    Training t(c, path, *find_policy(name), four, form);
    EXPECT_EQ(t.step(), loss);
    EXPECT_EQ(t.gradients(), gradients);
  }
  for (const char* name : {"resident", "stream1"}) {
    Training::Form cut = form;
    cut.accumulates = true;
    Training t(c, path, *find_policy(name), four, cut);
    EXPECT_EQ(t.step(), loss) << name;
    EXPECT_EQ(t.gradients(), gradients) << name;
  }
}

// Of the same padded batch twice as long, with other tokens behind the text.
TEST(T5Seq2Seq, PaddingChangesNoBitOfLossesAndLogits) {
  const Config c = tiny_t5();
  const test::TempDir dir;
  const std::string path = write_t5(dir, c);
  Training shortest(c, path, {}, samples(c)),
      longer(c, path, {}, samples(c), {.source = 24, .target = 40});
  Training longest(c, path, {}, samples(c), {.source = 300, .target = 270});
  const double loss = shortest.step();
  for (Training* t : {&longer, &longest}) {
    if (test::padding_keeps_kernels()) {
      EXPECT_EQ(t->step(), loss);
      EXPECT_EQ(t->logits, shortest.logits);
      continue;
    }
    EXPECT_NEAR(t->step(), loss, 1e-6 * loss);
    for (std::size_t s = 0; s < shortest.logits.size(); ++s) {
      ASSERT_EQ(t->logits[s].size(), shortest.logits[s].size());
      for (std::size_t i = 0; i < shortest.logits[s].size(); ++i) {
        EXPECT_NEAR(t->logits[s][i], shortest.logits[s][i], 2e-5);
      }
    }
  }
  const auto a = shortest.gradients(), b = longest.gradients();
  for (const auto& [name, g] : a) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      difference += std::pow(g[i] - b.at(name)[i], 2), size += std::pow(g[i], 2);
    }
    EXPECT_LE(difference, 1e-10 * size) << name;
  }
}

// Rounded once: within half a unit of the last of 8 bits of every gradient.
TEST(T5Seq2Seq, Bf16GradientsAreTheOthersRounded) {
  const Config c = tiny_t5();
  const test::TempDir dir;
  const std::string path = write_t5(dir, c);
  Training wide(c, path, {}, samples(c));
  Training narrow(c, path, {}, samples(c), {.gradient = DType::bf16});
  wide.step(), narrow.step();
  const std::string name = "encoder.block.0.layer.0.SelfAttention.q.weight";
  const Values exact = wide.gradients().at(name);
  const auto& all = narrow.model->io().gradients;
  const Buffer rounded = std::ranges::find(all, name, &NamedGradient::name)->gradient;
  ASSERT_EQ(narrow.set.spec(rounded).dtype, DType::bf16);
  const auto* bits = narrow.runner->view(rounded).as<std::uint16_t>();
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits[i]) << 16);
    EXPECT_NEAR(value, exact[i], std::abs(exact[i]) / 256) << i;
  }
  narrow.runner->run("grad_norm");
  narrow.runner->run("update", {.step = 1, .learning_rate = 0.01});
}

// Weights stay; along the gradient of the adapters the loss changes by its square.
TEST(T5Seq2Seq, AdaptersTrainAloneUnderEveryPolicy) {
  const Config c = tiny_t5();
  const test::TempDir dir;
  const std::string path = write_t5(dir, c);
  const Training::Form form = {.lora = LoraOptions{.rank = 3, .alpha = 6}};
  const auto with_factors = [&](const MemoryPolicy& policy) {
    auto t = std::make_unique<Training>(c, path, policy, samples(c), form);
    for (const AdapterIo& a : t->model->io().adapters) {
      for (const Buffer b : {a.a, a.b}) {
        Values v(to_size(t->set.spec(b).shape.elements()));
        fill_normal(random_source(1, "test", 0, a.name), 0, v.data(), std::ssize(v));
        for (float& x : v) x *= 0.1f;
        t->runner->write(b, std::as_bytes(std::span(v)));
      }
    }
    return t;
  };
  const auto t = with_factors({});
  EXPECT_EQ(t->model->io().adapters.size(), to_size(7 * c.layers + 11 * c.decoder_layers));
  t->step();
  const auto gradients = t->gradients(), start = t->weights();
  for (const MemoryPolicy& policy : policies()) {
    SCOPED_TRACE(policy.name);
    const auto other = with_factors(policy);
    other->step();
    EXPECT_EQ(other->gradients(), gradients);
    other->runner->run("grad_norm");
    other->runner->run("update", {.step = 1, .learning_rate = 0.01});
    EXPECT_NE(other->weights(), start);
    other->expect_peaks_are_touched();
  }
  for (const char* part : {".q.lora_A", ".v.lora_B", ".o.lora_B", ".wi_0.lora_A", ".wo.lora_B"}) {
    auto along = gradients;
    double squares = 0;
    for (auto& [name, g] : along) {
      if (name.find(part) == std::string::npos) std::ranges::fill(g, 0.0f);
      for (const float x : g) squares += static_cast<double>(x) * x;
    }
    ASSERT_GT(squares, 0) << part;
    const double by = 0.01 / std::sqrt(squares);
    t->move(start, along, by);
    const double above = t->step();
    t->move(start, along, -by);
    EXPECT_NEAR((above - t->step()) / (2 * by * squares), 1, 0.03) << part;
  }
}

TEST(T5Seq2Seq, LossOfABatchIsTheMeanOverItsLabels) {
  const Config c = tiny_t5();
  const test::TempDir dir;
  const std::string path = write_t5(dir, c);
  const std::vector<Sample> both = samples(c);
  const double together = Training(c, path, {}, both).step();
  const double first = Training(c, path, {}, {both[0]}).step();
  const double second = Training(c, path, {}, {both[1]}).step();
  EXPECT_NEAR(together, (6 * first + 9 * second) / 15, 1e-6);
}

TEST(T5Seq2Seq, StepsOfAdamWLowerTheLoss) {
  const Config c = tiny_t5();
  const test::TempDir dir;
  Training t(c, write_t5(dir, c), *find_policy("stream2"), samples(c));
  const double before = t.step();
  for (int i = 1; i <= 5; ++i) {
    t.runner->run("grad_norm");
    t.runner->run("update", {.step = i, .learning_rate = 0.01});
    t.step();
  }
  EXPECT_LT(t.step(), 0.9 * before);
}

}  // namespace
}  // namespace ballast::t5
