#include "infer/text_encoder.h"

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "core/stopwatch.h"
#include "core/thread_pool.h"
#include "memory/gpu.h"
#include "models/t5/weights.h"
#include "ops/sgemm.h"
#include "plan/runner.h"

namespace ballast::infer {
namespace {

constexpr int kHandsForRows = kDiskReaders;  // rows are read one by one

// For recordings that are only planned.
t5::RowsSource never_read() {
  return {.read = [](std::size_t, std::size_t, const TensorView&) {}, .expect = [](std::size_t) {}};
}

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
    std::span<const std::int64_t> lengths, const t5::RowsSource* rows) const {
  check(!lengths.empty(), "no prompts to plan for");
  std::int64_t tokens = 0;
  for (const std::int64_t n : lengths) tokens += n;
  const Bytes results{static_cast<std::uint64_t>(tokens * model_.config.d_model) * 4};
  Refusal refusal;
  for (const MemoryPolicy& policy :
       model_.candidates(std::ssize(lengths) > model_.options.prompts_per_pass)) {
    Recording r = {.set = std::make_unique<ProgramSet>(), .encoder = {}, .plan = {}};
    r.set->backend = model_.backend();
    r.set->executable = rows != nullptr;
    t5::EncoderJob one = job(policy, lengths);
    one.source = rows ? *rows : never_read();
    r.encoder = std::make_unique<t5::Encoder>(*r.set, std::move(one), groups_);
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
  std::variant<Recording, Refusal> made = record(lengths, nullptr);
  if (auto* refusal = std::get_if<Refusal>(&made)) return std::move(*refusal);
  return std::move(std::get<Recording>(made).plan);
}

std::vector<TextStates> TextEncoder::encode(std::span<const std::vector<std::int32_t>> prompts,
                                            TextEncoderTimes* times) const {
  if (prompts.empty()) return {};
  TextEncoderTimes unseen;
  TextEncoderTimes& spent = times ? *times : unseen;
  spent = {};
  Stopwatch watch;
  std::vector<std::int64_t> lengths;
  for (const auto& ids : prompts) {
    if (ids.empty()) {
      fail(ErrorCode::input,
           fmt::format("prompt {} has no tokens; an empty one is </s> alone", lengths.size()));
    }
    lengths.push_back(std::ssize(ids));
  }
  const bool gpu = model_.backend().device == Device::cuda;
  // Beside a GPU, reading rows and handing over states is all that processors do.
  ThreadPool many(gpu ? kHandsForRows : 1);
  // The rows of a pass come beside its first weights; the system begins to fetch them while the
  // pass before it runs.
  const auto at_once = static_cast<std::size_t>(model_.options.prompts_per_pass);
  const t5::RowsSource rows = {
      .read =
          [&](std::size_t pass, std::size_t prompt, const TensorView& to) {
            t5::read_rows(table_, prompts[pass * at_once + prompt], to, &many);
          },
      .expect =
          [&](std::size_t pass) {
            const auto some = prompts.subspan(pass * at_once);
            for (const auto& ids : some.first(std::min(at_once, some.size()))) {
              t5::expect_rows(table_, ids);
            }
          }};
  const std::variant<Recording, Refusal> made = record(lengths, &rows);
  if (const auto* refusal = std::get_if<Refusal>(&made)) {
    fail_refused(
        fmt::format("encoding {} prompts with {}", prompts.size(), model_.checkpoint.path()),
        *refusal, model_.options.device, model_.options.budget);
  }
  const auto& [set, encoder, plan] = std::get<Recording>(made);
  spent.planning += watch.lap();
  if (gpu) open_gpu();
  Runner runner(*set, plan.memory, {.disk_readers = model_.options.disk_readers});
  ThreadPool& threads = gpu ? many : runner.compute_threads();
  if (!gpu) ops::warm_up_blas(threads);
  spent.opening += watch.lap();
  runner.run("load");
  spent.loading += watch.lap();
  std::vector<TextStates> all(prompts.size());
  std::size_t first = 0;
  for (const t5::PassIo& pass : encoder->passes()) {
    const auto prompts_here = static_cast<std::int64_t>(pass.prompts.size());
    runner.run(pass.program);
    spent.passes += watch.lap();
    const auto& lanes = runner.lane_times();
    const LaneTime& disk = lanes[static_cast<std::size_t>(Lane::disk)];
    spent.disk_busy += disk.busy;
    spent.disk_waiting += disk.waiting;
    spent.rows += lanes[static_cast<std::size_t>(Lane::host)].busy;
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
    spent.results += watch.lap();
  }
  return all;
}

}  // namespace ballast::infer
