#include "train/run/run_summary.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "core/random.h"
#include "core/to_size.h"
#include "io/toml_table.h"
#include "memory/text_file.h"
#include "report/secrets.h"

namespace ballast::train {
namespace {

constexpr std::size_t kSampledTensors = 64, kSampledBytes = 64;

std::string dataset_text(const data::Dataset& d) {
  return fmt::format("{} clips in {} bucket{}", d.samples().size(), d.buckets().size(),
                     d.buckets().size() == 1 ? "" : "s");
}

}  // namespace

// On the CPU backend both arenas are part of the process; on a GPU the context is part of what is
// used there.
MemoryNumbers planned_memory(const fit::Request& request, const fit::PlannedRun& planned) {
  MemoryNumbers m;
  m.device = planned.plan.peak_of(Tier::device);
  m.host = planned.plan.peak_of(Tier::host);
  m.disk = planned.needed(Tier::disk);
  m.ram = planned.needed(Tier::host);
  if (request.backend.device == Device::cpu) {
    m.ram += planned.needed(Tier::device);
  } else {
    m.device = planned.needed(Tier::device);
  }
  return m;
}

RunInfo run_info(const RunFacts& f) {
  const TrainConfig& c = f.config;
  RunInfo info;
  info.title = f.title;
  info.command = f.command;
  info.started = iso_time(
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  info.total_steps = f.total_steps;
  info.summary = {{"model", f.model},
                  {"dataset", dataset_text(f.dataset)},
                  {"steps", fmt::format("{}, {} per epoch", f.total_steps, f.steps_per_epoch)},
                  {"samples per step", f.shapes},
                  {"optimizer", std::string(name_of(c.optimizer.kind))},
                  {"learning rate",
                   fmt::format("{:g}, {}", f.schedule.learning_rate, name_of(f.schedule.kind))},
                  {"seed", std::to_string(c.seed)},
                  {"policy", f.policy}};
  info.environment = {{"machine", f.profile.description}};
  const Backend& backend = f.backend;
  if (backend.device == Device::cpu) {
    info.environment.emplace_back("compute threads", std::to_string(backend.threads));
  } else {
    info.environment.emplace_back(
        "device", fmt::format("cuda, compute capability {}.{}{}", backend.sm / 10, backend.sm % 10,
                              backend.deterministic ? "" : ", not deterministic"));
  }
  info.planned = f.planned;
  const Budget& b = f.budget;
  info.allowed = {.device = b.gpu, .host = b.host, .disk = b.disk, .ram = b.host};
  info.plan = plan_rows(f.plan, f.lines);
  if (!c.source.empty())
    info.config = hide_secrets(read_text_file(c.source, TomlFile::kMaxBytes, "a configuration"));
  info.notes = f.notes;
  return info;
}

RunInfo run_info(const PreparedRun& run, const fit::PlannedRun& planned,
                 const std::string& command) {
  const fit::Request& r = run.request;
  return run_info({.config = run.config,
                   .title = run.title,
                   .command = command,
                   .model = run.checkpoints[0].path(),
                   .shapes = run.shapes,
                   .policy = planned.policy.name,
                   .dataset = *run.dataset,
                   .total_steps = run.total_steps,
                   .steps_per_epoch = run.steps_per_epoch,
                   .schedule = run.schedule,
                   .profile = r.profile,
                   .backend = r.backend,
                   .budget = r.budget,
                   .plan = planned.plan,
                   .lines = planned.lines,
                   .planned = planned_memory(r, planned),
                   .notes = run.notes});
}

std::string model_hash(std::span<const WeightFiles> checkpoints) {
  std::uint64_t h = 0;
  const auto add = [&](const std::string& text) { h = hash_of(fmt::format("{}{}", h, text)); };
  for (const WeightFiles& file : checkpoints) {
    const auto tensors = file.tensors();
    // The two experts of a model, or a model and its fine-tune, differ in their numbers only: a few
    // of them, from all over the file.
    const std::size_t stride = std::max<std::size_t>(1, tensors.size() / kSampledTensors);
    std::array<std::byte, kSampledBytes> sample;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const WeightTensor& t = tensors[i];
      add(fmt::format("{}{}{}", t.entry->name, t.entry->shape, file.dtype(t)));
      if (i % stride != 0) continue;
      const auto part =
          std::span(sample).first(std::min<std::uint64_t>(t.entry->bytes, sample.size()));
      file.file(t).file().read(t.entry->offset + (t.entry->bytes - part.size()) / 2, part);
      add(std::string(reinterpret_cast<const char*>(part.data()), part.size()));
    }
  }
  return fmt::format("{:016x}", h);
}

void add_lane_times(StepTimes& times, const std::array<LaneTime, kLaneCount>& lanes) {
  const auto of = [&](Lane l) { return lanes[to_size(l)]; };
  times.compute += of(Lane::compute).busy;
  times.upload += of(Lane::upload).busy + of(Lane::download).busy;
  times.disk += of(Lane::disk).busy;
  times.waiting += of(Lane::compute).waiting;
}

}  // namespace ballast::train
