#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace ballast::data {

// Finds the pieces of a vocabulary that a text begins with, byte by byte:
//
//   std::uint32_t node = PieceTrie::kRoot;
//   for (; at < end && trie.step(node, *at); ++at) {
//     if (trie.value(node) >= 0) ...  // the piece that ends here
//   }
//
// Children of a node lie side by side, so a step is a search among their labels; most nodes have a
// few, and the root, where every search begins, has a table.
class PieceTrie {
 public:
  static constexpr std::uint32_t kRoot = 0;

  // Value i belongs to pieces[i]; empty pieces are left out, and so are those for which `use` is
  // false. Of equal pieces the last counts. `use` is empty (all) or as long as `pieces`.
  explicit PieceTrie(std::span<const std::string> pieces, const std::vector<bool>& use = {});

  // Goes to the child of that label; false, and stays, where there is none.
  bool step(std::uint32_t& node, char label) const {
    if (node == kRoot) {
      const std::uint32_t child = first_[static_cast<unsigned char>(label)];
      if (child != kRoot) node = child;
      return child != kRoot;
    }
    const Node& n = nodes_[node];
    const char* const first = labels_.data() + n.first;
    if (n.children <= kMaxScanned) {  // a call of memchr costs more than they do
      for (std::uint32_t i = 0; i < n.children; ++i) {
        if (first[i] != label) continue;
        node = n.first + i;
        return true;
      }
      return false;
    }
    const void* found = std::memchr(first, static_cast<unsigned char>(label), n.children);
    if (found == nullptr) return false;
    node = n.first + static_cast<std::uint32_t>(static_cast<const char*>(found) - first);
    return true;
  }
  std::int32_t value(std::uint32_t node) const { return nodes_[node].value; }  // -1: none
  bool empty() const { return nodes_.size() == 1; }

 private:
  static constexpr std::uint32_t kMaxScanned = 8;
  struct Node {
    std::uint32_t first = 0;  // of its children
    std::uint32_t children = 0;
    std::int32_t value = -1;
  };

  std::vector<Node> nodes_;                    // by depth, then in order of the pieces
  std::vector<char> labels_;                   // of each node, the byte that leads to it
  std::array<std::uint32_t, 256> first_ = {};  // children of the root by label; kRoot: none
};

}  // namespace ballast::data
