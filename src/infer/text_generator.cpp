#include "infer/text_generator.h"

#include <algorithm>

#include "core/error.h"
#include "infer/beam_search.h"
#include "memory/gpu.h"
#include "models/t5/weights.h"
#include "ops/sgemm.h"
#include "plan/runner.h"

namespace ballast::infer {

TextGenerator::TextGenerator(const std::string& path, TextModelOptions options)
    : model_(path, std::move(options)) {
  if (model_.config.decoder_layers == 0) {
    fail(ErrorCode::input, fmt::format("{} holds an encoder without a decoder", path));
  }
  groups_ = t5::weight_groups(model_.config, model_.checkpoint, model_.names);
}

t5::DecoderJob TextGenerator::job(const MemoryPolicy& policy, std::span<const std::int64_t> lengths,
                                  const GenerateOptions& options) const {
  if (options.max_new_tokens < 1 || options.beams < 1) {
    fail(ErrorCode::usage, fmt::format("{} new tokens with {} beams; at least one of each",
                                       options.max_new_tokens, options.beams));
  }
  t5::DecoderJob job;
  job.config = model_.config;
  job.policy = policy;
  job.precision = model_.precision();
  job.format = model_.options.format;
  job.beams = options.beams;
  job.positions = options.max_new_tokens;  // the last token is not read any more
  job.sources.assign(lengths.begin(), lengths.end());
  std::ranges::sort(job.sources);
  const auto repeated = std::ranges::unique(job.sources);
  job.sources.erase(repeated.begin(), repeated.end());
  return job;
}

std::variant<TextModelPlan, Refusal> TextGenerator::plan(std::span<const std::int64_t> lengths,
                                                         const GenerateOptions& options) const {
  check(!lengths.empty(), "no sources to plan for");
  const Bytes results{static_cast<std::uint64_t>(std::ssize(lengths) * options.max_new_tokens) * 4};
  Refusal refusal;
  for (const MemoryPolicy& policy : model_.candidates(true)) {
    ProgramSet set;
    set.backend = model_.backend();
    set.executable = false;
    const t5::Decoder decoder(set, job(policy, lengths, options), groups_);
    TextModelPlan planned = model_.plan_of(set, policy, results);
    std::vector<Shortage> missing = model_.shortages(planned);
    if (missing.empty()) return planned;
    refusal = {.policy = policy.name,
               .needed = {planned.needed(Tier::device), planned.needed(Tier::host), Bytes{}},
               .shortages = std::move(missing)};
  }
  return refusal;
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
  const std::variant<TextModelPlan, Refusal> answer = plan(lengths, options);
  if (const auto* refusal = std::get_if<Refusal>(&answer)) {
    fail_refused(fmt::format("generating with {}", model_.checkpoint.path()), *refusal);
  }
  const t5::DecoderJob recorded = job(std::get<TextModelPlan>(answer).policy, lengths, options);
  ProgramSet set;
  set.backend = model_.backend();
  const t5::Decoder decoder(set, recorded, groups_);
  const MemoryPlan memory = plan_memory(set);
  const bool gpu = set.backend.device == Device::cuda;
  if (gpu) open_gpu();
  Runner runner(set, memory);
  if (!gpu) ops::warm_up_blas(runner.compute_threads());
  runner.run("load");
  const t5::DecoderIo& io = decoder.io();
  std::vector<std::vector<std::int32_t>> all;
  for (const auto& ids : sources) {
    const auto kind = std::ranges::find(recorded.sources, std::ssize(ids));
    const auto& source = io.sources[static_cast<std::size_t>(kind - recorded.sources.begin())];
    std::ranges::copy(ids, runner.view(source.ids).as<std::int32_t>());
    runner.run(source.read);
    BeamSearch search({.beams = options.beams,
                       .length_penalty = options.length_penalty,
                       .early_stopping = options.early_stopping,
                       .eos = model_.config.eos});
    auto* const tokens = runner.view(io.tokens).as<std::int32_t>();
    std::fill_n(tokens, options.beams, model_.config.decoder_start);
    for (std::int64_t position = 0; position < options.max_new_tokens; ++position) {
      runner.run(source.next, {.step = position});
      const TensorView logits = runner.view(io.logits);
      search.advance({logits.as<float>(), static_cast<std::size_t>(logits.elements())},
                     model_.config.vocabulary);
      const bool last = search.done() || position + 1 == options.max_new_tokens;
      if (on_token) {
        on_token({.source = all.size(),
                  .last = last,
                  .device = runner.high_water(Tier::device),
                  .host = runner.high_water(Tier::host)});
      }
      if (last) break;
      std::ranges::copy(search.tokens(), tokens);
      if (options.beams == 1) continue;
      std::ranges::copy(search.parents(), runner.view(io.parents).as<std::int32_t>());
      runner.run("reorder");
    }
    all.push_back(search.best());
  }
  return all;
}

}  // namespace ballast::infer
