#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ballast/ballast.h"
#include "c_api/arrays.h"
#include "c_api/guard.h"
#include "c_api/results.h"
#include "c_api/settings.h"
#include "core/parse_enum.h"

using namespace ballast::c_api;  // NOLINT(google-build-using-namespace): C functions stand outside

struct ballast_model {
  ballast::v1::Model model;
  // As set so far: the library takes some of them together.
  ballast::v1::Budget budget = {};
  ballast::v1::Device device = ballast::v1::Device::automatic;
  bool deterministic = true;
  std::optional<bool> checkpointing = {}, offloading = {};
};

namespace ballast::c_api {
namespace {

constexpr std::array<EnumName<v1::Method>, 3> kMethods = {
    {{"lora", v1::Method::lora},
     {"full", v1::Method::full},
     {"predict_only", v1::Method::predict_only}}};
constexpr std::array<EnumName<v1::Device>, 3> kDevices = {
    {{"auto", v1::Device::automatic}, {"cpu", v1::Device::cpu}, {"cuda", v1::Device::cuda}}};
constexpr std::array<EnumName<v1::LoraFormat>, 3> kFormats = {{{"comfy", v1::LoraFormat::comfy},
                                                               {"kohya", v1::LoraFormat::kohya},
                                                               {"peft", v1::LoraFormat::peft}}};
constexpr std::array<EnumName<v1::SaveType>, 3> kTypes = {
    {{"f32", v1::SaveType::f32}, {"bf16", v1::SaveType::bf16}, {"f16", v1::SaveType::f16}}};

template <class E, std::size_t N>
E enum_of(const Json& value, std::string_view key, const std::array<EnumName<E>, N>& names) {
  const std::string text = string_of(value, key);
  if (const auto found = parse_enum(names, text)) return *found;
  fail(ErrorCode::usage, fmt::format("{}: {}", key, one_of(names, text)));
}

v1::TrainingOptions training_of(const Json& json) {
  v1::TrainingOptions o;
  const auto number = [](double& to, std::string_view key) {
    return Setting{key, [&to, key](const Json& v) { to = number_of(v, key); }};
  };
  const auto text = [](std::string& to, std::string_view key) {
    return Setting{key, [&to, key](const Json& v) { to = string_of(v, key); }};
  };
  take_settings(
      json, "training",
      {{"method", [&](const Json& v) { o.method = enum_of(v, "method", kMethods); }},
       {"rank", [&](const Json& v) { o.rank = integer_of(v, "rank"); }},
       number(o.alpha, "alpha"),
       number(o.dropout, "dropout"),
       text(o.init_from, "init_from"),
       text(o.optimizer, "optimizer"),
       number(o.learning_rate, "learning_rate"),
       number(o.beta1, "beta1"),
       number(o.beta2, "beta2"),
       number(o.eps, "eps"),
       number(o.weight_decay, "weight_decay"),
       {"ema_decay",
        [&](const Json& v) {
          o.ema_decay = v.is_null() ? std::nullopt : std::optional(number_of(v, "ema_decay"));
        }},
       number(o.max_grad_norm, "max_grad_norm"),
       {"seed",
        [&](const Json& v) {
          const std::int64_t seed = integer_of(v, "seed");
          if (seed < 0)
            fail(ErrorCode::usage, fmt::format("seed: expected 0 or more, found {}", seed));
          o.seed = static_cast<std::uint64_t>(seed);
        }},
       text(o.weights, "weights"),
       text(o.timesteps, "timesteps"),
       number(o.shift, "shift"),
       number(o.min_t, "min_t"),
       number(o.max_t, "max_t"),
       number(o.time_offset, "time_offset")});
  return o;
}

std::vector<v1::Batch> batches_of(const Json& json) {
  const auto fail_batches = [] {
    fail(ErrorCode::usage,
         "batches: expected a list of batches, each a list of [frames, height, width] of latents");
  };
  std::vector<v1::Batch> all;
  if (!json.is_array()) fail_batches();
  for (const Json& batch : json) {
    if (!batch.is_array()) fail_batches();
    v1::Batch& to = all.emplace_back();
    for (const Json& size : batch) {
      if (!size.is_array() || size.size() != 3) fail_batches();
      to.push_back({.frames = integer_of(size[0], "batches"),
                    .height = integer_of(size[1], "batches"),
                    .width = integer_of(size[2], "batches")});
    }
  }
  return all;
}

void switch_memory(ballast_model& m) {
  m.model.leave_memory_to_the_planner();
  if (m.checkpointing) {
    *m.checkpointing ? m.model.enable_gradient_checkpointing()
                     : m.model.disable_gradient_checkpointing();
  }
  if (m.offloading) *m.offloading ? m.model.enable_offloading() : m.model.disable_offloading();
}

void apply_settings(ballast_model& m, const Json& json) {
  using Size = std::optional<std::uint64_t>;
  bool budget = false, switches = false, device = false;
  const auto size = [&](Size v1::Budget::*to, std::string_view key) {
    return Setting{key, [&m, &budget, to, key](const Json& v) {
                     const auto bytes = size_of(v, key);
                     m.budget.*to = bytes ? Size(bytes->count) : Size();
                     budget = true;
                   }};
  };
  const auto memory = [&](std::optional<bool>& to, std::string_view key) {
    return Setting{key, [&to, &switches, key](const Json& v) {
                     to = switch_of(v, key);
                     switches = true;
                   }};
  };
  take_settings(json, "the model's settings",
                {size(&v1::Budget::gpu, "gpu"),
                 size(&v1::Budget::ram, "ram"),
                 size(&v1::Budget::disk, "disk"),
                 {"threads",
                  [&](const Json& v) {
                    m.model.set_threads(static_cast<int>(std::clamp<std::int64_t>(
                        v.is_null() ? 0 : integer_of(v, "threads"), -1, 1 << 20)));
                  }},
                 {"device",
                  [&](const Json& v) {
                    m.device = v.is_null() ? v1::Device::automatic : enum_of(v, "device", kDevices);
                    device = true;
                  }},
                 {"deterministic",
                  [&](const Json& v) {
                    m.deterministic = bool_of(v, "deterministic");
                    device = true;
                  }},
                 memory(m.checkpointing, "gradient_checkpointing"),
                 memory(m.offloading, "offloading"),
                 {"training", [&](const Json& v) { m.model.set_training(training_of(v)); }},
                 {"learning_rate",
                  [&](const Json& v) { m.model.set_learning_rate(number_of(v, "learning_rate")); }},
                 {"batches", [&](const Json& v) { m.model.set_batches(batches_of(v)); }}});
  if (budget) m.model.set_budget(m.budget);
  if (switches) switch_memory(m);
  if (device) m.model.set_device(m.device, m.deterministic);
}

void save(v1::Model& model, const Json& json) {
  std::string what, path;
  v1::LoraFormat format = v1::LoraFormat::comfy;
  v1::SaveType type = v1::SaveType::bf16;
  std::int64_t keep = 3;
  take_settings(json, "what to save",
                {{"what", [&](const Json& v) { what = string_of(v, "what"); }},
                 {"path", [&](const Json& v) { path = string_of(v, "path"); }},
                 {"format", [&](const Json& v) { format = enum_of(v, "format", kFormats); }},
                 {"dtype", [&](const Json& v) { type = enum_of(v, "dtype", kTypes); }},
                 {"keep", [&](const Json& v) { keep = integer_of(v, "keep"); }}});
  if (path.empty()) fail(ErrorCode::usage, "what to save: there is no path");
  if (what == "lora") {
    model.save_lora(path, format, type);
  } else if (what == "model") {
    model.save_model(path, type);
  } else if (what == "checkpoint") {
    model.save_checkpoint(path, static_cast<int>(std::clamp<std::int64_t>(keep, 1, 1 << 20)));
  } else {
    fail(ErrorCode::usage, fmt::format("what to save: expected lora, model or checkpoint, found {}",
                                       printable(what)));
  }
}

}  // namespace
}  // namespace ballast::c_api

int ballast_model_open(const char* path, ballast_model** model, char** err) {
  return guarded(err, [&] {
    require(path, "path");
    require(model, "model");
    *model = new ballast_model{.model = ballast::v1::Model::open(path)};
  });
}

int ballast_model_info(ballast_model* model, char** json, char** err) {
  return guarded(err, [&] {
    require(model, "model");
    give(json, text_of(json_of(model->model.info())));
  });
}

int ballast_model_settings(ballast_model* model, const char* json, char** err) {
  return guarded(err, [&] {
    require(model, "model");
    apply_settings(*model, parse_settings(json));
  });
}

int ballast_model_plan(ballast_model* model, char** json, char** err) {
  return guarded(err, [&] {
    require(model, "model");
    give(json, text_of(json_of(model->model.plan())));
  });
}

int ballast_model_start(ballast_model* model, char** err) {
  return guarded(err, [&] {
    require(model, "model");
    model->model.start();
  });
}

int ballast_model_step(ballast_model* model, const ballast_sample* samples, size_t count,
                       char** result, char** err) {
  return guarded(err, [&] {
    require(model, "model");
    require(samples, "samples");
    std::vector<ballast::v1::ArraySample> all;
    for (size_t i = 0; i < count; ++i) all.push_back(sample_of(samples[i]));
    give(result, text_of(json_of(model->model.step_arrays(all))));
  });
}

int ballast_model_predict(ballast_model* model, const ballast_sample* sample, double model_time,
                          DLTensor* out, char** err) {
  return guarded(err, [&] {
    require(model, "model");
    require(sample, "sample");
    require(out, "out");
    const ballast::v1::ArraySample s = sample_of(*sample);
    const ballast::v1::MutableArray to = mutable_array_of(*out, "out", 4);
    require_shape(*out, "out", {sample->latent->shape, 4});
    model->model.predict_arrays(s, model_time, to);
  });
}

int ballast_model_save(ballast_model* model, const char* what, char** err) {
  return guarded(err, [&] {
    require(model, "model");
    save(model->model, parse_settings(what));
  });
}

int ballast_model_load_checkpoint(ballast_model* model, const char* folder, int* found,
                                  char** err) {
  return guarded(err, [&] {
    require(model, "model");
    require(folder, "folder");
    const bool any = model->model.load_checkpoint(folder);
    if (found != nullptr) *found = any ? 1 : 0;
  });
}

int ballast_model_measured(ballast_model* model, char** json, char** err) {
  return guarded(err, [&] {
    require(model, "model");
    give(json, text_of(json_of(model->model.measured())));
  });
}

void ballast_model_close(ballast_model* model) { delete model; }
