#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace ballast {

// Keeps names side by side: a recording has hundreds of thousands of them. They stay where they are
// when the pool is moved, and a zero follows each.
class RecordedNames {
 public:
  // The scope and the name in it, in one.
  std::string_view add(std::string_view scope, std::string_view name) {
    const std::size_t size = scope.size() + name.size();
    if (chunks_.empty() || used_ + size + 1 > room_) {
      room_ = std::max(kChunk, size + 1);
      chunks_.push_back(std::make_unique<char[]>(room_));
      used_ = 0;
      bytes_ += room_;
    }
    char* const begin = chunks_.back().get() + used_;
    *std::ranges::copy(name, std::ranges::copy(scope, begin).out).out = '\0';
    used_ += size + 1;
    return {begin, size};
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kChunk = 16 << 10;

  std::vector<std::unique_ptr<char[]>> chunks_;
  std::size_t used_ = 0, room_ = 0;  // of the last one
  std::uint64_t bytes_ = 0;
};

}  // namespace ballast
