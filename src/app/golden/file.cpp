#include "app/golden/file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "app/golden/config.h"
#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"

namespace ballast {
namespace {

constexpr std::string_view kFormat = "ballast-golden-1";
constexpr std::array<std::string_view, 8> kResultPrefixes = {
    "out.", "mid.", "grad.", "expect.", "table.", "unipc.", "dpmpp.", "euler."};

const std::string& metadata_entry(const SafetensorsFile& file, std::string_view key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    fail(ErrorCode::input, "{}: golden.metadata: there is no \"{}\" in its metadata", file.path(),
         key);
  }
  return found->second;
}

}  // namespace

std::vector<double> GoldenTensor::doubles() const {
  std::vector<double> all(to_size(shape.elements()));
  convert(data.data(), dtype, all.data(), DType::f64, shape.elements());
  return all;
}

GoldenTensor golden_tensor(std::string name, DType dtype, const Shape& shape) {
  const auto bytes = to_size(shape.elements()) * size_of(dtype);
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = shape,
          .data = std::vector<std::byte>(bytes)};
}

GoldenTensor golden_tensor(std::string name, const Shape& shape, std::span<const float> values) {
  GoldenTensor t = golden_tensor(std::move(name), DType::f32, shape);
  check(values.size_bytes() == t.data.size(), "{} values for {} {}", values.size(), t.name, shape);
  if (!values.empty()) std::memcpy(t.data.data(), values.data(), values.size_bytes());
  return t;
}

GoldenFile GoldenFile::open(const std::string& path) {
  GoldenFile golden(WeightFiles::open(path, DiskMode::buffered));
  const SafetensorsFile& file = golden.checkpoint_.files()[0];
  const auto format = file.metadata().find("format");
  if (golden.checkpoint_.files().size() != 1 || format == file.metadata().end() ||
      format->second != kFormat) {
    fail(ErrorCode::input,
         fmt::format("{} is not a golden file: its metadata does not say format = {}", path,
                     kFormat),
         {{"ballast inspect " + path, "says what it is"}});
  }
  golden.case_ = metadata_entry(file, "case");
  metadata_entry(file, "config");
  const auto stats = file.metadata().find("stats");
  if (stats != file.metadata().end()) golden.read_stats(stats->second);
  return golden;
}

std::string GoldenFile::name() const { return std::filesystem::path(path()).filename().string(); }

JsonReader GoldenFile::config() const {
  return JsonReader({.text = metadata_entry(checkpoint_.files()[0], "config"),
                     .path = path(),
                     .rule = "golden.config"});
}

void GoldenFile::read_stats(std::string_view text) {
  JsonReader json({.text = text, .path = path(), .rule = "golden.stats"});
  json.open_object();
  for (std::string_view tensor; json.next_key(tensor);) {
    if (stats_.size() >= limits::kTensors) json.fail_here("too many tensors");
    const auto [entry, added] = stats_.try_emplace(std::string(tensor));
    if (!added) json.fail_here("the same tensor twice");
    GoldenStats& s = entry->second;
    int read = 0;
    json.open_object();
    for (std::string_view key; json.next_key(key);) {
      double* to = key == "max" ? &s.max : key == "rms" ? &s.rms : key == "err" ? &s.err : nullptr;
      if (!to) {
        json.skip();
        continue;
      }
      *to = read_number(json, 0, 1e300);
      ++read;
    }
    if (read != 3) json.fail_here("max, rms and err are wanted, once each");
  }
  json.finish();
}

const GoldenStats* GoldenFile::stats(std::string_view tensor) const {
  const auto found = stats_.find(tensor);
  return found == stats_.end() ? nullptr : &found->second;
}

bool GoldenFile::is_result(std::string_view name) {
  return std::any_of(kResultPrefixes.begin(), kResultPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

GoldenTensor GoldenFile::read(std::string_view name) const {
  const WeightTensor& t = checkpoint_.get(name);
  GoldenTensor loaded = golden_tensor(std::string(name), checkpoint_.dtype(t), t.entry->shape);
  checkpoint_.read(t, loaded.data);
  return loaded;
}

GoldenTensor GoldenFile::load(std::string_view name) const {
  check(!is_result(name), "{} is a result, not an input", name);
  return read(name);
}

GoldenTensor GoldenFile::load(std::string_view name, DType dtype, const Shape& shape) const {
  const WeightTensor& t = checkpoint_.get(name);
  if (checkpoint_.dtype(t) != dtype || t.entry->shape != shape) {
    fail(ErrorCode::input, "{}: {} is {} {}, expected {} {}", path(), name, checkpoint_.dtype(t),
         t.entry->shape, dtype, shape);
  }
  return load(name);
}

GoldenTensor GoldenFile::expected(std::string_view name) const { return read(name); }

}  // namespace ballast
