#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace ballast {

// Names a tensor of a recorded program. Cheap to copy; there is no memory behind it until it is
// run.
struct Buffer {
  static constexpr std::uint32_t kNone = ~0u;
  std::uint32_t id = kNone;

  explicit operator bool() const { return id != kNone; }
  friend bool operator==(Buffer, Buffer) = default;
};

// What an instruction reads or writes: mostly a few, which are kept inside.
class BufferList {
 public:
  using value_type = Buffer;
  using const_iterator = const Buffer*;
  using iterator = const_iterator;

  BufferList() = default;
  BufferList(std::initializer_list<Buffer> all) { append({all.begin(), all.size()}); }
  BufferList(const std::vector<Buffer>& all) { append(all); }
  BufferList(const BufferList& o) { append({o.begin(), o.size()}); }
  // Instructions are moved more often than they are made: what is there is copied, once.
  BufferList(BufferList&& o) noexcept
      : size_(std::exchange(o.size_, 0)),
        capacity_(std::exchange(o.capacity_, kInlineCapacity)),
        inline_(o.inline_),
        more_(std::move(o.more_)) {}
  BufferList& operator=(BufferList o) noexcept {
    size_ = o.size_;
    capacity_ = o.capacity_;
    inline_ = o.inline_;
    more_ = std::move(o.more_);
    return *this;
  }

  void push_back(Buffer b) {
    if (size_ == capacity_) grow();
    data()[size_++] = b;
  }
  void append(std::span<const Buffer> all) {
    while (size_ + all.size() > capacity_) grow();
    std::ranges::copy(all, data() + size_);
    size_ += static_cast<std::uint32_t>(all.size());
  }
  void append(std::initializer_list<Buffer> all) { append({all.begin(), all.size()}); }
  // Leaves out operands that are not there.
  void drop_absent() {
    size_ = static_cast<std::uint32_t>(std::remove(data(), data() + size_, Buffer()) - data());
  }

  const Buffer* begin() const { return more_ ? more_.get() : inline_.data(); }
  const Buffer* end() const { return begin() + size_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Buffer operator[](std::size_t i) const { return begin()[i]; }
  std::uint64_t heap_bytes() const { return more_ ? capacity_ * sizeof(Buffer) : 0; }

  friend bool operator==(const BufferList& a, const BufferList& b) {
    return std::ranges::equal(a, b);
  }

 private:
  static constexpr std::uint32_t kInlineCapacity = 6;

  Buffer* data() { return more_ ? more_.get() : inline_.data(); }
  void grow() {
    auto larger = std::make_unique<Buffer[]>(2 * capacity_);
    std::copy(begin(), end(), larger.get());
    more_ = std::move(larger);
    capacity_ *= 2;
  }

  std::uint32_t size_ = 0, capacity_ = kInlineCapacity;
  std::array<Buffer, kInlineCapacity> inline_;
  std::unique_ptr<Buffer[]> more_;  // all of them, where they are more
};

}  // namespace ballast
