#include "data/character_map.h"

#include <cstring>

#include "core/error.h"
#include "data/unicode_text.h"
#include "io/utf8.h"

namespace ballast::data {
namespace {

constexpr std::size_t kClusterBytes = 6;  // a cluster as long as this is not replaced whole

// The fields of a unit of the double array.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value(std::uint32_t unit) { return unit & 0x7fffffffu; }
std::uint32_t label(std::uint32_t unit) { return unit & 0x800000ffu; }
std::uint32_t offset(std::uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

}  // namespace

CharacterMap::CharacterMap(std::string_view blob, const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    fail(ErrorCode::input, "{}: charsmap: {}", path, what);
  };
  std::uint32_t bytes = 0;
  if (blob.size() < sizeof bytes) refuse(fmt::format("{} bytes hold no size", blob.size()));
  std::memcpy(&bytes, blob.data(), sizeof bytes);
  blob.remove_prefix(sizeof bytes);
  if (bytes > blob.size() || bytes % 4 != 0 || bytes == 0) {
    refuse(fmt::format("the trie takes {} bytes, expected a multiple of 4 up to the {} that follow",
                       bytes, blob.size()));
  }
  units_.resize(bytes / 4);
  std::memcpy(units_.data(), blob.data(), bytes);
  pool_ = blob.substr(bytes);
  if (pool_.empty() || pool_.back() != '\0') refuse("the replacements do not end in a zero byte");
  if (const auto bad = first_invalid_utf8(pool_)) {
    refuse(fmt::format("the replacements are not UTF-8 at byte {}", *bad));
  }
}

// Damaged tries are walked inside their bounds: a unit that is not there matches nothing.
CharacterMap::Rule CharacterMap::find(std::string_view text, bool longest) const {
  Rule rule;
  if (units_.empty()) return rule;
  std::size_t place = offset(units_[0]);
  for (std::size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    place ^= byte;
    if (place >= units_.size() || label(units_[place]) != byte) break;
    const std::uint32_t unit = units_[place];
    place ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (place >= units_.size() || value(units_[place]) >= pool_.size()) break;
    rule = {i + 1, replacement(value(units_[place]))};
    if (!longest) break;
  }
  return rule;
}

std::string_view CharacterMap::replacement(std::uint32_t offset) const {
  return pool_.data() + offset;  // a zero byte ends the pool
}

void CharacterMap::apply_to_clusters(std::string_view text, std::string& out) const {
  while (!text.empty()) {
    const std::size_t cluster = cluster_length(text);
    if (cluster < kClusterBytes) {
      if (const Rule rule = shortest(text.substr(0, cluster)); rule.length > 0) {
        out += rule.by;
        text.remove_prefix(cluster);
        continue;
      }
    }
    for (std::size_t end = text.size() - cluster; text.size() > end;) {
      const std::size_t one = character_at(text).length;
      const Rule rule = shortest(text.substr(0, one));
      if (rule.length > 0) {
        out += rule.by;
      } else {
        out += text.substr(0, one);
      }
      text.remove_prefix(one);
    }
  }
}

}  // namespace ballast::data
