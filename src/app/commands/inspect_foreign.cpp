#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "app/commands/inspect_parts.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/path_kind.h"
#include "io/gguf_file.h"
#include "io/torch_file.h"

namespace ballast {
namespace {

constexpr std::size_t kForeignShown = 12;  // tensors, and keys of the metadata, without --tensors

struct ForeignTensor {
  std::string_view name, type;
  Shape shape;
  std::uint64_t elements, bytes;
};

struct ForeignFile {
  std::string container;
  std::vector<ForeignTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::vector<std::string> notes;
};

ForeignFile gguf_listing(const GgufFile& file) {
  ForeignFile out{.container = "GGUF",
                  .tensors = {},
                  .metadata = file.metadata(),
                  .notes = {file.notes().begin(), file.notes().end()}};
  for (const GgufTensor& t : file.tensors()) {
    out.tensors.push_back({t.name, t.type->name, t.shape, t.elements(), t.bytes});
  }
  return out;
}

ForeignFile torch_listing(const TorchFile& file) {
  ForeignFile out{.container = "PyTorch, tensors that are not contiguous",
                  .tensors = {},
                  .metadata = {},
                  .notes = {file.notes().begin(), file.notes().end()}};
  for (const TorchTensor& t : file.tensors()) {
    out.tensors.push_back({t.name, name_of(t.dtype), t.shape,
                           static_cast<std::uint64_t>(t.shape.elements()), t.bytes});
  }
  return out;
}

struct TypeTotal {
  std::uint64_t tensors = 0, elements = 0, bytes = 0;

  void add(const ForeignTensor& t) {
    ++tensors;
    elements += t.elements;
    bytes += t.bytes;
  }
};

std::map<std::string_view, TypeTotal> by_type(const ForeignFile& file) {
  std::map<std::string_view, TypeTotal> totals;
  for (const ForeignTensor& t : file.tensors) totals[t.type].add(t);
  return totals;
}

std::string listing_text(const ForeignFile& file, const ForeignView& view) {
  TypeTotal all;
  for (const ForeignTensor& t : file.tensors) all.add(t);
  std::string text =
      fmt::format("{}\n  {}, {} tensors, {} parameters, {}\n", printable(view.path, 4096),
                  file.container, all.tensors, all.elements, Bytes{all.bytes});
  text += fmt::format("\n{:<12} {:>9} {:>20} {:>12}\n", "type", "tensors", "parameters", "size");
  const auto line = [&](std::string_view name, const TypeTotal& t) {
    text +=
        fmt::format("{:<12} {:>9} {:>20} {:>12}\n", name, t.tensors, t.elements, Bytes{t.bytes});
  };
  for (const auto& [type, total] : by_type(file)) line(type, total);
  line("total", all);
  const auto most = [&](std::size_t n) {
    return view.all_tensors ? n : std::min(n, kForeignShown);
  };
  std::size_t shown = 0;
  for (const auto& [key, value] : file.metadata) {
    if (shown++ == 0) text += "\nmetadata\n";
    if (shown > most(file.metadata.size())) continue;
    text += fmt::format("  {} = {}\n", printable(key), printable(value));
  }
  if (!file.tensors.empty()) text += "\ntensors\n";
  for (std::size_t i = 0; i < most(file.tensors.size()); ++i) {
    const ForeignTensor& t = file.tensors[i];
    text += fmt::format("  {:<8} {:<24} {}\n", t.type, to_string(t.shape), printable(t.name));
  }
  if (const std::size_t n = file.tensors.size(); n > most(n)) {
    text += fmt::format("  ... {} more (--tensors lists all)\n", n - most(n));
  }
  for (const std::string& note : file.notes) text += fmt::format("\n{}\n", note);
  return text + fmt::format("\nballast convert model {} OUT.safetensors makes it a model to use\n",
                            printable(view.path, 4096));
}

std::string listing_json(const ForeignFile& file, const ForeignView& view) {
  using Json = nlohmann::ordered_json;
  Json j = {{"path", view.path}, {"container", file.container}};
  j["dtypes"] = Json::object();
  for (const auto& [type, t] : by_type(file)) {
    j["dtypes"][std::string(type)] = {
        {"tensors", t.tensors}, {"parameters", t.elements}, {"bytes", t.bytes}};
  }
  j["metadata"] = Json(file.metadata);
  j["warnings"] = Json(file.notes);
  if (view.all_tensors) {
    j["tensors"] = Json::array();
    for (const ForeignTensor& t : file.tensors) {
      j["tensors"].push_back({{"name", std::string(t.name)},
                              {"dtype", std::string(t.type)},
                              {"shape", std::vector<std::int64_t>(t.shape.begin(), t.shape.end())},
                              {"bytes", t.bytes}});
    }
  }
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::optional<std::string> inspect_foreign(const ForeignView& view) {
  if (!is_file(view.path)) return std::nullopt;
  const DiskFile disk = DiskFile::open(view.path, DiskMode::buffered);
  std::array<std::byte, 16> first{};
  disk.read(0, std::span(first).first(std::min<std::uint64_t>(first.size(), disk.size())));
  const auto show = [&](const ForeignFile& file) {
    return view.json ? listing_json(file, view) : listing_text(file, view);
  };
  if (GgufFile::is_one(first)) return show(gguf_listing(GgufFile::open(view.path)));
  if (!TorchFile::is_one(first)) return std::nullopt;
  const TorchFile torch = TorchFile::open(view.path, DiskMode::buffered);
  const bool usable = std::all_of(torch.tensors().begin(), torch.tensors().end(),
                                  [](const TorchTensor& t) { return t.contiguous; });
  if (usable) return std::nullopt;
  return show(torch_listing(torch));
}

}  // namespace ballast
