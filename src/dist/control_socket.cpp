#include "dist/control_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/checksum.h"
#include "core/error.h"

namespace ballast {
namespace {

constexpr int kBacklog = 256;

struct Address {
  sockaddr_un at{};
  socklen_t size = 0;
};

// Names of sockets are no secret (/proc/net/unix), the token is.
Address address_of(std::string_view token, int rank) {
  const std::string name = fmt::format("ballast-{}-{}", checksum_text(token), rank);
  Address a;
  a.at.sun_family = AF_UNIX;
  const std::size_t bytes = std::min(name.size(), sizeof(a.at.sun_path) - 1);
  std::memcpy(a.at.sun_path + 1, name.data(), bytes);
  a.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return a;
}

FileDescriptor new_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

const sockaddr* plain(const Address& a) { return reinterpret_cast<const sockaddr*>(&a.at); }

}  // namespace

FileDescriptor listen_for_ranks(std::string_view token, int rank) {
  FileDescriptor fd = new_socket();
  const Address at = address_of(token, rank);
  if (!fd || ::bind(fd.get(), plain(at), at.size) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    fail(ErrorCode::device, fmt::format("rank {} cannot listen for the other ranks: {}", rank,
                                        std::system_category().message(errno)));
  }
  return fd;
}

FileDescriptor accept_rank(const FileDescriptor& listener) {
  FileDescriptor fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return {};
  ucred other{};
  socklen_t size = sizeof(other);
  const bool known = ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0;
  return known && (other.uid == ::geteuid() || other.uid == 0) ? std::move(fd) : FileDescriptor();
}

FileDescriptor connect_to_rank(std::string_view token, int rank) {
  FileDescriptor fd = new_socket();
  const Address at = address_of(token, rank);
  if (!fd || ::connect(fd.get(), plain(at), at.size) != 0) return {};
  return fd;
}

}  // namespace ballast
