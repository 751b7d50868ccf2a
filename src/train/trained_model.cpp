#include "train/trained_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/convert.h"
#include "core/error.h"
#include "core/random.h"
#include "io/safetensors_writer.h"
#include "models/wan/lora_read.h"
#include "models/wan/lora_write.h"

namespace ballast::train {
namespace {

constexpr std::int64_t kPiece = 64 << 10;  // elements converted at once

// A view as a source of another dtype, piece by piece.
ByteSource converted(ConstTensorView from, DType to) {
  return [from, to](const ByteSink& sink) {
    std::vector<std::byte> piece(static_cast<std::size_t>(kPiece) * size_of(to));
    const std::int64_t total = from.elements();
    for (std::int64_t first = 0; first < total; first += kPiece) {
      const std::int64_t count = std::min(kPiece, total - first);
      convert(from.data + static_cast<std::size_t>(first) * size_of(from.dtype), from.dtype,
              piece.data(), to, count);
      sink(std::span(piece).first(static_cast<std::size_t>(count) * size_of(to)));
    }
  };
}

// The average where there is one, else the value itself.
Buffer saved_value(const wan::TrainedTensor& t) {
  for (std::size_t s = 0; s < t.specs.size(); ++s) {
    if (t.specs[s].starts_as_parameter) return t.states[s];
  }
  return t.value;
}

Metadata metadata_of(const PreparedRun& run, std::int64_t step, int expert) {
  Metadata m;
  if (!run.config.write_metadata) return m;
  const auto add = [&](std::string key, std::string value) {
    m.insert_or_assign(std::move(key), std::move(value));
  };
  add("ballast.model", run.model().name);
  add("ballast.step", std::to_string(step));
  add("ballast.seed", std::to_string(run.config.seed));
  if (run.checkpoints.size() > 1) add("ballast.expert", expert == 0 ? "low_noise" : "high_noise");
  for (const auto& [key, value] : run.config.metadata) add(key, value);
  return m;
}

// adapter_model.safetensors -> adapter_model_high_noise.safetensors
std::string expert_file(const PreparedRun& run, const std::string& name, int expert) {
  if (run.checkpoints.size() < 2) return name;
  const std::filesystem::path p(name);
  return p.stem().string() + (expert == 0 ? "_low_noise" : "_high_noise") + p.extension().string();
}

std::string save_lora(const PreparedRun& run, const wan::Dit& dit, Runner& runner,
                      const SaveTarget& target, std::int64_t step, int expert) {
  const wan::DitIo& io = dit.io();
  const auto value = [&](Buffer factor) {
    const auto t = std::ranges::find(io.trained, factor, &wan::TrainedTensor::value);
    return runner.view(saved_value(*t));
  };
  std::vector<wan::LoraModule> modules;
  for (const wan::AdapterIo& a : io.adapters) {
    if (a.expert != expert) continue;
    const TensorView down = value(a.a), up = value(a.b);
    wan::LoraModule& m = modules.emplace_back();
    m.name = a.name;
    m.rank = down.shape[0];
    m.alpha = dit.job().lora.alpha;
    m.down = {.shape = down.shape, .dtype = down.dtype, .memory = down.data};
    m.up = {.shape = up.shape, .dtype = up.dtype, .memory = up.data};
  }
  const std::string path = target.folder + "/" + expert_file(run, target.file_name, expert);
  write_lora(path, modules,
             {.format = run.config.lora_format,
              .dtype = run.config.save_dtype,
              .metadata = metadata_of(run, step, expert),
              .model = &run.model()});
  if (run.config.lora_format == LoraFormat::comfy && run.config.output_name.empty()) {
    write_adapter_config(target.folder, modules, run.config.adapter.dropout);
  }
  return path;
}

}  // namespace

void init_adapters(const PreparedRun& run, const wan::Dit& dit, Runner& runner) {
  const auto put = [&](Buffer to, std::span<const float> values) {
    const TensorView v = runner.view(to);
    convert(values.data(), DType::f32, v.data, v.dtype, v.elements());
  };
  std::vector<float> values;
  for (const wan::AdapterIo& a : dit.io().adapters) {
    const TensorView down = runner.view(a.a);
    const double bound = 1 / std::sqrt(static_cast<double>(down.shape[1]));
    values.resize(static_cast<std::size_t>(down.elements()));
    // Both experts start from the same numbers, as two separate runs with one seed would.
    fill_uniform(random_source(run.config.seed, "lora_init", 0, a.name), 0, values.data(),
                 down.elements());
    for (float& x : values) x = static_cast<float>((2.0 * x - 1.0) * bound);
    put(a.a, values);
    const TensorView up = runner.view(a.b);
    std::memset(up.data, 0, up.bytes());
  }
  if (run.config.adapter.init_from.empty() || dit.io().adapters.empty()) return;
  const wan::LoraReader file = wan::LoraReader::open(run.config.adapter.init_from, &run.model());
  for (const wan::AdapterIo& a : dit.io().adapters) {
    if (runner.view(a.a).dtype != DType::f32) {
      fail(ErrorCode::input, "init_from_existing needs [adapter] dtype = 'float32'");
    }
  }
  std::vector<wan::LoraTarget> targets;
  for (const wan::AdapterIo& a : dit.io().adapters) {
    targets.push_back({.name = a.name, .down = runner.view(a.a), .up = runner.view(a.b)});
  }
  const double scale = dit.job().lora.alpha / static_cast<double>(dit.job().lora.rank);
  init_factors(file, targets, scale);
}

std::vector<SavedTensor> saved_tensors(const wan::Dit& dit, Runner& runner) {
  std::vector<SavedTensor> all;
  for (const wan::TrainedTensor& t : dit.io().trained) {
    all.push_back(SavedTensor::of(t.name, runner.view(t.value)));
    for (std::size_t s = 0; s < t.states.size(); ++s) {
      all.push_back(SavedTensor::of(t.name + t.specs[s].suffix, runner.view(t.states[s])));
    }
  }
  return all;
}

std::vector<LoadedTensor> loaded_tensors(const wan::Dit& dit, Runner& runner, bool values_only) {
  std::vector<LoadedTensor> all;
  for (const wan::TrainedTensor& t : dit.io().trained) {
    all.push_back(LoadedTensor::of(t.name, runner.view(t.value)));
    for (std::size_t s = 0; s < t.states.size() && !values_only; ++s) {
      all.push_back(LoadedTensor::of(t.name + t.specs[s].suffix, runner.view(t.states[s])));
    }
  }
  return all;
}

std::vector<std::string> save_model(const PreparedRun& run, const wan::Dit& dit, Runner& runner,
                                    const SaveTarget& target, std::int64_t step) {
  std::vector<std::string> paths;
  if (dit.job().mode == wan::Mode::lora) {
    for (int e = 0; e < dit.experts(); ++e) {
      paths.push_back(save_lora(run, dit, runner, target, step, e));
    }
    return paths;
  }
  Metadata metadata = metadata_of(run, step, 0);
  metadata["format"] = "pt";
  SafetensorsWriter writer({.metadata = std::move(metadata)});
  for (const wan::TrainedTensor& t : dit.io().trained) {
    const TensorView v = runner.view(saved_value(t));
    writer.add(t.name, run.config.save_dtype, v.shape, converted(v, run.config.save_dtype));
  }
  paths.push_back(target.folder + "/" + target.file_name);
  writer.write(paths.back());
  return paths;
}

}  // namespace ballast::train
