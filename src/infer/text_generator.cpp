#include "infer/text_generator.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "infer/beam_search.h"
#include "memory/gpu.h"
#include "models/t5/weights.h"
#include "ops/linear/sgemm.h"

namespace ballast::infer {

TextGenerator::TextGenerator(const std::string& path, TextModelOptions options,
                             const AppliedAdapter& adapter)
    : model_(path, std::move(options)), strength_(adapter.strength) {
  if (model_.config.decoder_layers == 0) {
    fail(ErrorCode::input, "{} holds an encoder without a decoder", path);
  }
  groups_ = t5::weight_groups(model_.config, model_.checkpoint, model_.names);
  if (!adapter.folder.empty()) lora_ = t5::LoraFile::open(adapter.folder, model_.config);
}

t5::DecoderJob TextGenerator::job(std::span<const std::int64_t> lengths,
                                  const GenerateOptions& options) const {
  if (options.max_new_tokens < 1 || options.beams < 1) {
    fail(ErrorCode::usage, "{} new tokens with {} beams; at least one of each",
         options.max_new_tokens, options.beams);
  }
  t5::DecoderJob job;
  job.config = model_.config;
  job.precision = model_.precision();
  job.format = model_.options.format;
  job.beams = options.beams;
  if (lora_) job.lora = lora_->options(strength_);
  job.positions = options.max_new_tokens;  // the last token is not read any more
  job.sources.assign(lengths.begin(), lengths.end());
  std::ranges::sort(job.sources);
  const auto repeated = std::ranges::unique(job.sources);
  job.sources.erase(repeated.begin(), repeated.end());
  return job;
}

fit::Request TextGenerator::request(std::span<const std::int64_t> lengths,
                                    const GenerateOptions& options) const {
  check(!lengths.empty(), "no sources to plan for");
  t5::DecoderFitJob planned;
  planned.decoder = job(lengths, options);
  planned.weights = groups_;
  const std::int64_t tokens = std::ssize(lengths) * options.max_new_tokens;
  std::vector<ProcessLine> lines = {{.name = "results",
                                     .bytes = Bytes{static_cast<std::uint64_t>(tokens) * 4},
                                     .reason = "what the caller is given"}};
  if (lora_) {
    lines.push_back({.name = "reading of the adapter",
                     .bytes = lora_->reading_bytes(),
                     .reason = "a factor as it is stored and as it is used"});
  }
  return model_.request(std::move(planned), std::move(lines));
}

PlanTitle TextGenerator::title(std::span<const std::int64_t> lengths,
                               const GenerateOptions& options) const {
  return title_of(request(lengths, options), model_.config.name, "generate",
                  fmt::format("{} prompt{}, at most {} tokens each, {} beam{}", lengths.size(),
                              lengths.size() == 1 ? "" : "s", options.max_new_tokens, options.beams,
                              options.beams == 1 ? "" : "s"));
}

fit::PlannedRun TextGenerator::require_plan(std::span<const std::int64_t> lengths,
                                            const GenerateOptions& options,
                                            const PossibleChanges& changes) const {
  return infer::require_plan({request(lengths, options), title(lengths, options)}, changes);
}

std::vector<std::vector<std::int32_t>> TextGenerator::generate(
    std::span<const std::vector<std::int32_t>> sources, const GenerateOptions& options,
    const OnToken& on_token) const {
  if (sources.empty()) return {};
  std::vector<std::int64_t> lengths;
  for (const auto& ids : sources) {
    const auto bad = std::ranges::find_if(
        ids, [&](std::int32_t id) { return id < 0 || id >= model_.config.vocabulary; });
    if (ids.empty() || bad != ids.end()) {
      fail(ErrorCode::input, ids.empty()
                                 ? fmt::format("source {} has no tokens", lengths.size())
                                 : fmt::format("source {} has the token {}; the model has {}",
                                               lengths.size(), *bad, model_.config.vocabulary));
    }
    lengths.push_back(std::ssize(ids));
  }
  t5::DecoderJob recorded = job(lengths, options);
  recorded.policy = require_plan(lengths, options).policy;
  ProgramSet set;
  set.backend = model_.backend();
  const t5::Decoder decoder(set, std::move(recorded), groups_);
  const MemoryPlan memory = plan_memory(set);
  const bool gpu = set.backend.device == Device::cuda;
  if (gpu) open_gpu();
  Runner runner(set, memory);
  if (!gpu) ops::warm_up_blas(runner.compute_threads());
  runner.run("load");
  if (lora_) lora_->fill(decoder.adapters(), runner);
  std::vector<std::vector<std::int32_t>> all;
  for (const auto& ids : sources) {
    all.push_back(write_text(decoder, runner, ids, options, [&](bool last) {
      if (!on_token) return;
      on_token({.source = all.size(),
                .last = last,
                .device = runner.high_water(Tier::device),
                .host = runner.high_water(Tier::host)});
    }));
  }
  return all;
}

std::vector<std::int32_t> write_text(const t5::Decoder& decoder, Runner& runner,
                                     std::span<const std::int32_t> source,
                                     const GenerateOptions& options,
                                     const std::function<void(bool last)>& after_token) {
  const t5::DecoderIo& io = decoder.io();
  const t5::DecoderJob& job = decoder.job();
  const auto needed = std::ssize(source);
  std::size_t kind = job.sources.size();
  for (std::size_t i = 0; i < job.sources.size(); ++i) {
    const std::int64_t length = job.sources[i];
    if (length < needed || (!job.padded && length != needed)) continue;
    if (kind == job.sources.size() || length < job.sources[kind]) kind = i;
  }
  check(kind < job.sources.size(), "nothing was recorded for a source of {} tokens", needed);
  check(options.beams == job.beams && options.max_new_tokens <= job.positions,
        "{} beams of {} tokens, recorded were {} of {}", options.beams, options.max_new_tokens,
        job.beams, job.positions);
  const t5::DecoderIo::Source& programs = io.sources[kind];
  auto* const ids = runner.view(programs.ids).as<std::int32_t>();
  std::fill_n(ids, job.sources[kind], job.config.pad);
  std::ranges::copy(source, ids);
  if (job.padded) {
    *runner.view(io.source_length).as<std::int32_t>() = static_cast<std::int32_t>(needed);
  }
  runner.run(programs.read);
  BeamSearch search({.beams = options.beams,
                     .length_penalty = options.length_penalty,
                     .early_stopping = options.early_stopping,
                     .eos = job.config.eos});
  auto* const tokens = runner.view(io.tokens).as<std::int32_t>();
  std::fill_n(tokens, options.beams, job.config.decoder_start);
  for (std::int64_t position = 0; position < options.max_new_tokens; ++position) {
    runner.run(programs.next, {.step = position});
    const TensorView logits = runner.view(io.logits);
    search.advance({logits.as<float>(), to_size(logits.elements())}, job.config.vocabulary);
    const bool last = search.done() || position + 1 == options.max_new_tokens;
    if (after_token) after_token(last);
    if (last) break;
    std::ranges::copy(search.tokens(), tokens);
    if (options.beams == 1) continue;
    std::ranges::copy(search.parents(), runner.view(io.parents).as<std::int32_t>());
    runner.run("reorder");
  }
  return search.best();
}

}  // namespace ballast::infer
