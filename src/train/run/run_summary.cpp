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

RunInfo common_info(const fit::Request& request, const fit::PlannedRun& planned,
                    std::int64_t total_steps, std::vector<std::string> notes) {
  RunInfo info;
  info.started = iso_time(
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  info.total_steps = total_steps;
  info.environment = {{"machine", request.profile.description}};
  const Backend& backend = request.backend;
  if (backend.device == Device::cpu) {
    info.environment.emplace_back("compute threads", std::to_string(backend.threads));
  } else {
    info.environment.emplace_back(
        "device", fmt::format("cuda, compute capability {}.{}{}", backend.sm / 10, backend.sm % 10,
                              backend.deterministic ? "" : ", not deterministic"));
  }
  info.planned = planned_memory(request, planned);
  const Budget& b = request.budget;
  info.allowed = {.device = b.gpu, .host = b.host, .disk = b.disk, .ram = b.host};
  info.plan = plan_rows(planned.plan, planned.lines);
  info.notes = std::move(notes);
  return info;
}

std::string dataset_text(const data::Dataset& d) {
  return fmt::format("{} clips in {} bucket{}", d.samples().size(), d.buckets().size(),
                     d.buckets().size() == 1 ? "" : "s");
}

std::string config_text(const TrainConfig& c) {
  if (c.source.empty()) return "";
  return hide_secrets(read_text_file(c.source, TomlFile::kMaxBytes, "a configuration"));
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
