#include "data/text_normalizer.h"

#include <algorithm>

#include "data/unicode_text.h"

namespace ballast::data {
namespace {

std::string_view strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Character c = character_at(text);
    if (!is_white_space(c.code)) break;
    text.remove_prefix(c.length);
  }
  while (right && !text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!is_white_space(character_at(text.substr(begin)).code)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  while (true) {
    const std::size_t at = text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

std::string replace_spaces(std::string_view text, std::string_view to) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find_first_not_of(' ', i), text.size());
    if (end - i >= 2) {
      out += to;
      i = end;
    } else {
      out += text[i++];
    }
  }
  return out;
}

std::optional<PieceTrie> user_defined(const TokenizerModel& model) {
  std::vector<bool> use(model.pieces.size());
  bool any = false;
  for (std::size_t i = 0; i < use.size(); ++i) {
    use[i] = model.types[i] == PieceType::user_defined;
    any |= use[i];
  }
  if (!any) return std::nullopt;
  return PieceTrie(model.pieces, use);
}

}  // namespace

TextNormalizer::TextNormalizer(const TokenizerModel& model, const std::string& path)
    : user_defined_(user_defined(model)),
      steps_(model.steps),
      dummy_prefix_(model.add_dummy_prefix),
      remove_extra_(model.remove_extra_whitespaces),
      escape_(model.escape_whitespaces),
      suffix_(model.whitespace_as_suffix) {
  if (!model.character_map.empty()) map_ = CharacterMap(model.character_map, path);
}

// What the text begins with, and what it becomes.
TextNormalizer::Prefix TextNormalizer::prefix(std::string_view text) const {
  if (user_defined_) {
    std::uint32_t node = PieceTrie::kRoot;
    std::size_t length = 0;
    for (std::size_t i = 0; i < text.size() && user_defined_->step(node, text[i]); ++i) {
      if (user_defined_->value(node) >= 0) length = i + 1;
    }
    if (length > 0) return {text.substr(0, length), length};
  }
  if (const CharacterMap::Rule rule = map_.longest(text); rule.length > 0) {
    return {rule.by, rule.length};
  }
  const Character c = character_at(text);
  const bool malformed = c.code == 0xfffd && c.length == 1;
  return {malformed ? std::string_view("\ufffd") : text.substr(0, c.length), c.length};
}

void TextNormalizer::sentencepiece(std::string_view text, bool continued, std::string& out) const {
  out.clear();
  const std::string_view space = escape_ ? kSpaceSymbol : std::string_view(" ");
  if (remove_extra_ && !continued) {
    while (!text.empty()) {
      const Prefix first = prefix(text);
      if (first.by != " ") break;
      text.remove_prefix(first.length);
    }
  }
  if (text.empty()) return;
  if (dummy_prefix_ && !suffix_ && !continued) out += space;
  bool after_space = remove_extra_ && !continued;
  while (!text.empty()) {
    Prefix next = prefix(text);
    while (after_space && next.by.starts_with(' ')) next.by.remove_prefix(1);
    for (const char c : next.by) {
      if (c == ' ') {
        out += space;
      } else {
        out += c;
      }
    }
    if (!next.by.empty()) after_space = remove_extra_ && next.by.ends_with(' ');
    text.remove_prefix(next.length);
  }
  while (remove_extra_ && out.ends_with(space)) out.resize(out.size() - space.size());
  if (dummy_prefix_ && suffix_) out += space;
}

std::string TextNormalizer::steps(std::string_view text) const {
  std::string now(text);
  for (const TextStep& step : steps_) {
    switch (step.kind) {
      case TextStep::Kind::character_map: {
        std::string out;
        out.reserve(now.size());
        map_.apply_to_clusters(now, out);
        now = std::move(out);
        break;
      }
      case TextStep::Kind::strip:
        now = std::string(strip(now, step.left, step.right));
        break;
      case TextStep::Kind::replace:
        now = replace_all(now, step.from, step.to);
        break;
      case TextStep::Kind::replace_spaces:
        now = replace_spaces(now, step.to);
        break;
      case TextStep::Kind::canonical_form:
        now = encode_utf8(canonical_composition(decode_utf8(now)));
        break;
    }
  }
  return now;
}

}  // namespace ballast::data
