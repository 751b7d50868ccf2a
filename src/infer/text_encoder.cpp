#include "infer/text_encoder.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "core/error.h"
#include "core/thread_pool.h"
#include "memory/gpu.h"
#include "models/t5/weights.h"
#include "ops/sgemm.h"
#include "plan/runner.h"

namespace ballast::infer {
namespace {

constexpr int kHandsForRows = 8;

}  // namespace

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

struct TextEncoder::Recording {
  std::unique_ptr<ProgramSet> set;
  std::unique_ptr<t5::Encoder> encoder;
  TextEncoderPlan plan;
};

std::variant<TextEncoder::Recording, Refusal> TextEncoder::record(
    std::span<const std::int64_t> lengths, bool executable) const {
  check(!lengths.empty(), "no prompts to plan for");
  std::int64_t tokens = 0;
  for (const std::int64_t n : lengths) tokens += n;
  const Bytes results{static_cast<std::uint64_t>(tokens * model_.config.d_model) * 4};
  Refusal refusal;
  for (const MemoryPolicy& policy :
       model_.candidates(std::ssize(lengths) > model_.options.prompts_per_pass)) {
    Recording r = {.set = std::make_unique<ProgramSet>(), .encoder = {}, .plan = {}};
    r.set->backend = model_.backend();
    r.set->executable = executable;
    r.encoder = std::make_unique<t5::Encoder>(*r.set, job(policy, lengths), groups_);
    r.plan = model_.plan_of(*r.set, policy, results);
    if (r.set->backend.device == Device::cuda) {
      r.plan.lines.push_back({.name = "threads for rows and states",
                              .bytes = kThreadStack * kHandsForRows,
                              .reason = "stacks"});
    }
    std::vector<Shortage> missing = model_.shortages(r.plan);
    if (missing.empty()) return r;
    refusal = {.policy = policy.name,
               .needed = {r.plan.needed(Tier::device), r.plan.needed(Tier::host), Bytes{}},
               .shortages = std::move(missing)};
  }
  return refusal;
}

std::variant<TextEncoderPlan, Refusal> TextEncoder::plan(
    std::span<const std::int64_t> lengths) const {
  std::variant<Recording, Refusal> made = record(lengths, false);
  if (auto* refusal = std::get_if<Refusal>(&made)) return std::move(*refusal);
  return std::move(std::get<Recording>(made).plan);
}

std::vector<TextStates> TextEncoder::encode(std::span<const std::vector<std::int32_t>> prompts,
                                            TextEncoderTimes* times) const {
  if (prompts.empty()) return {};
  TextEncoderTimes unseen;
  TextEncoderTimes& spent = times ? *times : unseen;
  spent = {};
  auto since = std::chrono::steady_clock::now();
  const auto count = [&since](double& part) {
    const auto now = std::chrono::steady_clock::now();
    part += std::chrono::duration<double>(now - since).count();
    since = now;
  };
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
  count(spent.rows);
  const std::variant<Recording, Refusal> made = record(lengths, true);
  if (const auto* refusal = std::get_if<Refusal>(&made)) {
    fail_refused(
        fmt::format("encoding {} prompts with {}", prompts.size(), model_.checkpoint.path()),
        *refusal);
  }
  const auto& [set, encoder, plan] = std::get<Recording>(made);
  count(spent.planning);
  const bool gpu = set->backend.device == Device::cuda;
  if (gpu) open_gpu();
  Runner runner(*set, plan.memory, {.disk_readers = model_.options.disk_readers});
  // Beside a GPU, reading rows and handing over states is all that processors do.
  ThreadPool many(gpu ? kHandsForRows : 1);
  ThreadPool& threads = gpu ? many : runner.compute_threads();
  if (!gpu) ops::warm_up_blas(threads);
  count(spent.opening);
  runner.run("load");
  count(spent.loading);
  std::vector<TextStates> all(prompts.size());
  std::size_t first = 0;
  for (const t5::PassIo& pass : encoder->passes()) {
    const auto prompts_here = static_cast<std::int64_t>(pass.prompts.size());
    threads.parallel(prompts_here, [&](std::int64_t i, int) {
      const auto p = static_cast<std::size_t>(i);
      t5::read_rows(table_, prompts[first + p], runner.view(pass.prompts[p].rows));
    });
    expect_pass(first + pass.prompts.size());
    count(spent.rows);
    runner.run(pass.program);
    count(spent.passes);
    const auto& lanes = runner.lane_times();
    const LaneTime& disk = lanes[static_cast<std::size_t>(Lane::disk)];
    spent.disk_busy += disk.busy;
    spent.disk_waiting += disk.waiting;
    spent.compute_busy += lanes[static_cast<std::size_t>(Lane::compute)].busy;
    // New memory is slow to come: several threads touch it.
    threads.parallel(prompts_here, [&](std::int64_t i, int) {
      const auto p = static_cast<std::size_t>(i);
      const TensorView states = runner.view(pass.prompts[p].states);
      const float* values = states.as<float>();
      all[first + p] = {.tokens = states.shape[0],
                        .width = states.shape[1],
                        .values = {values, values + states.elements()}};
    });
    first += pass.prompts.size();
    count(spent.results);
  }
  return all;
}

}  // namespace ballast::infer
