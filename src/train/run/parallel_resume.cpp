#include "train/run/parallel_resume.h"

#include <algorithm>

#include "core/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/run/run_folder.h"

namespace ballast::train {
namespace {

constexpr const char* kColumns = "columns";
constexpr const char* kGlobalBatch = "global_batch";

}  // namespace

void put_parallel(const TrainConfig& config, TrainerState& state) {
  const std::int64_t columns = config.parallel.column_count();
  if (columns == 1) return;
  state.counts[kColumns] = columns;
  state.counts[kGlobalBatch] = global_batch(config);
}

void take_parallel(TrainConfig& config, std::vector<std::string>& notes) {
  ParallelConfig& p = config.parallel;
  if (!config.resume) return;
  const CheckpointSearch search =
      find_checkpoint(find_run(config.output_dir, *config.resume), {}, Verify::sizes);
  if (!search.found) return;
  const TrainerState& state = search.found->state;
  const std::int64_t samples =
      state.count(kGlobalBatch, config.micro_batch.plain * config.gradient_accumulation);
  const std::int64_t columns = state.count(kColumns, 1);
  if (columns < 1 || columns > kMaxRanks || samples < 1) {
    fail(ErrorCode::input, "{}: {} columns for {} samples of a step", search.found->folder, columns,
         samples);
  }
  if (columns == 1 && p.column_count() == 1) return;
  if (!p.global_batch) p.global_batch = samples;
  if (p.columns == 0) p.columns = std::max(columns, p.ranks);
  if (p.columns != columns) {
    notes.push_back(
        fmt::format("sums have {} columns from step {} on, {} before: rounding differs from a run "
                    "that keeps them",
                    p.columns, state.step + 1, columns));
  }
  if (*p.global_batch != samples) {
    notes.push_back(fmt::format("a step has {} samples from step {} on, {} before", *p.global_batch,
                                state.step + 1, samples));
  }
}

}  // namespace ballast::train
