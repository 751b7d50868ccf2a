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
#include "models/t5/seq2seq.h"
#include "ops/linear/sgemm.h"
#include "plan/runner.h"
#include "tests/support/padded_products.h"
#include "tests/support/tiny_t5.h"

namespace ballast::t5 {
namespace {

using support::some_tokens;
using support::tiny_t5;
using support::tiny_umt5_encoder;
using support::write_t5;

using Values = std::vector<float>;

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

// Set, plan and runner of something that was recorded.
template <class Model>
struct Running {
  ProgramSet set;
  std::unique_ptr<Model> model;
  MemoryPlan plan;
  std::unique_ptr<Runner> runner;

  void start() {
    plan = plan_memory(set);
    runner = std::make_unique<Runner>(set, plan);
    ops::warm_up_blas(runner->compute_threads());
    runner->run("load");
  }
  Values values(Buffer b) {
    Values v(to_size(set.spec(b).shape.elements()));
    runner->read(b, std::as_writable_bytes(std::span(v)));
    return v;
  }
  void expect_peaks_are_touched() const {
    for (const Tier tier : kTiers) {
      EXPECT_EQ(runner->high_water(tier).count, plan.peak_of(tier).count) << name_of(tier);
    }
  }
};

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

struct Sample {
  std::vector<std::int32_t> source, labels;  // negative labels do not count
};

class Training : public Running<Seq2Seq> {
 public:
  // Samples in micro-batches of `per_batch` (0: all), padded to the longest, or to a length.
  struct Form {
    std::int64_t per_batch = 0, source = 0, target = 0;
    double dropout = 0;
    bool accumulates = false;
    DType gradient = DType::f32;
    std::optional<LoraOptions> lora = {};
    OptimizerKind optimizer = OptimizerKind::adamw;
    MomentBits embedding_moments = MomentBits::always_32;
  };
  Training(const Config& c, const std::string& path, const MemoryPolicy& policy,
           std::vector<Sample> samples)
      : Training(c, path, policy, std::move(samples), Form{}) {}
  Training(const Config& c, const std::string& path, const MemoryPolicy& policy,
           std::vector<Sample> samples, const Form& form)
      : checkpoint_(WeightFiles::open(path)), samples_(std::move(samples)) {
    set.backend.threads = 2;
    Seq2SeqJob job;
    job.config = c;
    job.policy = policy;
    job.trains = job.record_update = true;
    job.keep_logits = true;
    job.dropout = form.dropout;
    job.accumulates = form.accumulates;
    job.gradient = form.gradient;
    job.lora = form.lora;
    job.optimizer.kind = form.optimizer;
    job.embedding_moments = form.embedding_moments;
    BatchShape shape = {.samples = form.per_batch, .source = form.source, .target = form.target};
    if (shape.samples == 0) shape.samples = std::ssize(samples_);
    shape.micro_batches = form.accumulates ? 1 : std::ssize(samples_) / shape.samples;
    for (const Sample& s : samples_) {
      shape.source = std::max<std::int64_t>(shape.source, std::ssize(s.source));
      shape.target = std::max<std::int64_t>(shape.target, std::ssize(s.labels));
    }
    job.batches = {shape};
    model =
        std::make_unique<Seq2Seq>(set, job, weight_groups(c, checkpoint_, TensorMap(checkpoint_)));
    start();
    runner->run("init_state");
    std::int64_t counted = 0;
    for (const Sample& s : samples_) {
      for (const std::int32_t l : s.labels) counted += l >= 0;
    }
    weight_ = 1 / static_cast<double>(counted);
    for (const MicroBatchIo& m : model->io().steps[0].micro_batches) {
      *runner->view(m.label_weight).as<float>() = static_cast<float>(weight_);
    }
  }

  // All samples, in one run or with accumulation in several.
  double step() {
    const StepIo& io = model->io().steps[0];
    const auto per_run = to_size(io.shape.samples * io.shape.micro_batches);
    if (model->job().accumulates) runner->run("zero_gradients");
    double sum = 0;
    logits.clear();
    for (std::size_t first = 0; first < samples_.size(); first += per_run) {
      for (std::size_t i = 0; i < per_run; ++i) give(io, i, samples_[first + i]);
      runner->run("step", {.step = 1, .seed = 5, .first_sample = static_cast<std::int64_t>(first)});
      for (std::size_t i = 0; i < per_run; ++i) sum += take(io, i, samples_[first + i]);
    }
    return sum * weight_;
  }
  std::vector<Values> logits;  // of the last step, by sample, without padding
  std::map<std::string, Values> gradients() {
    std::map<std::string, Values> all;
    for (const NamedGradient& g : model->io().gradients) all[g.name] = values(g.gradient);
    return all;
  }
  // All weights moved along the gradients that were given.
  void move(const std::map<std::string, Values>& start, const std::map<std::string, Values>& along,
            double by) {
    for (const UpdatedTensor& t : model->io().trained) {
      Values v = start.at(t.name);
      const Values& d = along.at(t.name);
      for (std::size_t i = 0; i < v.size(); ++i) v[i] += static_cast<float>(by * d[i]);
      runner->write(t.value, std::as_bytes(std::span(v)));
    }
  }
  std::map<std::string, Values> weights() {
    std::map<std::string, Values> all;
    for (const UpdatedTensor& t : model->io().trained) all[t.name] = values(t.value);
    return all;
  }

 private:
  void give(const StepIo& io, std::size_t i, const Sample& s) {
    const auto samples = to_size(io.shape.samples);
    const MicroBatchIo& m = io.micro_batches[i / samples];
    const auto row = [&](Buffer b, std::int32_t pad) {
      const std::int64_t width = set.spec(b).shape[1];
      auto* at =
          runner->view(b).as<std::int32_t>() + static_cast<std::int64_t>(i % samples) * width;
      std::fill_n(at, width, pad);
      return at;
    };
    std::ranges::copy(s.source, row(m.source, 3));
    std::ranges::copy(s.labels, row(m.labels, -100));
    auto* input = row(m.decoder_input, 2);
    *input = model->job().config.decoder_start;
    for (std::size_t t = 0; t + 1 < s.labels.size(); ++t) input[t + 1] = std::max(s.labels[t], 0);
    runner->view(m.source_lengths).as<std::int32_t>()[i % samples] =
        static_cast<std::int32_t>(s.source.size());
  }
  double take(const StepIo& io, std::size_t i, const Sample& s) {
    const auto samples = to_size(io.shape.samples);
    const MicroBatchIo& m = io.micro_batches[i / samples];
    const auto target = to_size(io.shape.target), at = i % samples * target;
    const auto wide = to_size(model->job().config.vocabulary);
    const Values all = values(m.logits), losses = values(m.losses);
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(at * wide);
    logits.emplace_back(from, from + static_cast<std::ptrdiff_t>(s.labels.size() * wide));
    double sum = 0;
    for (std::size_t t = 0; t < target; ++t) sum += losses[at + t];
    return sum;
  }

  WeightFiles checkpoint_;  // frozen weights are read from it step by step
  std::vector<Sample> samples_;
  double weight_ = 0;
};

std::vector<Sample> samples(const Config& c) {
  Sample a = {some_tokens(9, c.vocabulary), some_tokens(6, c.vocabulary, 2)};
  Sample b = {some_tokens(4, c.vocabulary, 3), some_tokens(11, c.vocabulary, 4)};
  b.labels[2] = b.labels.back() = -100;
  return {a, b};
}

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
TEST(T5Seq2Seq, EightBitAdamWKeepsMomentsOfEmbeddingsIn32Bits) {
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
TEST(T5Seq2Seq, MomentsOfEmbeddingsAreInThePlanToTheByte) {
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
TEST(T5Seq2Seq, MomentsOfEmbeddingsAreThoseOfTheirGradients) {
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
}  // namespace ballast::t5
