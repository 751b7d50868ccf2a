#include "train/run/trained_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/convert.h"
#include "core/error.h"
#include "core/random.h"
#include "core/to_size.h"
#include "io/atomic_folder.h"
#include "io/safetensors_writer.h"
#include "models/wan/lora_read.h"
#include "models/wan/lora_write.h"
#include "train/checkpoint/runner_tensors.h"
#include "train/run/run_summary.h"

namespace ballast::train {
namespace {

wan::LoraNumbers numbers(Runner& runner, Buffer b) {
  const BufferSpec& s = runner.spec(b);
  wan::LoraNumbers n = {.shape = s.shape, .dtype = s.dtype};
  if (runner.host_can_touch(b)) {
    n.memory = runner.view(b).data;
  } else {
    n.fetch = [&runner, b](std::uint64_t first, std::span<std::byte> to) {
      runner.read_part(b, first, to);
    };
  }
  return n;
}

// f32 numbers into a buffer of any dtype.
void put(Runner& runner, Buffer to, std::span<const float> values) {
  const DType dtype = runner.view(to).dtype;
  if (dtype == DType::f32) return runner.write(to, std::as_bytes(values));
  std::vector<std::byte> stored(values.size() * size_of(dtype));
  convert(values.data(), DType::f32, stored.data(), dtype, std::ssize(values));
  runner.write(to, stored);
}

// What --network_args changed, as musubi-tuner writes it: an object of texts.
std::string network_args(const AdapterConfig& a) {
  std::vector<std::string> parts;
  const auto add = [&](std::string_view name, double value, double usual) {
    if (value != usual) parts.push_back(fmt::format(R"("{}": "{}")", name, value));
  };
  add("loraplus_lr_ratio", a.up_rate_ratio, 1);
  add("rank_dropout", a.rank_dropout, 0);
  add("module_dropout", a.module_dropout, 0);
  return fmt::format("{{{}}}", fmt::join(parts, ", "));
}

// What musubi-tuner says of a training; without the times of day, so that the same run gives the
// same file.
void add_musubi_keys(const PreparedRun& run, std::int64_t step, Metadata& m) {
  const TrainConfig& c = run.config;
  const ScheduleOptions& s = run.schedule;
  m["ss_output_name"] = c.output_name;
  m["ss_learning_rate"] = fmt::format("{}", s.learning_rate);
  m["ss_lr_scheduler"] = name_of(s.kind);
  m["ss_lr_warmup_steps"] = std::to_string(s.warmup_steps);
  m["ss_optimizer"] = name_of(c.optimizer.kind);
  m["ss_max_grad_norm"] = fmt::format("{}", c.max_grad_norm);
  m["ss_gradient_accumulation_steps"] = std::to_string(step_accumulation(c));
  m["ss_num_train_items"] = std::to_string(run.dataset->samples().size());
  m["ss_num_batches_per_epoch"] = std::to_string(run.steps_per_epoch);
  m["ss_max_train_steps"] = std::to_string(run.total_steps);
  m["ss_steps"] = std::to_string(step);
  m["ss_epoch"] = std::to_string((step + run.steps_per_epoch - 1) / run.steps_per_epoch);
  m["ss_seed"] = std::to_string(c.seed);
  m["ss_network_dropout"] =
      fmt::format("{}", std::max(c.adapter.dropout, c.adapter.hidden_dropout));
  m["ss_network_args"] = network_args(c.adapter);
  if (c.adapter.max_norm > 0) m["ss_scale_weight_norms"] = fmt::format("{}", c.adapter.max_norm);
  m["ss_sigmoid_scale"] = fmt::format("{}", c.timesteps.sigmoid_scale);
  m["ss_discrete_flow_shift"] = fmt::format("{}", c.timesteps.shift);
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
  add("ballast.config_hash", run.config_hash);
  add("ballast.base_model_hash",
      model_hash(std::span(run.checkpoints).subspan(to_size(expert), 1)));
  if (run.config.lora_format == LoraFormat::kohya) add_musubi_keys(run, step, m);
  if (const auto& d = run.config.dmd2) {
    add("ballast.distilled", "dmd2");
    add("ballast.sampler", "euler");
    add("ballast.timesteps", fmt::format("{}", fmt::join(d->steps, ",")));
    add("ballast.shift", fmt::format("{}", d->shift));
    add("ballast.guidance", "1");
  }
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
    const auto t = std::ranges::find(io.trained, factor, &UpdatedTensor::value);
    return numbers(runner, value_to_save(*t));
  };
  std::vector<wan::LoraModule> modules;
  for (const AdapterIo& a : io.adapters) {
    if (a.expert != expert) continue;
    wan::LoraModule& m = modules.emplace_back();
    m.name = a.name;
    m.down = value(a.a);
    m.up = value(a.b);
    m.rank = m.down.shape[0];
    m.alpha = dit.job().lora.alpha;
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

Metadata model_metadata(const PreparedRun& run, std::int64_t step) {
  Metadata m = metadata_of(run, step, 0);
  m["format"] = "pt";
  return m;
}

// Under their official names.
std::vector<SavedTensor> model_tensors(const PreparedRun& run, const wan::Dit& dit,
                                       Runner& runner) {
  std::vector<SavedTensor> all;
  for (const UpdatedTensor& t : dit.io().trained) {
    const Buffer value = value_to_save(t);
    all.push_back({.name = t.name,
                   .dtype = run.config.save_dtype,
                   .shape = runner.spec(value).shape,
                   .source = converted_source(runner, value, run.config.save_dtype)});
  }
  return all;
}

}  // namespace

void init_adapters(const PreparedRun& run, const wan::Dit& dit, Runner& runner) {
  std::vector<float> values;
  for (const AdapterIo& a : dit.io().adapters) {
    const TensorView down = runner.view(a.a);
    const double bound = 1 / std::sqrt(static_cast<double>(down.shape[1]));
    values.resize(to_size(down.elements()));
    // Both experts start from the same numbers, as two separate runs with one seed would.
    fill_uniform(random_source(run.config.seed, "lora_init", 0, a.name), 0, values.data(),
                 down.elements());
    for (float& x : values) x = static_cast<float>((2.0 * x - 1.0) * bound);
    put(runner, a.a, values);
    values.assign(to_size(runner.view(a.b).elements()), 0);
    put(runner, a.b, values);
  }
  if (run.config.adapter.init_from.empty() || dit.io().adapters.empty()) return;
  const wan::LoraReader file = wan::LoraReader::open(run.config.adapter.init_from, &run.model());
  std::vector<wan::LoraTarget> targets;
  for (const AdapterIo& a : dit.io().adapters) {
    const auto into = [&runner](Buffer b) {
      return [&runner, b](std::span<const float> factor) { put(runner, b, factor); };
    };
    targets.push_back({.name = a.name,
                       .down = runner.view(a.a).shape,
                       .up = runner.view(a.b).shape,
                       .put_down = into(a.a),
                       .put_up = into(a.b)});
  }
  const double scale = dit.job().lora.alpha / static_cast<double>(dit.job().lora.rank);
  init_factors(file, targets, scale);
}

void write_timestep_rows(const wan::Dit& dit, Runner& runner) {
  std::vector<std::int32_t> rows;
  for (const auto* runs : {&dit.io().runs, &dit.io().eval_passes, &dit.io().predict_passes}) {
    for (const wan::DitPassIo& io : *runs) {
      for (std::size_t i = 0; i < io.samples.size(); ++i) {
        const Buffer b = io.samples[i].timestep_row;
        rows.assign(to_size(runner.view(b).elements()), static_cast<std::int32_t>(i));
        runner.write(b, std::as_bytes(std::span(rows)));
      }
    }
  }
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
  SafetensorsWriter writer({.metadata = model_metadata(run, step)});
  for (const SavedTensor& t : model_tensors(run, dit, runner)) {
    writer.add(t.name, t.dtype, t.shape, t.source);
  }
  paths.push_back(target.folder + "/" + target.file_name);
  writer.write(paths.back());
  return paths;
}

std::vector<std::string> save_fine_tune(const PreparedRun& run, const wan::Dit& dit, Runner& runner,
                                        const SaveTarget& target, std::int64_t step) {
  const ModelLayout& layout = run.layout;
  if (layout.kind == ModelLayout::Kind::official) {
    std::vector<std::string> paths = save_model(run, dit, runner, target, step);
    add_official_files(layout, paths[0], run.config.output_name.empty());
    return paths;
  }
  const std::vector<SavedTensor> tensors = model_tensors(run, dit, runner);
  const Metadata metadata = model_metadata(run, step);
  if (run.config.output_name.empty()) {
    write_diffusers(layout, run.model(), tensors, metadata, target.folder);
    return {target.folder};
  }
  // Named by the run: a folder where others have a file.
  AtomicFolder folder(target.folder + "/" +
                      std::filesystem::path(target.file_name).stem().string());
  write_diffusers(layout, run.model(), tensors, metadata, folder.temporary_path());
  folder.commit();
  return {folder.path()};
}

}  // namespace ballast::train
