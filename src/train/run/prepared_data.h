#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "train/run/prepared_run.h"

namespace ballast::train {

// Opens the datasets of a run whose model is known, and lists the kinds of steps that they come to:
// in run.request, run.kinds and run.kind_steps. Fails where there is nothing to train on, and where
// captions that a run needs are missing and will not come.
void open_datasets(PreparedRun& run, Purpose purpose, const ComingData* coming);

ProcessLine index_line(const data::Dataset& dataset);

// Samples per micro-batch of the run's dataset, for DatasetRequest::micro_batch.
std::function<std::int64_t(std::int64_t, std::int64_t, std::int64_t)> micro_batches_of(
    const TrainConfig& config);

// Other numbers in the dataset's file or beside it.
struct DataChange {
  std::optional<std::vector<std::int64_t>> frame_buckets = {};
  std::optional<double> resolution = {};
  std::optional<std::int64_t> micro_batch = {}, accumulation = {};
};
// What there would be then, by opening the dataset anew: kinds of steps, and the index of samples.
struct ChangedData {
  std::vector<wan::Batch> batches;
  ProcessLine index;
};
ChangedData data_with(const PreparedRun& run, const DataChange& change);

}  // namespace ballast::train
