#include "data/piece_trie.h"

#include <algorithm>

namespace ballast::data {

PieceTrie::PieceTrie(std::span<const std::string> pieces, const std::vector<bool>& use) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    if (!pieces[i].empty() && (use.empty() || use[i])) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const int c = pieces[a].compare(pieces[b]);
    return c != 0 ? c < 0 : a < b;
  });

  // Node n stands for the pieces order[ranges[n].begin, end) that share its first `depth` bytes.
  // Nodes are made level by level, so the children of one lie together.
  struct Range {
    std::uint32_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, static_cast<std::uint32_t>(order.size()), 0}};
  nodes_.emplace_back();
  labels_.push_back('\0');
  for (std::size_t n = 0; n < ranges.size(); ++n) {
    auto [at, end, depth] = ranges[n];
    while (at < end && pieces[order[at]].size() == depth) {  // sorted: these come first
      nodes_[n].value = static_cast<std::int32_t>(order[at++]);
    }
    nodes_[n].first = static_cast<std::uint32_t>(nodes_.size());
    while (at < end) {
      const char label = pieces[order[at]][depth];
      const std::uint32_t begin = at;
      while (at < end && pieces[order[at]][depth] == label) ++at;
      nodes_.emplace_back();
      labels_.push_back(label);
      ranges.push_back({begin, at, depth + 1});
      ++nodes_[n].children;
    }
  }
  for (std::uint32_t i = 0; i < nodes_[kRoot].children; ++i) {
    const std::uint32_t child = nodes_[kRoot].first + i;
    first_[static_cast<unsigned char>(labels_[child])] = child;
  }
}

}  // namespace ballast::data
