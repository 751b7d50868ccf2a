#include "infer/text_encoder.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/stopwatch.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "memory/gpu.h"
#include "models/t5/weights.h"
#include "ops/linear/sgemm.h"
#include "plan/runner.h"

namespace ballast::infer {
namespace {

constexpr int kRowThreads = kDiskReaders;  // rows are read one by one

}  // namespace

TextEncoder::TextEncoder(const std::string& path, TextEncoderOptions options)
    : model_(path, std::move(options)) {
  model_.config.decoder_layers = 0;
  groups_ = t5::weight_groups(model_.config, model_.checkpoint, model_.names);
  table_ = t5::embedding_table(model_.config, model_.checkpoint, model_.names);
}

t5::EncoderJob TextEncoder::job(std::span<const std::int64_t> lengths) const {
  t5::EncoderJob job;
  job.config = model_.config;
  job.format = model_.options.format;
  job.rows = table_.dtype;
  job.precision = model_.precision();
  const auto at_once = to_size(model_.options.prompts_per_pass);
  for (std::size_t first = 0; first < lengths.size(); first += at_once) {
    const auto part = lengths.subspan(first, std::min(at_once, lengths.size() - first));
    job.passes.emplace_back(part.begin(), part.end());
  }
  return job;
}

CommandPart TextEncoder::part(std::span<const std::int64_t> lengths) const {
  check(!lengths.empty(), "no prompts to plan for");
  t5::EncoderFitJob planned;
  planned.encoder = job(lengths);
  planned.weights = groups_;
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  std::vector<ProcessLine> lines = {
      {.name = "results",
       .bytes = Bytes{static_cast<std::uint64_t>(tokens * model_.config.d_model) * 4},
       .reason = "what the caller is given"}};
  if (model_.options.device == Device::cuda) {
    lines.push_back({.name = "threads for rows and states",
                     .bytes = kThreadStack * kRowThreads,
                     .reason = "stacks"});
  }
  fit::Request r = model_.request(std::move(planned), std::move(lines));
  PlanTitle title =
      title_of(r, model_.config.name, "encode",
               fmt::format("{} prompt{} of at most {} tokens", lengths.size(),
                           lengths.size() == 1 ? "" : "s", std::ranges::max(lengths)));
  return {std::move(r), std::move(title)};
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
      fail(ErrorCode::input, "prompt {} has no tokens; an empty one is </s> alone", lengths.size());
    }
    lengths.push_back(std::ssize(ids));
  }
  const bool gpu = model_.backend().device == Device::cuda;
  // Beside a GPU, reading rows and handing over states is all that processors do.
  ThreadPool many(gpu ? kRowThreads : 1);
  // The rows of a pass come beside its first weights; the system begins to fetch them while the
  // pass before it runs.
  const auto at_once = to_size(model_.options.prompts_per_pass);
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
  t5::EncoderJob recorded = job(lengths);
  recorded.policy = require_plan(part(lengths)).policy;
  recorded.source = rows;
  ProgramSet set;
  set.backend = model_.backend();
  const t5::Encoder encoder(set, std::move(recorded), groups_);
  const MemoryPlan plan = plan_memory(set);
  spent.planning += watch.lap();
  if (gpu) open_gpu();
  Runner runner(set, plan, {.disk_readers = model_.options.disk_readers});
  ThreadPool& threads = gpu ? many : runner.compute_threads();
  if (!gpu) ops::warm_up_blas(threads);
  spent.opening += watch.lap();
  runner.run("load");
  spent.loading += watch.lap();
  std::vector<TextStates> all(prompts.size());
  std::size_t first = 0;
  for (const t5::PassIo& pass : encoder.passes()) {
    const auto prompts_here = static_cast<std::int64_t>(pass.prompts.size());
    runner.run(pass.program);
    spent.passes += watch.lap();
    const auto& lanes = runner.lane_times();
    const LaneTime& disk = lanes[to_size(Lane::disk)];
    spent.disk_busy += disk.busy;
    spent.disk_waiting += disk.waiting;
    spent.rows += lanes[to_size(Lane::host)].busy;
    spent.compute_busy += lanes[to_size(Lane::compute)].busy;
    // New memory is slow to come: several threads touch it.
    threads.parallel(prompts_here, [&](std::int64_t i, int) {
      const auto p = to_size(i);
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
