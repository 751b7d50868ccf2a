#include "data/unigram.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::data {
namespace {

constexpr double kUnknownPenalty = 10;

// By its first byte alone; text is well formed here, but the end is watched all the same.
std::size_t character_length(std::string_view text, std::size_t at) {
  constexpr unsigned char kLengths[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
  const std::size_t length = kLengths[static_cast<unsigned char>(text[at]) >> 4];
  return std::min(length, text.size() - at);
}

// Which pieces text can be cut into. A spiece.model names some that it never is.
std::vector<bool> findable(const TokenizerModel& model) {
  if (model.source == TokenizerModel::Source::tokenizer_json) return {};
  std::vector<bool> use(model.pieces.size());
  for (std::size_t i = 0; i < use.size(); ++i) {
    const PieceType t = model.types[i];
    use[i] = t == PieceType::normal || t == PieceType::user_defined || t == PieceType::unused;
  }
  return use;
}

}  // namespace

Unigram::Unigram(const TokenizerModel& model)
    : trie_(model.pieces, findable(model)),
      unused_(model.pieces.size()),
      user_defined_(model.pieces.size()),
      min_score_(std::numeric_limits<double>::max()),
      // As the library has it: not the lowest number, so that no negative score is above it and a
      // piece that the user asked for costs 0.1.
      max_score_(std::numeric_limits<float>::min()),
      unk_id_(model.unk_id),
      sentencepiece_(model.source == TokenizerModel::Source::sentencepiece) {
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    unused_[i] = model.types[i] == PieceType::unused;
    user_defined_[i] = model.types[i] == PieceType::user_defined;
    if (sentencepiece_ && model.types[i] != PieceType::normal) continue;
    min_score_ = std::min(min_score_, model.scores[i]);
    max_score_ = std::max(max_score_, model.scores[i]);
  }
  if (sentencepiece_) {
    scores_.assign(model.scores.begin(), model.scores.end());
  } else {
    scores64_ = model.scores;
  }
  if (!model.byte_fallback) return;
  std::vector<std::string> names(256);
  for (unsigned b = 0; b < 256; ++b) names[b] = fmt::format("<0x{:02X}>", b);
  byte_ids_.assign(256, -1);
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    if (sentencepiece_ && model.types[i] != PieceType::byte) continue;
    const auto found = std::lower_bound(names.begin(), names.end(), model.pieces[i]);
    if (found == names.end() || *found != model.pieces[i]) continue;
    byte_ids_[to_size(found - names.begin())] = static_cast<std::int32_t>(i);
  }
}

void Unigram::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (sentencepiece_) {
    encode_as<float>(text, ids);
  } else {
    encode_as<double>(text, ids);
  }
}

template <class Sum>
void Unigram::encode_as(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  struct Node {
    Sum best;
    std::int32_t id;
    std::uint32_t from;  // kUnset: no piece ends here yet
  };
  constexpr std::uint32_t kUnset = ~0u;
  check(text.size() < kUnset, "a text of {} bytes", text.size());
  thread_local std::vector<Node>
      nodes;  // grows to the longest text, so short ones allocate nothing
  nodes.assign(text.size() + 1, Node{0, 0, kUnset});
  const Sum unknown_score = static_cast<Sum>(min_score_) - static_cast<Sum>(kUnknownPenalty);
  const auto offer = [&](std::size_t from, std::size_t to, std::int32_t id, double sum) {
    Node& node = nodes[to];
    if (node.from != kUnset && !(sum > static_cast<double>(node.best))) return;
    node = {static_cast<Sum>(sum), id, static_cast<std::uint32_t>(from)};
  };

  for (std::size_t start = 0; start < text.size();) {
    const Sum best = nodes[start].best;
    const std::size_t one = character_length(text, start);
    bool single = false;
    std::uint32_t node = PieceTrie::kRoot;
    for (std::size_t at = start; at < text.size() && trie_.step(node, text[at]);) {
      ++at;
      const std::int32_t id = trie_.value(node);
      if (id < 0) continue;
      const auto i = to_size(id);
      double score = 0;
      if constexpr (sizeof(Sum) == sizeof(float)) {
        if (unused_[i]) continue;
        // A piece the user asked for wins against whatever it could be cut into.
        score = user_defined_[i] ? static_cast<double>(static_cast<float>(at - start) *
                                                       static_cast<float>(max_score_)) -
                                       0.1
                                 : static_cast<double>(scores_[i]);
      } else {
        score = scores64_[i];
      }
      offer(start, at, id, score + static_cast<double>(best));
      single |= at - start == one;
    }
    if (!single) offer(start, start + one, unk_id_, static_cast<double>(unknown_score + best));
    start += one;
  }

  thread_local std::vector<std::uint32_t> ends;
  ends.clear();
  for (std::size_t at = text.size(); at > 0; at = nodes[at].from) {
    ends.push_back(static_cast<std::uint32_t>(at));
  }
  std::size_t unknown_from = kUnset;
  for (std::size_t i = ends.size(); i-- > 0;) {
    const Node& node = nodes[ends[i]];
    if (node.id != unk_id_) {
      ids.push_back(node.id);
      continue;
    }
    unknown_from = std::min<std::size_t>(unknown_from, node.from);
    const bool more = i > 0 && nodes[ends[i - 1]].id == unk_id_;
    if (more) continue;
    append_unknown(text.substr(unknown_from, ends[i] - unknown_from), ids);
    unknown_from = kUnset;
  }
}

void Unigram::append_unknown(std::string_view run, std::vector<std::int32_t>& ids) const {
  const auto byte_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  const bool as_bytes = !byte_ids_.empty() && std::all_of(run.begin(), run.end(),
                                                          [&](char c) { return byte_id(c) >= 0; });
  if (!as_bytes) return ids.push_back(unk_id_);
  for (const char c : run) ids.push_back(byte_id(c));
}

}  // namespace ballast::data
