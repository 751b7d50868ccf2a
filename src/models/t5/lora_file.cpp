#include "models/t5/lora_file.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"

namespace ballast::t5 {

LoraFile LoraFile::open(const std::string& folder, const Config& model) {
  LoraFile f(WeightFiles::open(folder + "/" + kAdapterFile), read_adapter_config(folder));
  const std::string& path = f.checkpoint_.path();
  std::map<std::string, Shape> matrices;
  each_parameter(model, [&](int group, const std::string& name, const Shape& shape) {
    if (group == kSmallGroup || group >= embedding_group(model) || shape.rank() != 2) return;
    matrices.emplace(name.substr(0, name.rfind('.')), shape);
  });
  std::map<std::string, Module> modules;
  for (const WeightTensor& t : f.checkpoint_.tensors()) {
    std::string name(t.entry->name);
    if (name.starts_with("base_model.model.")) name.erase(0, 17);
    const std::size_t at = name.rfind(".lora_");
    const auto which = at == std::string::npos ? std::string() : name.substr(at);
    const auto matrix = matrices.find(name.substr(0, at));
    if ((which != ".lora_A.weight" && which != ".lora_B.weight") || matrix == matrices.end()) {
      fail_adapter(path, fmt::format("{} is no factor of a matrix of {}", printable(t.entry->name),
                                     model.name));
    }
    Module& m = modules[matrix->first];
    m.name = matrix->first;
    const bool a = which == ".lora_A.weight";
    const Shape& s = t.entry->shape;
    const std::int64_t rank = s.rank() == 2 ? s[a ? 0 : 1] : 0;
    const std::int64_t other = s.rank() == 2 ? s[a ? 1 : 0] : 0;
    if (rank < 1 || rank > kMaxAdapterRank || other != matrix->second[a ? 1 : 0] ||
        (m.rank != 0 && m.rank != rank) || !info(f.checkpoint_.dtype(t)).floating) {
      fail_adapter(path, fmt::format("{} is {} {}; the matrix beside it is {}, rank {}",
                                     printable(t.entry->name), f.checkpoint_.dtype(t), s,
                                     matrix->second, m.rank));
    }
    m.rank = rank;
    (a ? m.a : m.b) = &t;
  }
  for (auto& [name, m] : modules) {
    if (!m.a || !m.b) fail_adapter(path, fmt::format("{} has one factor without the other", name));
    f.rank_ = std::max(f.rank_, m.rank);
    f.modules_.push_back(std::move(m));
  }
  if (f.modules_.empty()) fail_adapter(path, "there is no adapter in it");
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
  for (const Module& m : modules_) o.modules.push_back(m.name);
  return o;
}

Bytes LoraFile::reading_bytes() const {
  std::uint64_t most = 0;
  for (const Module& m : modules_) {
    for (const WeightTensor* t : {m.a, m.b}) {
      const auto elements = static_cast<std::uint64_t>(t->entry->shape.elements() / m.rank * rank_);
      most = std::max(most, t->entry->bytes + 2 * 4 * elements);
    }
  }
  return {most};
}

}  // namespace ballast::t5
