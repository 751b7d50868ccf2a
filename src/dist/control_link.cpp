#include "dist/control_link.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/to_size.h"

namespace ballast {

void ControlLink::open(FileDescriptor fd) {
  fd_ = std::move(fd);
  sent_ = filled_ = 0;
  reader_ = ControlFrameReader(in_);
}

bool ControlLink::send(std::span<const std::byte> frame) noexcept {
  if (!is_open()) return false;
  flush();
  if (filled_ + frame.size() > out_.size() && sent_ > 0) {
    std::memmove(out_.data(), out_.data() + sent_, filled_ - sent_);
    filled_ -= sent_;
    sent_ = 0;
  }
  if (filled_ + frame.size() > out_.size()) return false;
  std::memcpy(out_.data() + filled_, frame.data(), frame.size());
  filled_ += frame.size();
  flush();
  return true;
}

void ControlLink::flush() noexcept {
  while (is_open() && has_output()) {
    const ssize_t put =
        ::send(fd(), out_.data() + sent_, filled_ - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;  // a closed connection is seen when it is read
    sent_ += to_size(put);
  }
  if (!has_output()) sent_ = filled_ = 0;
}

long ControlLink::read_some() noexcept {
  const auto to = reader_.space();
  for (;;) {
    const ssize_t got = ::recv(fd(), to.data(), to.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? -1 : 0;
    if (got > 0) reader_.received(to_size(got));
    return got;
  }
}

}  // namespace ballast
