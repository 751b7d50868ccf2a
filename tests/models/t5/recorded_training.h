#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/to_size.h"
#include "models/t5/seq2seq.h"
#include "ops/linear/sgemm.h"
#include "plan/runner.h"
#include "tests/support/tiny_t5.h"

// Steps of a small encoder-decoder, recorded and run.
namespace ballast::t5::training_test {

using Values = std::vector<float>;

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

inline std::vector<Sample> samples(const Config& c) {
  Sample a = {support::some_tokens(9, c.vocabulary), support::some_tokens(6, c.vocabulary, 2)};
  Sample b = {support::some_tokens(4, c.vocabulary, 3), support::some_tokens(11, c.vocabulary, 4)};
  b.labels[2] = b.labels.back() = -100;
  return {a, b};
}

}  // namespace ballast::t5::training_test
