#include "infer/text_encoder.h"

#include <algorithm>

#include "core/error.h"
#include "memory/gpu.h"
#include "models/t5/weights.h"
#include "ops/sgemm.h"
#include "plan/runner.h"

namespace ballast::infer {

TextEncoder::TextEncoder(const std::string& path, TextEncoderOptions options)
    : model_(path, std::move(options)) {
  model_.config.decoder_layers = 0;
  groups_ = t5::weight_groups(model_.config, model_.checkpoint, model_.names);
  table_ = t5::embedding_table(model_.config, model_.checkpoint, model_.names);
}

t5::EncoderJob TextEncoder::job(const MemoryPolicy& policy,
                                std::span<const std::int64_t> lengths) const {
  t5::EncoderJob job;
  job.config = model_.config;
  job.policy = policy;
  job.format = model_.options.format;
  job.rows = table_.dtype;
  job.precision = model_.precision();
  const auto at_once = static_cast<std::size_t>(model_.options.prompts_per_pass);
  for (std::size_t first = 0; first < lengths.size(); first += at_once) {
    const auto part = lengths.subspan(first, std::min(at_once, lengths.size() - first));
    job.passes.emplace_back(part.begin(), part.end());
  }
  return job;
}

std::variant<TextEncoderPlan, Refusal> TextEncoder::plan(
    std::span<const std::int64_t> lengths) const {
  check(!lengths.empty(), "no prompts to plan for");
  std::int64_t tokens = 0;
  for (const std::int64_t n : lengths) tokens += n;
  const Bytes results{static_cast<std::uint64_t>(tokens * model_.config.d_model) * 4};
  Refusal refusal;
  for (const MemoryPolicy& policy :
       model_.candidates(std::ssize(lengths) > model_.options.prompts_per_pass)) {
    ProgramSet set;
    set.backend = model_.backend();
    set.executable = false;
    const t5::Encoder encoder(set, job(policy, lengths), groups_);
    TextEncoderPlan planned = model_.plan_of(set, policy, results);
    std::vector<Shortage> missing = model_.shortages(planned);
    if (missing.empty()) return planned;
    refusal = {.policy = policy.name,
               .needed = {planned.needed(Tier::device), planned.needed(Tier::host), Bytes{}},
               .shortages = std::move(missing)};
  }
  return refusal;
}

std::vector<TextStates> TextEncoder::encode(
    std::span<const std::vector<std::int32_t>> prompts) const {
  if (prompts.empty()) return {};
  std::vector<std::int64_t> lengths;
  for (const auto& ids : prompts) {
    if (ids.empty()) {
      fail(ErrorCode::input,
           fmt::format("prompt {} has no tokens; an empty one is </s> alone", lengths.size()));
    }
    lengths.push_back(std::ssize(ids));
  }
  // The rows of the first pass come while the plan is made, those of another one while the one
  // before it runs.
  const auto at_once = static_cast<std::size_t>(model_.options.prompts_per_pass);
  const auto expect_pass = [&](std::size_t first) {
    std::vector<std::int32_t> ids;
    for (std::size_t i = first; i < std::min(first + at_once, prompts.size()); ++i) {
      ids.insert(ids.end(), prompts[i].begin(), prompts[i].end());
    }
    t5::expect_rows(table_, ids);
  };
  expect_pass(0);
  const std::variant<TextEncoderPlan, Refusal> answer = plan(lengths);
  if (const auto* refusal = std::get_if<Refusal>(&answer)) {
    fail_refused(
        fmt::format("encoding {} prompts with {}", prompts.size(), model_.checkpoint.path()),
        *refusal);
  }
  ProgramSet set;
  set.backend = model_.backend();
  const t5::Encoder encoder(set, job(std::get<TextEncoderPlan>(answer).policy, lengths), groups_);
  const MemoryPlan memory = plan_memory(set);
  const bool gpu = set.backend.device == Device::cuda;
  if (gpu) open_gpu();
  Runner runner(set, memory);
  if (!gpu) ops::warm_up_blas(runner.compute_threads());
  runner.run("load");
  std::vector<TextStates> all;
  for (const t5::PassIo& pass : encoder.passes()) {
    const std::size_t first = all.size();
    for (std::size_t i = 0; i < pass.prompts.size(); ++i) {
      t5::read_rows(table_, prompts[first + i], runner.view(pass.prompts[i].rows));
    }
    expect_pass(first + pass.prompts.size());
    runner.run(pass.program);
    for (const t5::PromptIo& io : pass.prompts) {
      const TensorView states = runner.view(io.states);
      const float* values = states.as<float>();
      all.push_back({.tokens = states.shape[0],
                     .width = states.shape[1],
                     .values = {values, values + states.elements()}});
    }
  }
  return all;
}

}  // namespace ballast::infer
