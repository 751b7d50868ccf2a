// Moments of embeddings are kept in 32 bits beside those of 8 bits.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/models/t5/recorded_training.h"

namespace ballast::t5::embedding_moments_test {
namespace {

using support::tiny_t5;
using support::write_t5;
using training_test::samples;
using training_test::Training;
using training_test::Values;

// Large enough for 8-bit moments: 200 rows of 32 numbers, biases of 32 buckets by 130 heads.
Config with_large_tables() {
  Config c = tiny_t5();
  c.vocabulary = 200;
  c.heads = 130;
  c.d_kv = 2;
  return c;
}

std::map<std::string, DType> moment_types(const Training& t) {
  std::map<std::string, DType> all;
  for (const UpdatedTensor& u : t.model->io().trained) all[u.name] = u.specs[0].dtype;
  return all;
}

// As transformers' Trainer has bitsandbytes do it: every nn.Embedding, a tied head with it.
TEST(T5EmbeddingMoments, StayIn32BitsBesideEightBitAdamW) {
  for (const bool tied : {false, true}) {
    Config c = with_large_tables();
    c.tied = c.scaled_head = tied;
    const test::TempDir dir;
    const std::string path = write_t5(dir, c);
    Training t(c, path, {}, samples(c), {.optimizer = OptimizerKind::adamw8bit});
    const auto types = moment_types(t);
    EXPECT_EQ(types.at(kEmbeddingName), DType::f32);
    EXPECT_EQ(types.at(table_name(Side::encoder, 0)), DType::f32);
    EXPECT_EQ(types.at("encoder.block.0.layer.0.SelfAttention.q.weight"), DType::u8);
    EXPECT_EQ(types.contains(kHeadName), !tied);
    if (!tied) {
      EXPECT_EQ(types.at(kHeadName), DType::u8) << "nn.Linear";
    }
    Training narrow(
        c, path, {}, samples(c),
        {.optimizer = OptimizerKind::adamw8bit, .embedding_moments = MomentBits::by_size});
    EXPECT_EQ(moment_types(narrow).at(kEmbeddingName), DType::u8);
  }
}

// Two moments: four bytes an element, against one and four more for each 256.
TEST(T5EmbeddingMoments, AreInThePlanToTheByte) {
  const Config c = with_large_tables();
  const test::TempDir dir;
  const std::string path = write_t5(dir, c);
  const auto optimizer_bytes = [&](MomentBits bits, const MemoryPolicy& policy) {
    Training t(c, path, policy, samples(c),
               {.optimizer = OptimizerKind::adamw8bit, .embedding_moments = bits});
    t.step();
    t.runner->run("grad_norm");
    t.runner->run("update", {.step = 1, .learning_rate = 0.01});
    t.expect_peaks_are_touched();
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < t.set.buffers.size(); ++i) {
      const BufferSpec& s = t.set.buffers[i];
      if (s.root.id == i && s.role == Role::optimizer && s.program == kPersistent) sum += s.bytes;
    }
    return sum;
  };
  const std::uint64_t tokens = 200 * 32, biases = 32 * 130;
  const auto more = [](std::uint64_t n) { return 2 * (4 * n - n - 4 * ((n + 255) / 256)); };
  for (const MemoryPolicy& policy : {MemoryPolicy(), *find_policy("stream2")}) {
    EXPECT_EQ(optimizer_bytes(MomentBits::always_32, policy),
              optimizer_bytes(MomentBits::by_size, policy) + more(tokens) + 2 * more(biases))
        << policy.name;
  }
}

// m = beta1 m + (1 - beta1) g and so on, as numbers, not as codes of them.
TEST(T5EmbeddingMoments, AreThoseOfTheirGradients) {
  const Config c = with_large_tables();
  const test::TempDir dir;
  const std::string path = write_t5(dir, c);
  for (const MemoryPolicy& policy : {MemoryPolicy(), *find_policy("stream2")}) {
    SCOPED_TRACE(policy.name);
    Training t(c, path, policy, samples(c), {.optimizer = OptimizerKind::adamw8bit});
    const auto trained = t.model->io().trained;
    const auto table =
        std::ranges::find(trained, std::string(kEmbeddingName), &UpdatedTensor::name);
    ASSERT_NE(table, trained.end());
    ASSERT_EQ(table->states.size(), 2u);
    const OptimizerOptions& o = t.model->job().optimizer;
    Values p = t.weights().at(kEmbeddingName);
    std::vector<double> m(p.size()), v(p.size());
    constexpr double kRate = 0.01;
    for (int k = 1; k <= 3; ++k) {
      t.step();
      const Values g = t.gradients().at(kEmbeddingName);
      t.runner->run("grad_norm");
      t.runner->run("update", {.step = k, .learning_rate = kRate});
      const Values m_run = t.values(table->states[0]), v_run = t.values(table->states[1]);
      const Values p_run = t.weights().at(kEmbeddingName);
      const double k1 = 1 - std::pow(o.beta1, k), k2 = std::sqrt(1 - std::pow(o.beta2, k));
      int moved = 0;
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double terms = std::abs(m[i]) + std::abs(g[i]);  // of which little may be left
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
        v[i] = o.beta2 * v[i] + (1 - o.beta2) * double{g[i]} * g[i];
        const double step = kRate * k2 / k1 * m[i] / (std::sqrt(v[i]) + k2 * o.eps);
        const double expected = (p[i] - step) * (1 - kRate * o.weight_decay);
        ASSERT_NEAR(m_run[i], m[i], 1e-6 * terms + 1e-12) << i;
        ASSERT_NEAR(v_run[i], v[i], 1e-6 * v[i] + 1e-15) << i;
        ASSERT_NEAR(p_run[i], expected, 2e-6 * std::abs(expected) + 1e-6) << i;
        moved += g[i] != 0;
        m[i] = m_run[i], v[i] = v_run[i];
      }
      EXPECT_GT(moved, 0);
      p = p_run;
    }
  }
}

}  // namespace
}  // namespace ballast::t5::embedding_moments_test
