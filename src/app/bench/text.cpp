#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/bench/benches.h"
#include "app/bench/random_checkpoint.h"
#include "app/machine_flags.h"
#include "app/output.h"
#include "app/planning.h"
#include "core/error.h"
#include "core/stopwatch.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "infer/text_encoder.h"
#include "memory/disk_file.h"
#include "memory/disk_speed.h"
#include "memory/gpu.h"
#include "memory/process_memory.h"
#include "models/t5/config.h"
#include "models/t5/weights.h"
#include "nn/machine_options.h"
#include "plan/runner.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

std::vector<RandomTensor> tensors(const t5::Config& c) {
  std::vector<RandomTensor> all;
  bool table = false;
  for (const WeightGroup& g : t5::planned_groups(c, DType::bf16)) {
    for (const StoredTensor& t : g.tensors) {
      all.push_back({t.name, t.data.shape});
      table = table || t.name == "shared.weight";
    }
  }
  if (!table) all.push_back({"shared.weight", {c.vocabulary, c.d_model}});
  return all;
}

using Prompts = std::vector<std::vector<std::int32_t>>;

// Seconds for the rows of the embedding that a pass needs, none of them in the page cache.
double rows_alone(const RandomCheckpoint& weights, t5::Config config, const Prompts& prompts) {
  config.decoder_layers = 0;
  const WeightFiles file = WeightFiles::open(weights.path());
  const StoredBytes table = t5::embedding_table(config, file, t5::TensorMap(file));
  std::vector<std::byte> rows;
  ThreadPool pool(kDiskReaders);
  weights.drop_cache();
  const Stopwatch watch;
  for (const auto& ids : prompts) {
    const Shape shape = {std::ssize(ids), config.d_model};
    rows.resize(to_size(shape.elements()) * size_of(table.dtype));
    t5::read_rows(table, ids, TensorView(rows.data(), table.dtype, shape), &pool);
  }
  return watch.seconds();
}

// ballast bench text: prompts through a text encoder of random weights, streamed from its file.
class BenchText : public Command {
 public:
  void declare(CLI::App& app) override;
  void run() override;

 private:
  void measure(const RandomCheckpoint& weights, const t5::Config& config, std::int64_t prompts,
               int readers) const;

  std::string model_ = "umt5-xxl-encoder", folder_ = "/tmp";
  std::vector<std::int64_t> prompts_ = {32};
  std::vector<int> readers_ = {kDiskReaders};
  std::int64_t tokens_ = 512, passes_ = 3;
  MachineOptions machine_;
};

void BenchText::declare(CLI::App& app) {
  app.add_option("--model", model_, "the name of a preset");
  app.add_option("--prompts", prompts_, "that share a visit of each block; several: one by one")
      ->check(CLI::Range(1, 4096));
  app.add_option("--readers", readers_, "reads in flight; several: one by one")
      ->check(CLI::Range(1, 64));
  app.add_option("--tokens", tokens_, "of a prompt")->check(CLI::Range(1, 4096));
  app.add_option("--passes", passes_, "timed")->check(CLI::Range(1, 100));
  declare_machine(app, machine_, {"gpu", "ram", "json"});
  app.add_option("--folder", folder_, "where the file of random weights goes");
}

void BenchText::run() {
  const auto config = t5::find_preset(model_);
  if (!config) {
    std::vector<std::string_view> known;
    for (const t5::Config& c : t5::presets()) known.push_back(c.name);
    fail_unknown("--model", model_, known);
  }
  const RandomCheckpoint weights(tensors(*config), DType::bf16, folder_);
  for (const int readers : readers_) {
    for (const std::int64_t prompts : prompts_) {
      measure(weights, *config, prompts, readers);
    }
  }
}

void BenchText::measure(const RandomCheckpoint& weights, const t5::Config& config,
                        std::int64_t prompts, int readers) const {
  const train::RunTarget target = train::this_machine(machine_);
  infer::TextEncoderOptions options = {.device = target.backend.device,
                                       .prompts_per_pass = prompts,
                                       .disk_readers = readers,
                                       .config = config,
                                       .profile = target.profile};
  // Without a budget nothing limits it.
  options.budget.gpu = machine_.gpu.value_or(Bytes{});
  options.budget.host = machine_.ram.value_or(Bytes{});
  const infer::TextEncoder encoder(weights.path(), options);
  Prompts ids(to_size(prompts));
  for (std::size_t p = 0; p < ids.size(); ++p) {
    for (std::int64_t t = 0; t < tokens_; ++t) {
      ids[p].push_back(static_cast<std::int32_t>(
          (static_cast<std::int64_t>(p) * 7919 + t * 104729) % config.vocabulary));
    }
  }
  // The disk alone: it differs from hour to hour, so a pass is compared with what it gives before
  // and after it.
  DiskSpeed disk = measure_streaming(weights.path(), readers, 1.5);
  const double rows = rows_alone(weights, config, ids);
  const std::vector<std::int64_t> lengths(ids.size(), tokens_);
  const auto changes = [&](std::span<const fit::Request>) {
    std::vector<fit::Change> all;
    if (const std::int64_t fewer = prompts / 2; fewer > 0) {
      all.push_back({fmt::format("--prompts {}", fewer), [this, fewer](fit::Request& r) {
                       r.job.as<t5::EncoderFitJob>().encoder.passes = {
                           std::vector(to_size(fewer), tokens_)};
                     }});
    }
    return all;
  };
  fit::PlannedRun planned = infer::require_plan(encoder.part(lengths), changes);
  planned.set = {};
  struct Call {
    double seconds;
    infer::TextEncoderTimes parts;
  };
  std::vector<Call> calls;
  for (std::int64_t i = 0; i < passes_; ++i) {
    Call call = {};
    weights.drop_cache();
    const Stopwatch begin;
    const auto states = encoder.encode(ids, &call.parts);
    call.seconds = begin.seconds();  // before the caller gives them back
    calls.push_back(call);
  }
  disk.read = (disk.read + measure_streaming(weights.path(), readers, 1.5).read) / 2;
  std::ranges::sort(calls, {}, &Call::seconds);
  const auto& [seconds, parts] = calls[calls.size() / 2];
  std::uint64_t streamed = 0;
  for (const WeightGroup& g : t5::planned_groups(config, DType::bf16)) {
    for (const StoredTensor& t : g.tensors) {
      if (t.name != "shared.weight") streamed += t.data.extent.bytes;
    }
  }
  Json j = {{"model", model_},
            {"prompts", prompts},
            {"readers", readers},
            {"tokens", tokens_},
            {"policy", planned.policy.name},
            {"seconds", seconds},
            {"seconds_min", calls.front().seconds},
            {"read_bytes", streamed},
            {"read_bytes_per_second", static_cast<double>(streamed) / seconds},
            {"disk_bytes_per_second", disk.read},
            {"disk_direct", disk.direct},
            {"disk_rows_seconds", rows},
            {"planning", parts.planning},
            {"opening", parts.opening},
            {"loading", parts.loading},
            {"rows", parts.rows},
            {"passes", parts.passes},
            {"results", parts.results},
            {"disk_busy", parts.disk_busy},
            {"disk_waiting", parts.disk_waiting},
            {"compute_busy", parts.compute_busy},
            {"device_planned", planned.needed(Tier::device).count},
            {"host_planned", planned.needed(Tier::host).count}};
  if (const auto memory = process_memory()) j["host_used"] = memory->total().count;
  if (machine_.json) {
    print(j.dump(2) + "\n");
    return;
  }
  print(fmt::format(
      "{}: {} prompts of {} tokens, {}: {:.2f} s (at best {:.2f} s), {} read at {:.2f} GB/s\n",
      model_, prompts, tokens_, planned.policy.name, seconds, calls.front().seconds,
      Bytes{streamed}, static_cast<double>(streamed) / seconds * 1e-9));
  const double alone = static_cast<double>(streamed) / disk.read;
  print(fmt::format(
      "the disk alone, {} reads at once, {}: {:.2f} GB/s, {:.2f} s, and {:.2f} s for the "
      "rows of the embedding: a pass takes {:.2f} x of that, {:.2f} x of the weights\n",
      readers, disk.direct ? "direct" : "through the page cache", disk.read * 1e-9, alone, rows,
      seconds / (alone + rows), seconds / alone));
  print(fmt::format(
      "planning {:.3f}, opening {:.3f}, loading {:.3f}, from disk to states {:.3f} "
      "(disk busy {:.3f}, waiting {:.3f}; rows {:.3f}; compute {:.3f}), results {:.3f} s\n",
      parts.planning, parts.opening, parts.loading, parts.passes, parts.disk_busy,
      parts.disk_waiting, parts.rows, parts.compute_busy, parts.results));
  print(fmt::format("device {} planned, host {} planned\n", planned.needed(Tier::device),
                    planned.needed(Tier::host)));
}

}  // namespace

std::unique_ptr<Command> bench_text() { return std::make_unique<BenchText>(); }

}  // namespace ballast
