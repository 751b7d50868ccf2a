#include "io/weight_index.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "io/json_reader.h"
#include "io/limits.h"

namespace ballast {
namespace {

// Why a shard name may not be used as a path below the index's folder; nullptr when it may.
const char* fault_of(std::string_view name) {
  if (name.empty() || name.back() == '/') return "is empty";
  if (name.front() == '/') return "is an absolute path";
  if (name.size() > limits::kNameBytes) return "is too long";
  if (name.find('\\') != std::string_view::npos) return "contains a backslash";
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), control)) return "contains a control character";
  while (!name.empty()) {
    const std::size_t slash = std::min(name.find('/'), name.size());
    if (name.substr(0, slash) == "..") return "leaves the folder of the index";
    name.remove_prefix(std::min(slash + 1, name.size()));
  }
  return nullptr;
}

class IndexParser {
 public:
  IndexParser(std::string_view text, const std::string& path)
      : text_(text), path_(path), json_({.text = text, .path = path, .rule = "index.json"}) {}

  WeightIndex parse() {
    bool map_seen = false;
    json_.open_object();
    for (std::string_view key; json_.next_key(key);) {
      if (key == "weight_map") {
        if (map_seen) json_.fail_here("a second \"weight_map\"");
        map_seen = true;
        if (json_.peek() != JsonReader::Kind::object) {
          refuse("index.weight_map", "\"weight_map\" is not an object");
        }
        read_weight_map();
      } else if (key == "metadata" && json_.peek() == JsonReader::Kind::object) {
        read_metadata();
      } else {
        json_.skip();
      }
    }
    json_.finish();
    if (!map_seen) refuse("index.weight_map", "there is no \"weight_map\"");
    if (index_.weight_map.empty()) refuse("index.weight_map", "\"weight_map\" names no tensor");
    return std::move(index_);
  }

 private:
  [[noreturn]] void refuse(std::string_view rule, std::string_view what) const {
    fail(ErrorCode::input, "{}: {}: {} (byte offset {})", path_, rule, what, json_.file_offset());
  }

  void read_metadata() {
    json_.open_object();
    for (std::string_view key; json_.next_key(key);) {
      if (key != "total_size" || json_.peek() != JsonReader::Kind::number) {
        json_.skip();
        continue;
      }
      const std::string_view number = json_.number_text();
      const char* end = number.data() + number.size();
      std::uint64_t value = 0;
      const auto [stop, error] = std::from_chars(number.data(), end, value);
      if (error == std::errc() && stop == end) index_.total_size = value;
    }
  }

  void read_weight_map() {
    auto& map = index_.weight_map;
    const auto name_at = [&](std::uint32_t i) { return map[i].name; };
    NameIndex seen;
    json_.open_object();
    for (std::string_view key; json_.next_key(key);) {
      if (map.size() == limits::kTensors) {
        refuse("index.limit", fmt::format("more than {} tensors", limits::kTensors));
      }
      if (key.size() > limits::kNameBytes) {
        refuse("index.limit", fmt::format("tensor name \"{}\" is longer than {} bytes",
                                          printable(key), limits::kNameBytes));
      }
      const std::string_view name = index_.names.keep(key, text_);
      if (seen.insert(name, static_cast<std::uint32_t>(map.size()), name_at)) {
        refuse("index.duplicate_name",
               fmt::format("tensor \"{}\" is mapped twice", printable(name)));
      }
      map.push_back({name, shard_number(name, json_.string())});
    }
  }

  std::uint32_t shard_number(std::string_view tensor, std::string_view shard) {
    auto& shards = index_.shards;
    const auto number = static_cast<std::uint32_t>(shards.size());
    const auto name_at = [&](std::uint32_t i) { return std::string_view(shards[i]); };
    if (const auto known = shard_index_.find(shard, name_at)) return *known;
    if (const char* fault = fault_of(shard)) {
      refuse("index.shard_name", fmt::format("tensor \"{}\" is in \"{}\", a file name that {}",
                                             printable(tensor), printable(shard), fault));
    }
    if (number == limits::kShards) {
      refuse("index.limit", fmt::format("more than {} shards", limits::kShards));
    }
    shards.emplace_back(shard);
    shard_index_.insert(shards.back(), number, name_at);
    return number;
  }

  std::string_view text_;
  const std::string& path_;
  JsonReader json_;
  NameIndex shard_index_;
  WeightIndex index_;
};

}  // namespace

WeightIndex parse_weight_index(std::string_view text, const std::string& path) {
  return IndexParser(text, path).parse();
}

}  // namespace ballast
