#include "train/run/run_files.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "memory/machine.h"
#include "train/run/run_folder.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

// Names, shapes and checksums beside the tensors of a file, and blocks that are not full.
constexpr Bytes kFileOverhead{64 << 10};
// A step in run_log.jsonl and TensorBoard's file: 600 to 900 bytes.
constexpr Bytes kLogPerStep{1 << 10};
// The report, the flight record, copies of configurations.
constexpr Bytes kLogBase{512 << 10};

struct Resumed {
  std::int64_t step = 0, checkpoints = 0;
};

// What a run that resumes finds; nothing: it begins, or there is no checkpoint yet.
Resumed found_in(const SavedRun& run) {
  const TrainConfig& c = run.config;
  if (!c.resume) return {};
  std::string folder = c.output_dir;
  CheckpointNames names = transformers_names();
  if (!run.in_output_dir) {
    names = {};
    const std::vector<std::string> runs = runs_in(c.output_dir);
    if (c.resume->empty() && runs.empty()) return {};
    folder = fs::path(c.output_dir) / (c.resume->empty() ? runs.back() : *c.resume);
  }
  Resumed found;
  std::error_code gone;
  for (const fs::directory_entry& e :
       fs::directory_iterator(checkpoints_folder(folder, names), gone)) {
    const auto step = step_of_checkpoint(e.path().filename().string(), names);
    if (!step) continue;
    ++found.checkpoints;
    found.step = std::max(found.step, *step);
  }
  return found;
}

std::string times_text(std::int64_t count, Bytes each) {
  return count == 1 ? "" : fmt::format("{} of {}", count, each);
}

}  // namespace

Bytes checkpoint_size(std::int64_t elements, DType values, const OptimizerOptions& optimizer) {
  // As one matrix: Adafactor keeps a row and a column of each.
  const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(elements))));
  const Shape shape =
      optimizer.kind == OptimizerKind::adafactor ? Shape{side, side} : Shape{elements};
  Bytes bytes{static_cast<std::uint64_t>(elements) * size_of(values)};
  for (const StateSpec& s : state_specs(optimizer, shape, values)) {
    bytes += Bytes{static_cast<std::uint64_t>(s.shape.elements()) * size_of(s.dtype)};
  }
  return bytes + kFileOverhead;
}

std::int64_t times_due(const Cadence& cadence, std::int64_t done, std::int64_t total,
                       std::int64_t steps_per_epoch, std::int64_t global_batch) {
  std::int64_t count = 0;
  const auto every = [&](std::int64_t steps) {
    if (steps > 0) count += total / steps - done / steps;
  };
  if (cadence.steps) every(*cadence.steps);
  if (cadence.examples) every(std::max<std::int64_t>(1, *cadence.examples / global_batch));
  // Epochs beyond the last step would overflow.
  if (cadence.epochs && steps_per_epoch > 0 && *cadence.epochs <= total / steps_per_epoch) {
    every(*cadence.epochs * steps_per_epoch);
  }
  // How long a step takes is a guess: one is counted.
  if (cadence.minutes && total > done) ++count;
  return std::min(count, std::max<std::int64_t>(0, total - done));
}

PlanFiles files_of(const SavedRun& run, bool here) {
  const TrainConfig& c = run.config;
  PlanFiles files = {.folder = c.output_dir};
  if (here) files.free = disk_free(c.output_dir);
  const Resumed before = found_in(run);
  const bool unknown = run.total_steps == 0;  // there will be at least one step
  const std::int64_t steps = unknown ? 1 : std::max<std::int64_t>(0, run.total_steps - before.step);
  if (steps == 0) return files;
  const auto due = [&](const Cadence& cadence) {
    return times_due(cadence, before.step, run.total_steps, run.steps_per_epoch,
                     std::max<std::int64_t>(1, global_batch(c)));
  };
  const auto line = [&](const char* name, std::int64_t count, Bytes each,
                        const std::string& reason) {
    if (count <= 0 || each.count == 0) return;
    const std::string times = times_text(count, each);
    files.lines.push_back({name, each * static_cast<std::uint64_t>(count),
                           times.empty() ? reason : times + ": " + reason, Tier::disk});
  };
  const Bytes checkpoint =
      checkpoint_size(run.parameters * run.trained_sets, run.trained, c.optimizer);
  // Where checkpoints are transformers', values are in files of their own, of a few GB at most.
  const Bytes values{static_cast<std::uint64_t>(run.parameters) * size_of(run.trained)};
  files.largest = run.in_output_dir ? checkpoint - values : checkpoint;
  const std::int64_t made = unknown ? c.keep_checkpoints + 2                   // as many as can be
                                    : std::min(due(c.checkpoint) + 1, steps);  // the last step's
  // While one is written those that are kept are all there.
  const auto new_checkpoints = [&](std::int64_t kept) {
    const std::int64_t most = kept + 1 + (run.keeps_best ? 1 : 0);
    const std::int64_t at_once = std::min(before.checkpoints + made, most);
    return std::max<std::int64_t>(1, at_once - std::min(before.checkpoints, most));
  };
  const std::int64_t kept = std::max(1, c.keep_checkpoints);
  line("checkpoints", new_checkpoints(kept), checkpoint,
       fmt::format("{} kept and the one that is written", kept));
  files.freed_by_one_checkpoint =
      checkpoint * static_cast<std::uint64_t>(new_checkpoints(kept) - new_checkpoints(1));
  const Bytes model =
      Bytes{static_cast<std::uint64_t>(run.parameters) * size_of(run.saved)} + kFileOverhead;
  const std::int64_t models = run.in_output_dir ? 1 : std::min(due(c.save) + 1, steps);
  line("saved models", models, model, "as configured, and at the end");
  if (c.preview.wanted()) {
    const std::int64_t times = due(c.preview.every) + (c.preview.at_first ? 1 : 0);
    // Half a byte per pixel: between a video and an animated image.
    line("previews", times * std::ssize(c.preview.clips),
         Bytes{static_cast<std::uint64_t>(run.preview_pixels / 2)}, "estimated");
  }
  line("logs and report", 1, kLogPerStep * static_cast<std::uint64_t>(steps) + kLogBase,
       fmt::format("estimated, {} steps", steps));
  return files;
}

}  // namespace ballast::train
