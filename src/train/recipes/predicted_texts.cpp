#include "train/recipes/predicted_texts.h"

#include <algorithm>

#include "core/progress.h"
#include "core/to_size.h"
#include "data/tokenizer.h"
#include "io/atomic_file.h"
#include "io/json_writer.h"

namespace ballast::train {
namespace {

constexpr std::int64_t kSamplesAtOnce = 512;
constexpr std::size_t kShown = 3;

std::string json_line(const Prediction& p) {
  std::string line = "{\"input\": ";
  append_json_string(line, p.input);
  line += ", \"target\": ";
  append_json_string(line, p.target);
  line += ", \"prediction\": ";
  append_json_string(line, p.text);
  return line += "}\n";
}

}  // namespace

Predictions predict_texts(const data::TokenCache& texts, const PredictionJob& job) {
  const data::Tokenizer tokenizer = data::Tokenizer::open(job.model);
  const infer::TextGenerator model(job.model, job.machine, job.adapter);
  const std::int64_t samples =
      job.samples > 0 ? std::min(job.samples, texts.samples()) : texts.samples();
  AtomicFile file(job.output);
  Predictions all;
  MeanRouge mean;
  Progress progress("writing texts", samples);
  for (std::int64_t first = 0; first < samples; first += kSamplesAtOnce) {
    std::vector<std::vector<std::int32_t>> sources, targets;
    for (std::int64_t s = first; s < std::min(samples, first + kSamplesAtOnce); ++s) {
      const data::PairLength n = texts.length(s);
      sources.emplace_back(to_size(n.source));
      targets.emplace_back(to_size(n.target));
      texts.read(s, sources.back(), targets.back());
    }
    const auto written = model.generate(sources, job.options, [&](const infer::GeneratedToken& t) {
      if (t.last) progress.add();
    });
    for (std::size_t i = 0; i < written.size(); ++i) {
      Prediction p = {tokenizer.decode(sources[i]), tokenizer.decode(targets[i]),
                      tokenizer.decode(written[i])};
      file.write(json_line(p));
      mean.add(rouge(p.target, p.text));
      ++all.count;
      all.exact += p.text == p.target;
      if (all.first.size() < kShown) all.first.push_back(std::move(p));
    }
  }
  file.commit();
  all.rouge = mean.mean();
  return all;
}

}  // namespace ballast::train
