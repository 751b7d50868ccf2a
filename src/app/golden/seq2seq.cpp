// Golden files of the encoder-decoder: t5_seq2seq (Wan's module), t5_hf (transformers).

#include "models/t5/seq2seq.h"

#include <algorithm>
#include <cstring>

#include "app/golden/t5.h"
#include "core/error.h"
#include "core/to_size.h"
#include "infer/text_generator.h"
#include "models/t5/weights.h"
#include "ops/linear/sgemm.h"
#include "plan/runner.h"

namespace ballast {
namespace {

struct Pair {
  std::vector<std::int32_t> source, decoder_input, labels;
};

struct Batch {
  std::vector<Pair> pairs;
  std::int64_t source_rows = 0, target_rows = 0;  // of the padded tensors
  std::int64_t counted = 0;                       // labels that do
};

// Labels up to the last one that counts, and behind the start token what the decoder reads.
void add_targets(const GoldenFile& file, const t5::Config& c, Batch& batch) {
  const GoldenTensor labels = file.load("in.labels");
  const auto samples = std::ssize(batch.pairs);
  if (labels.dtype != DType::i64 || labels.shape.rank() != 2 || labels.shape[0] != samples) {
    fail(ErrorCode::input, "{}: in.labels is {} {}, expected i64 for {} samples", file.path(),
         labels.dtype, labels.shape, samples);
  }
  batch.target_rows = labels.shape[1];
  const auto* label = labels.view().as<std::int64_t>();
  for (Pair& p : batch.pairs) {
    std::int64_t length = batch.target_rows;
    while (length > 0 && label[length - 1] < 0) --length;
    std::int32_t before = c.decoder_start;
    for (std::int64_t t = 0; t < length; ++t) {
      if (label[t] >= c.vocabulary) {
        fail(ErrorCode::input, "{}: in.labels has {} of {} classes", file.path(), label[t],
             c.vocabulary);
      }
      const auto own = static_cast<std::int32_t>(std::max<std::int64_t>(label[t], -100));
      p.labels.push_back(own);
      p.decoder_input.push_back(before);
      before = own < 0 ? c.pad : own;
      batch.counted += own >= 0;
    }
    label += batch.target_rows;
  }
  const auto empty =
      std::ranges::find_if(batch.pairs, [](const Pair& p) { return p.labels.empty(); });
  if (empty != batch.pairs.end()) {
    fail(ErrorCode::input, "{}: a sample has no labels", file.path());
  }
}

Batch read_batch(const GoldenFile& file, const t5::Config& c, std::string_view ids,
                 std::string_view mask) {
  Batch batch;
  for (auto& source : golden_tokens(file, ids, mask)) {
    for (const std::int32_t id : source) {
      if (id < c.vocabulary) continue;
      fail(ErrorCode::input, "{}: {} has the token {} of {}", file.path(), ids, id, c.vocabulary);
    }
    batch.pairs.push_back({.source = std::move(source), .decoder_input = {}, .labels = {}});
  }
  batch.source_rows = file.load(ids).shape[1];
  add_targets(file, c, batch);
  return batch;
}

// A recorded, planned and loaded model with the batch in place.
class Seq2SeqRun {
 public:
  Seq2SeqRun(const GoldenFile& file, const VerifyOptions& options, const t5::Config& c,
             const t5::TensorMap& names, const Batch& batch, const OptimizerOptions& optimizer) {
    t5::Seq2SeqJob job;
    job.config = c;
    job.policy = options.policy;
    job.precision = golden_t5_precision(options);
    job.trains = job.record_update = true;
    job.keep_states = job.keep_logits = true;
    job.optimizer = optimizer;
    t5::BatchShape shape = {.samples = std::ssize(batch.pairs)};
    for (const Pair& p : batch.pairs) {
      shape.source = std::max<std::int64_t>(shape.source, std::ssize(p.source));
      shape.target = std::max<std::int64_t>(shape.target, std::ssize(p.labels));
    }
    job.batches = {shape};
    set_.backend = verify_backend(options);
    model_ = std::make_unique<t5::Seq2Seq>(set_, std::move(job),
                                           weight_groups(c, file.checkpoint(), names));
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
    if (options.device == Device::cpu) ops::warm_up_blas(runner_->compute_threads());
    runner_->run("load");
    runner_->run("init_state");
    const auto fill = [&](Buffer b, std::vector<std::int32_t> Pair::*tokens, std::int32_t pad) {
      auto* to = runner_->view(b).as<std::int32_t>();
      const std::int64_t width = set_.spec(b).shape[1];
      std::fill_n(to, set_.spec(b).shape.elements(), pad);
      for (const Pair& p : batch.pairs) {
        std::ranges::copy(p.*tokens, to);
        to += width;
      }
    };
    fill(samples().source, &Pair::source, c.pad);
    fill(samples().decoder_input, &Pair::decoder_input, c.pad);
    fill(samples().labels, &Pair::labels, -100);
    auto* length = runner_->view(samples().source_lengths).as<std::int32_t>();
    for (const Pair& p : batch.pairs) *length++ = static_cast<std::int32_t>(p.source.size());
    weight_ = 1 / static_cast<double>(batch.counted);
    *runner_->view(samples().label_weight).as<float>() = static_cast<float>(weight_);
  }

  const t5::MicroBatchIo& samples() const { return model_->io().steps[0].micro_batches[0]; }
  const t5::Seq2SeqIo& io() const { return model_->io(); }
  std::vector<float> values(Buffer b) {
    std::vector<float> v(to_size(set_.spec(b).shape.elements()));
    runner_->read(b, std::as_writable_bytes(std::span(v)));
    return v;
  }
  // The loss of the weights as they are; gradients and logits are there afterwards.
  double step() {
    runner_->run(io().steps[0].program);
    double sum = 0;
    for (const float loss : values(samples().losses)) sum += loss;
    return sum * weight_;
  }
  void update(std::int64_t number, double learning_rate) {
    runner_->run("grad_norm");
    runner_->run("update", {.step = number, .learning_rate = learning_rate});
  }

 private:
  ProgramSet set_;
  std::unique_ptr<t5::Seq2Seq> model_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
  double weight_ = 0;
};

void add_results(const GoldenFile& file, const t5::Config& c, const t5::TensorMap& names,
                 const Batch& batch, double loss, Seq2SeqRun& run,
                 std::vector<GoldenTensor>& results) {
  // Rows of the samples without their padding.
  const auto rows = [&](const std::vector<float>& all, auto tokens, std::int64_t width) {
    const auto each = all.size() / batch.pairs.size();
    std::vector<std::vector<float>> samples;
    for (const Pair& p : batch.pairs) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(samples.size() * each);
      samples.emplace_back(from, from + std::ssize(p.*tokens) * width);
    }
    return samples;
  };
  const auto states = rows(run.values(run.samples().states), &Pair::source, c.d_model);
  const auto logits = rows(run.values(run.samples().logits), &Pair::labels, c.vocabulary);
  results.push_back(padded_rows("out.encoder", batch.source_rows, c.d_model, states));
  results.push_back(padded_rows("out.logits", batch.target_rows, c.vocabulary, logits));
  for (const SafetensorsEntry& e : file.entries()) {
    constexpr std::string_view kGrad = "grad.";
    if (e.name == "out.loss") {
      const float value = static_cast<float>(loss);
      results.push_back(golden_tensor("out.loss", e.shape, std::span(&value, 1)));
    }
    if (!e.name.starts_with(kGrad)) continue;
    const std::string_view stored = e.name.substr(kGrad.size());
    std::optional<std::string> name = std::string(stored);
    if (names.dialect() == t5::Dialect::wan) name = t5::transformers_name(stored);
    const auto& all = run.io().gradients;
    const auto g = std::ranges::find(all, name.value_or(""), &NamedGradient::name);
    if (g == all.end()) continue;  // is reported as not recomputed
    results.push_back(golden_tensor(std::string(e.name), e.shape, run.values(g->gradient)));
  }
}

// The five steps that the files' notes describe.
constexpr std::int64_t kSteps = 5;
constexpr double kLearningRate = 1e-3;
OptimizerOptions noted_optimizer() {
  OptimizerOptions o;
  o.beta1 = 0.9, o.beta2 = 0.999, o.eps = 1e-8, o.weight_decay = 0.01;
  return o;
}

GoldenTensor generated(const GoldenFile& file, const VerifyOptions& options, const t5::Config& c,
                       const Batch& batch, const SafetensorsEntry& entry, int beams) {
  if (entry.shape.rank() != 2 || entry.shape[0] != std::ssize(batch.pairs) || entry.shape[1] < 2 ||
      entry.shape[1] > 4096) {
    fail(ErrorCode::input, "{}: {} is {}", file.path(), entry.name, entry.shape);
  }
  const infer::TextGenerator generator(file.path(), {.device = options.device,
                                                     .policy = options.policy,
                                                     .threads = options.threads,
                                                     .dtype = options.dtype,
                                                     .config = c});
  std::vector<std::vector<std::int32_t>> sources;
  for (const Pair& p : batch.pairs) sources.push_back(p.source);
  const std::int64_t width = entry.shape[1];
  const auto texts = generator.generate(sources, {.max_new_tokens = width - 1, .beams = beams});
  GoldenTensor t = golden_tensor(std::string(entry.name), DType::i64, entry.shape);
  auto* to = t.view().as<std::int64_t>();
  for (const auto& tokens : texts) {
    std::fill_n(to, width, c.pad);
    to[0] = c.decoder_start;
    std::ranges::copy(tokens, to + 1);
    to += width;
  }
  return t;
}

}  // namespace

std::vector<GoldenTensor> recompute_t5_seq2seq(const GoldenFile& file,
                                               const VerifyOptions& options) {
  const t5::TensorMap names(file.checkpoint());
  const t5::Config c = golden_t5_config(file, names);
  const Batch batch = read_batch(file, c, "in.encoder_ids", "in.encoder_mask");
  Seq2SeqRun run(file, options, c, names, batch, {});
  std::vector<GoldenTensor> results;
  const double loss = run.step();
  add_results(file, c, names, batch, loss, run, results);
  return results;
}

std::vector<GoldenTensor> recompute_t5_hf(const GoldenFile& file, const VerifyOptions& options) {
  const t5::TensorMap names(file.checkpoint());
  const t5::Config c = golden_t5_config(file, names);
  const Batch batch = read_batch(file, c, "in.input_ids", "in.attention_mask");
  Seq2SeqRun run(file, options, c, names, batch, noted_optimizer());
  std::vector<GoldenTensor> results;
  std::vector<float> losses = {static_cast<float>(run.step())};
  add_results(file, c, names, batch, losses[0], run, results);
  for (std::int64_t step = 1; step < kSteps; ++step) {
    run.update(step, kLearningRate);
    losses.push_back(static_cast<float>(run.step()));
  }
  results.push_back(golden_tensor("out.adamw.losses", {kSteps}, losses));
  for (const SafetensorsEntry& e : file.entries()) {
    if (e.name == "out.greedy") results.push_back(generated(file, options, c, batch, e, 1));
    if (e.name == "out.beam3") results.push_back(generated(file, options, c, batch, e, 3));
  }
  return results;
}

}  // namespace ballast
