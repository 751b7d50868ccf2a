#include "models/t5/lora_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "core/convert.h"
#include "core/error.h"
#include "io/json_reader.h"
#include "io/json_writer.h"
#include "io/limits.h"
#include "memory/text_file.h"

namespace ballast::t5 {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostRank = 4096;

[[noreturn]] void fail_here(const std::string& path, const std::string& what) {
  fail(ErrorCode::input, fmt::format("{}: {}", path, what),
       {{"an adapter of PEFT's LoRA without DoRA, patterns or biases", "is what can be read"}});
}

// null, false, [] and {}: the same as nothing.
bool holds_something(JsonReader& json) {
  using Kind = JsonReader::Kind;
  switch (json.peek()) {
    case Kind::null:
      json.null();
      return false;
    case Kind::boolean:
      return json.boolean();
    case Kind::object: {
      bool any = false;
      json.open_object();
      for (std::string_view key; json.next_key(key); any = true) json.skip();
      return any;
    }
    case Kind::array: {
      bool any = false;
      json.open_array();
      for (; json.next_element(); any = true) json.skip();
      return any;
    }
    default:
      json.skip();
      return true;
  }
}

std::vector<std::string> words_of(JsonReader& json) {
  std::vector<std::string> all;
  if (json.peek() != JsonReader::Kind::array) {  // a pattern, which the tensors answer better
    json.skip();
    return all;
  }
  json.open_array();
  while (json.next_element()) {
    all.emplace_back(json.string());
    if (all.size() > 4096) json.fail_value("too many targets");
  }
  return all;
}

}  // namespace

bool is_adapter_folder(const std::string& folder) {
  std::error_code error;
  return fs::is_regular_file(fs::path(folder) / kAdapterConfigFile, error);
}

AdapterConfig read_adapter_config(const std::string& folder) {
  const std::string path = folder + "/" + kAdapterConfigFile;
  const std::string text = read_text_file(path, limits::kConfigBytes, "an adapter_config.json");
  AdapterConfig c;
  JsonReader json({.text = text, .path = path, .rule = "adapter_config.json"});
  json.open_object();
  for (std::string_view view; json.next_key(view);) {
    const std::string key(view);
    if (key == "r") {
      c.rank = json.i64();
      if (c.rank < 1 || c.rank > kMostRank) json.fail_value("expected a rank from 1 to 4096");
    } else if (key == "lora_alpha") {
      c.alpha = json.number();
    } else if (key == "lora_dropout") {
      c.dropout = json.number();
    } else if (key == "use_rslora") {
      c.root_scale = json.boolean();
    } else if (key == "target_modules") {
      c.targets = words_of(json);
    } else if (key == "base_model_name_or_path") {
      if (json.peek() == JsonReader::Kind::null) {
        json.null();
      } else {
        c.base_model = json.string();
      }
    } else if (key == "peft_type") {
      const std::string type(json.string());
      if (type != "LORA") fail_here(path, fmt::format("{} is no LoRA", printable(type)));
    } else if (key == "bias") {
      const std::string bias(json.string());
      if (bias != "none") fail_here(path, fmt::format("it trains biases ({})", printable(bias)));
    } else if (key == "rank_pattern" || key == "alpha_pattern" || key == "use_dora" ||
               key == "fan_in_fan_out" || key == "modules_to_save" || key == "use_qalora") {
      // A rank is seen in the tensors.
      if (holds_something(json) && key != "rank_pattern") {
        fail_here(path, fmt::format("{} changes what the factors mean", key));
      }
    } else {
      json.skip();
    }
  }
  json.finish();
  return c;
}

std::string adapter_config_json(const AdapterConfig& c) {
  std::string targets;
  for (const std::string& t : c.targets) {
    targets += targets.empty() ? "\n    " : ",\n    ";
    append_json_string(targets, t);
  }
  std::string base = "null";
  if (!c.base_model.empty()) {
    base.clear();
    append_json_string(base, c.base_model);
  }
  return fmt::format(
      "{{\n  \"alpha_pattern\": {{}},\n  \"auto_mapping\": null,\n"
      "  \"base_model_name_or_path\": {},\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": false,\n"
      "  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n  \"lora_alpha\": {},\n"
      "  \"lora_dropout\": {},\n  \"modules_to_save\": null,\n  \"peft_type\": \"LORA\",\n"
      "  \"r\": {},\n  \"rank_pattern\": {{}},\n  \"revision\": null,\n"
      "  \"target_modules\": [{}\n  ],\n  \"task_type\": \"SEQ_2_SEQ_LM\",\n"
      "  \"use_dora\": false,\n  \"use_rslora\": {}\n}}\n",
      base, c.alpha, c.dropout, c.rank, targets, c.root_scale);
}

LoraFile LoraFile::open(const std::string& folder, const Config& model) {
  LoraFile f(Checkpoint::open(folder + "/" + kAdapterFile), read_adapter_config(folder));
  const std::string& path = f.checkpoint_.path();
  std::map<std::string, Shape> matrices;
  each_parameter(model, [&](int group, const std::string& name, const Shape& shape) {
    if (group == kSmallGroup || group >= embedding_group(model) || shape.rank() != 2) return;
    matrices.emplace(name.substr(0, name.rfind('.')), shape);
  });
  std::map<std::string, Module> modules;
  for (const CheckpointTensor& t : f.checkpoint_.tensors()) {
    std::string name(t.entry->name);
    if (name.starts_with("base_model.model.")) name.erase(0, 17);
    const std::size_t at = name.rfind(".lora_");
    const auto which = at == std::string::npos ? std::string() : name.substr(at);
    const auto matrix = matrices.find(name.substr(0, at));
    if ((which != ".lora_A.weight" && which != ".lora_B.weight") || matrix == matrices.end()) {
      fail_here(path, fmt::format("{} is no factor of a matrix of {}", printable(t.entry->name),
                                  model.name));
    }
    Module& m = modules[matrix->first];
    m.name = matrix->first;
    const bool a = which == ".lora_A.weight";
    const Shape& s = t.entry->shape;
    const std::int64_t rank = s.rank() == 2 ? s[a ? 0 : 1] : 0;
    const std::int64_t other = s.rank() == 2 ? s[a ? 1 : 0] : 0;
    if (rank < 1 || rank > kMostRank || other != matrix->second[a ? 1 : 0] ||
        (m.rank != 0 && m.rank != rank) || !info(f.checkpoint_.dtype(t)).floating) {
      fail_here(path, fmt::format("{} is {} {}; the matrix beside it is {}, rank {}",
                                  printable(t.entry->name), f.checkpoint_.dtype(t), s,
                                  matrix->second, m.rank));
    }
    m.rank = rank;
    (a ? m.a : m.b) = &t;
  }
  for (auto& [name, m] : modules) {
    if (!m.a || !m.b) fail_here(path, fmt::format("{} has one factor without the other", name));
    f.rank_ = std::max(f.rank_, m.rank);
    f.modules_.push_back(std::move(m));
  }
  if (f.modules_.empty()) fail_here(path, "there is no adapter in it");
  return f;
}

double LoraFile::scale_of(std::int64_t rank) const {
  const auto r = static_cast<double>(rank);
  return config_.alpha / (config_.root_scale ? std::sqrt(r) : r);
}

LoraOptions LoraFile::options(double strength) const {
  LoraOptions o;
  o.rank = rank_;
  o.alpha = static_cast<float>(scale_of(rank_) * strength * static_cast<double>(rank_));
  o.targets.clear();
  for (const Module& m : modules_) o.modules.push_back(m.name);
  return o;
}

std::vector<float> LoraFile::numbers(const CheckpointTensor& t) const {
  const DType dtype = checkpoint_.dtype(t);
  std::vector<std::byte> stored(t.entry->bytes);
  checkpoint_.read(t, stored);
  std::vector<float> values(static_cast<std::size_t>(t.entry->shape.elements()));
  convert(stored.data(), dtype, values.data(), DType::f32, std::ssize(values));
  return values;
}

Bytes LoraFile::reading_bytes() const {
  std::uint64_t most = 0;
  for (const Module& m : modules_) {
    for (const CheckpointTensor* t : {m.a, m.b}) {
      const auto elements = static_cast<std::uint64_t>(t->entry->shape.elements() / m.rank * rank_);
      most = std::max(most, t->entry->bytes + 2 * 4 * elements);
    }
  }
  return {most};
}

void LoraFile::fill(std::span<const AdapterIo> adapters, Runner& runner) const {
  for (const AdapterIo& io : adapters) {
    const auto m = std::ranges::find(modules_, io.name, &Module::name);
    check(m != modules_.end(), "{} is no adapter of {}", io.name, checkpoint_.path());
    std::vector<float> a = numbers(*m->a);
    a.resize(static_cast<std::size_t>(runner.view(io.a).elements()), 0);  // rows below
    runner.write(io.a, std::as_bytes(std::span(a)));
    std::vector<float> b = numbers(*m->b);
    if (m->rank != rank_) {  // columns beside, and a scale of its own
      const auto factor = static_cast<float>(scale_of(m->rank) / scale_of(rank_));
      std::vector<float> wide(static_cast<std::size_t>(runner.view(io.b).elements()), 0);
      for (std::size_t i = 0; i < b.size(); ++i) {
        const auto own = static_cast<std::size_t>(m->rank);
        wide[i / own * static_cast<std::size_t>(rank_) + i % own] = b[i] * factor;
      }
      b = std::move(wide);
    }
    runner.write(io.b, std::as_bytes(std::span(b)));
  }
}

}  // namespace ballast::t5
