#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "core/to_size.h"
#include "infer/beam_search.h"
#include "infer/text_encoder.h"
#include "infer/text_generator.h"
#include "models/t5/seq2seq.h"
#include "ops/linear/sgemm.h"
#include "plan/runner.h"
#include "tests/support/errors.h"
#include "tests/support/sparse_checkpoint.h"
#include "tests/support/tiny_t5.h"

namespace ballast::infer {
namespace {

using support::some_tokens;
using support::tiny_t5;
using support::tiny_umt5_encoder;
using support::write_t5;
using Tokens = std::vector<std::int32_t>;

Budget device_budget(Bytes b) { return {.gpu = b, .host = {}, .disk = {}}; }
Budget host_budget(Bytes b) { return {.gpu = {}, .host = b, .disk = {}}; }

// ---------------------------------------------------------------- encoder

class EncodedTexts : public ::testing::Test {
 protected:
  const t5::Config config_ = tiny_umt5_encoder();
  const test::TempDir dir_;
  const std::string path_ = write_t5(dir_, config_);
};

TEST_F(EncodedTexts, GivesTheSameStatesHoweverManyPromptsSharePasses) {
  std::vector<Tokens> prompts;
  for (const std::int64_t n : {9, 1, 30, 4, 17}) {
    prompts.push_back(some_tokens(n, config_.vocabulary, static_cast<std::uint32_t>(n)));
  }
  const auto one = TextEncoder(path_, {.threads = 2}).encode(prompts);
  const auto many = TextEncoder(path_, {.threads = 1, .prompts_per_pass = 2}).encode(prompts);
  ASSERT_EQ(one.size(), 5u);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].tokens, std::ssize(prompts[i]));
    EXPECT_EQ(one[i].width, config_.d_model);
    EXPECT_EQ(one[i].values, many[i].values);
    for (const float v : one[i].values) ASSERT_TRUE(std::isfinite(v));
  }
  EXPECT_TRUE(TextEncoder(path_).encode({}).empty());
}

TEST_F(EncodedTexts, TakesTheEncoderOfAWholeModel) {
  const test::TempDir dir;
  const TextEncoder encoder(write_t5(dir, tiny_t5()), {.threads = 1});
  EXPECT_EQ(encoder.config().decoder_layers, 0);
  EXPECT_EQ(encoder.encode(std::vector<Tokens>{{3, 1}})[0].tokens, 2);
}

TEST_F(EncodedTexts, StreamsWhereTheWeightsDoNotFitAndRefusesWhereNothingDoes) {
  const std::vector<std::int64_t> lengths = {12, 20, 5};
  const auto planned = [&](Budget budget, std::int64_t at_once = 32) {
    const TextEncoder encoder(path_, {.budget = budget, .threads = 1, .prompts_per_pass = at_once});
    return fit::find_plan(encoder.part(lengths).request);
  };
  const auto free = std::get<fit::PlannedRun>(planned({}));
  EXPECT_EQ(free.policy.stream().slots, 3);
  // Several passes use the weights more than once.
  EXPECT_EQ(std::get<fit::PlannedRun>(planned({}, 1)).policy.stream().slots, 0);
  const Bytes device = free.needed(Tier::device);
  const auto lean = std::get<fit::PlannedRun>(planned(device_budget(device - Bytes{1})));
  EXPECT_EQ(lean.policy.stream().slots, 2);
  EXPECT_LT(lean.needed(Tier::device), device);
  const auto refusal = std::get<Refusal>(planned(device_budget(Bytes{1000})));
  ASSERT_EQ(refusal.shortages.size(), 1u);
  EXPECT_EQ(refusal.shortages[0].tier, Tier::device);
  EXPECT_EQ(refusal.shortages[0].allowed, Bytes{1000});
  EXPECT_EQ(refusal.shortages[0].needed, refusal.needed[0]);
  // On the CPU the host budget bounds both.
  const auto both = lean.needed(Tier::device) + lean.needed(Tier::host);
  EXPECT_TRUE(std::holds_alternative<fit::PlannedRun>(planned(host_budget(both))));
  const TextEncoder tight(path_, {.budget = host_budget(Bytes{1 << 20}), .threads = 1});
  EXPECT_FAILS(tight.encode(std::vector<Tokens>{{1}}), ErrorCode::refused, "more RAM needed");
  // What is advised is enough, with both short, too.
  for (const Budget& small : {host_budget(Bytes{1 << 20}), device_budget(Bytes{1000}),
                              Budget{.gpu = Bytes{1000}, .host = Bytes{2000}, .disk = {}}}) {
    const auto with = [&](const Budget& b) {
      TextEncoder(path_, {.budget = b, .threads = 1}).encode(std::vector<Tokens>{{1}});
    };
    const auto error = test::error_of([&] { with(small); });
    ASSERT_TRUE(error);
    std::istringstream words(error->advice().at(0).change);
    Budget more = small;
    for (std::string flag, value; words >> flag >> value;) {
      (flag == "--gpu" ? more.gpu : more.host) = parse_bytes(value).value();
    }
    EXPECT_NO_THROW(with(more)) << error->advice()[0].change;
  }
}

// Of the file that Wan ships; its data is a hole here.
TEST_F(EncodedTexts, Umt5XxlFitsInsideTwoGigabytesOfGpu) {
  support::SparseCheckpoint file;
  const t5::Config xxl = *t5::find_preset("umt5-xxl-encoder");
  support::each_stored(xxl, [&](const std::string& name, const Shape& shape) {
    file.add(name, DType::bf16, shape);
  });
  const std::vector<std::int64_t> lengths(32, 512);
  const Budget budget = {.gpu = Bytes{2'000'000'000}, .host = Bytes{3'000'000'000}, .disk = {}};
  const TextEncoder encoder(
      file.write(), {.device = Device::cuda, .budget = budget, .profile = *find_profile("h200")});
  const auto fits = fit::find_plan(encoder.part(lengths).request);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(fits));
  const auto& plan = std::get<fit::PlannedRun>(fits);
  EXPECT_GE(plan.policy.stream().slots, 2);  // one block is read while another computes
  EXPECT_LE(plan.needed(Tier::device), budget.gpu);
  EXPECT_LE(plan.needed(Tier::host), budget.host);
}

TEST_F(EncodedTexts, RefusesTokensThatTheModelDoesNotHave) {
  const TextEncoder encoder(path_, {.threads = 1});
  EXPECT_FAILS(encoder.encode(std::vector<Tokens>{{1}, {4, 50}}), ErrorCode::input, "50 rows");
  EXPECT_FAILS(encoder.encode(std::vector<Tokens>{{1}, {}}), ErrorCode::input, "no tokens");
  EXPECT_FAILS(TextEncoder(path_, {.prompts_per_pass = 0}), ErrorCode::usage, "0 prompts");
}

// ---------------------------------------------------------------- generator

// Logits of the whole sequence at once, without a cache.
std::vector<float> teacher_forced(const std::string& path, const t5::Config& c,
                                  const Tokens& source, const Tokens& input) {
  const WeightFiles checkpoint = WeightFiles::open(path);
  ProgramSet set;
  t5::Seq2SeqJob job;
  job.config = c;
  job.keep_logits = true;
  job.batches = {{.samples = 1, .source = std::ssize(source), .target = std::ssize(input)}};
  const t5::Seq2Seq model(set, job, weight_groups(c, checkpoint, t5::TensorMap(checkpoint)));
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run("load");
  const t5::MicroBatchIo& io = model.io().steps[0].micro_batches[0];
  *runner.view(io.source_lengths).as<std::int32_t>() = static_cast<std::int32_t>(source.size());
  std::ranges::copy(source, runner.view(io.source).as<std::int32_t>());
  std::ranges::copy(input, runner.view(io.decoder_input).as<std::int32_t>());
  std::ranges::fill_n(runner.view(io.labels).as<std::int32_t>(), std::ssize(input), -100);
  *runner.view(io.label_weight).as<float>() = 0;
  runner.run("step");
  const TensorView logits = runner.view(io.logits);
  return {logits.as<float>(), logits.as<float>() + logits.elements()};
}

class GeneratedTexts : public ::testing::Test {
 protected:
  t5::Config config() const {
    t5::Config c = tiny_t5();
    c.eos = 49;
    return c;
  }
  const test::TempDir dir_;
  const std::string path_ = write_t5(dir_, tiny_t5());
};

TEST_F(GeneratedTexts, GreedyTokensAreTheBestOfTheWholeSequence) {
  const t5::Config c = config();
  const TextGenerator generator(path_, {.threads = 1, .config = c});
  const std::vector<Tokens> sources = {some_tokens(7, 50), some_tokens(3, 50, 5),
                                       some_tokens(7, 50, 9)};
  const auto texts = generator.generate(sources, {.max_new_tokens = 20});
  ASSERT_EQ(texts.size(), 3u);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Tokens& text = texts[i];
    ASSERT_FALSE(text.empty());
    EXPECT_TRUE(std::ssize(text) == 20 || text.back() == c.eos);
    Tokens input = {c.decoder_start};
    input.insert(input.end(), text.begin(), text.end() - 1);
    const std::vector<float> logits = teacher_forced(path_, c, sources[i], input);
    for (std::size_t t = 0; t < text.size(); ++t) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(t) * c.vocabulary;
      EXPECT_EQ(std::max_element(row, row + c.vocabulary) - row, text[t]) << i << " at " << t;
    }
  }
}

// The sum of logarithms over its length.
double score_of(const std::string& path, const t5::Config& c, const Tokens& source,
                const Tokens& text) {
  Tokens input = {c.decoder_start};
  input.insert(input.end(), text.begin(), text.end() - 1);
  const std::vector<float> logits = teacher_forced(path, c, source, input);
  double sum = 0;
  for (std::size_t t = 0; t < text.size(); ++t) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(t) * c.vocabulary;
    double all = 0;
    for (std::int64_t v = 0; v < c.vocabulary; ++v) all += std::exp(row[v]);
    sum += row[text[t]] - std::log(all);
  }
  return sum / static_cast<double>(text.size());
}

// As many beams as tokens try every sequence of two.
TEST_F(GeneratedTexts, BeamsFindAtLeastWhatTheGreedyChoiceFinds) {
  const t5::Config c = config();
  const std::vector<Tokens> sources = {some_tokens(6, 50, 3)};
  const TextGenerator generator(path_, {.threads = 1, .config = c});
  const Tokens greedy = generator.generate(sources, {.max_new_tokens = 2})[0];
  const Tokens best = generator.generate(sources, {.max_new_tokens = 2, .beams = 50})[0];
  EXPECT_GE(score_of(path_, c, sources[0], best), score_of(path_, c, sources[0], greedy) - 1e-5);
}

TEST_F(GeneratedTexts, AreTheSameUnderEveryPolicy) {
  const std::vector<Tokens> sources = {some_tokens(6, 50, 3)};
  const auto generate = [&](const MemoryPolicy& policy, int beams) {
    return TextGenerator(path_, {.policy = policy, .threads = 1, .config = config()})
        .generate(sources, {.max_new_tokens = 8, .beams = beams})[0];
  };
  const Tokens greedy = generate({}, 1), beams = generate({}, 4);
  for (const char* name : {"stream1", "stream4", "matrix-streaming", "grouped"}) {
    EXPECT_EQ(generate(*find_policy(name), 1), greedy) << name;
    EXPECT_EQ(generate(*find_policy(name), 4), beams) << name;
  }
  for (const MemoryPolicy& filled :
       {MemoryPolicy{
            .streaming =
                Streaming{.slots = 2, .resident_groups = 3, .stream_from = StreamSource::host}},
        MemoryPolicy{
            .streaming = Streaming{
                .slots = 1, .resident_groups = 2, .host_groups = 3, .extra_ring_buffers = 2}}}) {
    EXPECT_EQ(generate(filled, 1), greedy);
    EXPECT_EQ(generate(filled, 4), beams);
  }
}

TEST_F(GeneratedTexts, RefusesWhatItCannotDo) {
  const TextGenerator generator(path_, {.budget = host_budget(Bytes{1 << 20}), .threads = 1});
  EXPECT_FAILS(generator.generate(std::vector<Tokens>{{1}}, {}), ErrorCode::refused,
               "more RAM needed");
  // The advised budget was planned: with it the call fits.
  const auto with = [&](const Budget& budget) {
    return TextGenerator(path_, {.budget = budget, .threads = 1})
        .require_plan(std::vector<std::int64_t>{5, 90}, {.beams = 60},
                      [](std::span<const fit::Request>) -> std::vector<fit::Change> {
                        return {{"one beam", [](fit::Request& r) {
                                   r.job.as<t5::DecoderFitJob>().decoder.beams = 1;
                                 }}};
                      });
  };
  const Bytes needed = with({}).needed(Tier::device);
  const auto error = test::error_of([&] { with(device_budget(Bytes{needed.count / 4})); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::refused);
  EXPECT_NE(std::string(error->what()).find("does not fit: "), std::string::npos);
  EXPECT_NE(std::string(error->what()).find("2 prompts, at most 64 tokens each, 60 beams"),
            std::string::npos);
  ASSERT_EQ(error->advice().size(), 2u);
  std::size_t fitting = 0;
  for (const Advice& a : error->advice()) {
    fitting += a.effect.starts_with("fits: ");
    EXPECT_TRUE(a.change == "one beam" || a.change.starts_with("--gpu ")) << a.change;
  }
  EXPECT_EQ(fitting, 2u);
  const TextGenerator free(path_, {.threads = 1});
  EXPECT_FAILS(free.generate(std::vector<Tokens>{{50}}, {}), ErrorCode::input, "token 50");
  EXPECT_FAILS(free.generate(std::vector<Tokens>{{}}, {}), ErrorCode::input, "no tokens");
  EXPECT_FAILS(free.generate(std::vector<Tokens>{{1}}, {.max_new_tokens = 0}), ErrorCode::usage,
               "at least one");
  const test::TempDir dir;
  EXPECT_FAILS(TextGenerator(write_t5(dir, tiny_umt5_encoder())), ErrorCode::input,
               "without a decoder");
}

// An adapter in a folder of its own, and the same model with its products added to the matrices.
struct AdaptedModel {
  explicit AdaptedModel(const t5::Config& c, double alpha = 6) {
    support::TensorFile factors, merged;
    support::each_stored(c, [&](const std::string& name, const Shape& shape) {
      std::vector<float> w = support::t5_values(name, shape);
      const std::string module = name.substr(0, name.rfind('.'));
      const bool q = module.ends_with("Attention.q");
      if (q || module.ends_with("DenseReluDense.wi_1")) {
        const std::int64_t rank = q ? 3 : 2;  // ranks may differ
        const auto a = support::t5_values(module + ".A", {rank, shape[1]});
        const auto b = support::t5_values(module + ".B", {shape[0], rank});
        const double scale = alpha / static_cast<double>(rank);
        for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i) {
          double sum = 0;
          for (std::int64_t r = 0; r < rank; ++r) {
            sum += static_cast<double>(b[to_size(i / shape[1] * rank + r)]) *
                   a[to_size(r * shape[1] + i % shape[1])];
          }
          w[to_size(i)] += static_cast<float>(scale * sum);
        }
        factors.add(t5::adapter_tensor_name(module + ".lora_A.weight"), DType::f32,
                    {rank, shape[1]}, a);
        factors.add(t5::adapter_tensor_name(module + ".lora_B.weight"), DType::f32,
                    {shape[0], rank}, b);
      }
      merged.add(name, DType::f32, shape, w);
    });
    dir.write("adapter/adapter_config.json",
              t5::adapter_config_json({.rank = 3, .alpha = alpha, .targets = {"q", "wi_1"}}));
    factors.write(dir, "adapter/adapter_model.safetensors");
    whole = merged.write(dir, "merged.safetensors");
  }

  const test::TempDir dir;
  std::string folder = dir.path("adapter"), whole;
};

TEST_F(GeneratedTexts, AnAdapterIsTheModelWithItsProductsAdded) {
  const t5::Config c = config();
  const AdaptedModel adapted(c);
  const std::vector<Tokens> sources = {some_tokens(7, 50), some_tokens(4, 50, 5)};
  const auto texts = [&](const std::string& path, const AppliedAdapter& adapter,
                         std::optional<MemoryPolicy> policy = {}) {
    return TextGenerator(path, {.policy = policy, .threads = 1, .config = c}, adapter)
        .generate(sources, {.max_new_tokens = 5});
  };
  const auto expected = texts(adapted.whole, {});
  EXPECT_EQ(texts(path_, {adapted.folder}), expected);
  EXPECT_EQ(texts(path_, {adapted.folder}, find_policy("stream1")), expected);
  EXPECT_EQ(texts(path_, {adapted.folder, 0}), texts(path_, {}));
  EXPECT_NE(texts(path_, {}), expected);
}

TEST_F(GeneratedTexts, RefusesAdaptersThatDoNotFit) {
  const AdaptedModel adapted(config());
  const auto open = [&] { TextGenerator(path_, {.config = config()}, {adapted.folder}); };
  const auto config_with = [&](const std::string& text) {
    adapted.dir.write("adapter/adapter_config.json", text);
  };
  config_with(R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_dora": true})");
  EXPECT_FAILS(open(), ErrorCode::input, "use_dora");
  config_with(R"({"peft_type": "IA3"})");
  EXPECT_FAILS(open(), ErrorCode::input, "no LoRA");
  config_with(R"({"r": 99999999999})");
  EXPECT_FAILS(open(), ErrorCode::input, "rank from 1");
  config_with(R"({"r": 3, "rank_pattern": {}, "target_modules": "q|wi_1"})");
  open();
  t5::Config other = config();
  other.d_ff += 16;
  const test::TempDir dir;
  EXPECT_FAILS(TextGenerator(write_t5(dir, other), {.config = other}, {adapted.folder}),
               ErrorCode::input, "the matrix beside it");
}

// Between steps of a training, sources padded to the shapes of evaluation.
TEST_F(GeneratedTexts, AreTheSameBesideATraining) {
  const t5::Config c = config();
  const WeightFiles checkpoint = WeightFiles::open(path_);
  ProgramSet set;
  t5::Seq2SeqJob job;
  job.config = c;
  job.trains = job.record_update = true;
  job.batches = {{.samples = 2, .source = 4, .target = 3}};
  job.eval_batches = {{.samples = 3, .source = 9, .target = 5},
                      {.samples = 3, .source = 5, .target = 5}};
  job.writes = t5::TextWriting{.beams = 3, .positions = 10};
  const t5::Seq2Seq model(set, job, weight_groups(c, checkpoint, t5::TensorMap(checkpoint)));
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run("load");
  const GenerateOptions options = {.max_new_tokens = 10, .beams = 3};
  const TextGenerator generator(path_, {.threads = 1, .config = c});
  for (const std::int64_t tokens : {7, 3, 9}) {
    const Tokens source = some_tokens(tokens, 50, static_cast<std::uint32_t>(tokens));
    EXPECT_EQ(write_text(*model.decoder(), runner, source, options),
              generator.generate(std::vector<Tokens>{source}, options)[0])
        << tokens;
  }
}

// ---------------------------------------------------------------- beam search

// Logits whose softmax has these probabilities.
std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> v;
  for (const double p : probabilities) v.push_back(static_cast<float>(std::log(p)));
  return v;
}

constexpr std::int64_t kWords = 4;  // 0, the end, 2, 3

TEST(BeamSearch, OneBeamTakesTheBestTokenAndStopsAtTheEnd) {
  BeamSearch s({.beams = 1});
  s.advance(logs({0.1, 0.2, 0.6, 0.1}), kWords);
  EXPECT_FALSE(s.done());
  EXPECT_EQ(s.tokens()[0], 2);
  EXPECT_EQ(s.best(), (Tokens{2}));
  s.advance(logs({0.1, 0.7, 0.1, 0.1}), kWords);
  EXPECT_TRUE(s.done());
  EXPECT_EQ(s.best(), (Tokens{2, 1}));
}

TEST(BeamSearch, RefusesScoresThatAreNoNumbers) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    BeamSearch s({.beams = 2});
    s.advance(std::vector<float>{1, 2, 3, 1, 2, 3}, 3);
    EXPECT_FAILS(s.advance(std::vector<float>{1, 2, 3, 1, bad, 3}, 3), ErrorCode::input,
                 "scores of token 2 hold NaN or infinity");
  }
  BeamSearch s({.beams = 1});
  EXPECT_FAILS(s.advance(std::vector<float>(3, -kInfinity), 3), ErrorCode::input, "token 1");
  s.advance(std::vector<float>{-kInfinity, -kInfinity, 3}, 3);  // tokens that cannot be
  EXPECT_EQ(s.tokens()[0], 2);
}

TEST(BeamSearch, FindsASequenceWhoseFirstTokenIsNotTheBest) {
  BeamSearch s({.beams = 2});
  const std::vector<double> first = {0.05, 0.05, 0.5, 0.4};
  std::vector<double> both = first;
  both.insert(both.end(), first.begin(), first.end());  // the second has no chance yet
  s.advance(logs(both), kWords);
  EXPECT_EQ(Tokens(s.tokens().begin(), s.tokens().end()), (Tokens{2, 3}));
  EXPECT_EQ(Tokens(s.parents().begin(), s.parents().end()), (Tokens{0, 0}));
  // After 2 nothing is likely, after 3 the token 0 is: 0.5 * 0.3 < 0.4 * 0.9.
  s.advance(logs({0.3, 0.2, 0.25, 0.25, 0.9, 0.04, 0.03, 0.03}), kWords);
  EXPECT_EQ(s.tokens()[0], 0);
  EXPECT_EQ(s.parents()[0], 1);
  EXPECT_EQ(s.best(), (Tokens{3, 0}));
}

TEST(BeamSearch, GoesOnWhileARunningSequenceMayStillWin) {
  const auto run = [](bool early) {
    BeamSearch s({.beams = 2, .early_stopping = early});
    s.advance(logs({0.05, 0.3, 0.6, 0.05, 0.05, 0.3, 0.6, 0.05}), kWords);
    // One ended with 0.3. Another ends with 0.6 * 0.5, and its brother is as likely.
    s.advance(logs({0.49, 0.5, 0.005, 0.005, 0.25, 0.25, 0.25, 0.25}), kWords);
    return s;
  };
  EXPECT_TRUE(run(true).done());
  EXPECT_EQ(run(true).best(), (Tokens{2, 1}));
  BeamSearch s = run(false);
  EXPECT_FALSE(s.done());
  // What goes on is sure: its mean logarithm is higher.
  s.advance(logs({0.97, 0.01, 0.01, 0.01, 0.97, 0.01, 0.01, 0.01}), kWords);
  EXPECT_EQ(s.best(), (Tokens{2, 0, 0}));
}

TEST(BeamSearch, LengthPenaltyDecidesAmongFinishedSequences) {
  for (const double penalty : {0.0, 2.0}) {
    BeamSearch s({.beams = 2, .length_penalty = penalty});
    s.advance(logs({0.02, 0.45, 0.51, 0.02, 0.02, 0.45, 0.51, 0.02}), kWords);
    s.advance(logs({0.02, 0.8, 0.16, 0.02, 0.25, 0.25, 0.25, 0.25}), kWords);
    // 0.45 in one token against 0.51 * 0.8 in two.
    EXPECT_EQ(s.best(), penalty == 0 ? (Tokens{1}) : (Tokens{2, 1}));
  }
}

}  // namespace
}  // namespace ballast::infer
