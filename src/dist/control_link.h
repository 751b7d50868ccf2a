#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dist/control_frames.h"
#include "memory/file_descriptor.h"

namespace ballast {

// One connection of the control channel: its socket, what has come and what waits to be sent. All
// memory is taken when it is made.
class ControlLink {
 public:
  static constexpr std::size_t kOutput = 2 * kMaxControlFrame;
  static constexpr std::size_t kBytes = kMaxControlFrame + kOutput;

  ControlLink() : in_(kMaxControlFrame), out_(kOutput), reader_(in_) {}

  bool is_open() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }
  void open(FileDescriptor fd);
  void close() { fd_ = FileDescriptor(); }

  // False: there is no room for it now, or the other side is gone.
  bool send(std::span<const std::byte> frame) noexcept;
  bool has_output() const { return sent_ < filled_; }
  void flush() noexcept;  // what the socket takes

  // Takes what has come, and gives each frame to `take`. False: the other side has closed, and all
  // that it sent has been taken. Fails with ErrorCode::input where it sent no frames.
  template <class Take>
  bool receive(Take&& take) {
    for (;;) {
      const long got = read_some();
      if (got == 0) return false;
      while (const auto frame = reader_.next()) {
        take(*frame);
        if (!is_open()) return true;
      }
      if (got < 0) return true;
    }
  }

 private:
  long read_some() noexcept;  // 0: closed; -1: nothing more for now

  FileDescriptor fd_;
  std::vector<std::byte> in_, out_;
  std::size_t sent_ = 0, filled_ = 0;
  ControlFrameReader reader_;
};

}  // namespace ballast
