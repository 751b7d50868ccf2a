#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/to_size.h"

namespace ballast::test {

// An HTTP server on this machine: answers each request with the next of its answers (the last one
// again and again) and keeps what it was sent.
class HttpServer {
 public:
  static constexpr const char* kSecret = "s3cr3t-t0ken";  // in its address

  struct Request {
    std::string head;
    std::string body;
  };

  explicit HttpServer(std::vector<std::string> answers) : answers_(std::move(answers)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_, any, size) != 0 || ::listen(listener_, 16) != 0 ||
        ::getsockname(listener_, any, &size) != 0) {
      throw std::runtime_error("no server");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~HttpServer() { stop(); }

  void stop() {
    if (!thread_.joinable()) return;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::string url(const std::string& path = "/api/webhooks/1/") const {
    return "http://127.0.0.1:" + std::to_string(port_) + path + kSecret;
  }
  std::vector<Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    for (;;) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      answer(client);
      ::close(client);
    }
  }
  void answer(int client) {
    std::string text;
    std::size_t head = std::string::npos, wanted = 0;
    char piece[4096];
    while (head == std::string::npos || text.size() < head + wanted) {
      const ssize_t got = ::recv(client, piece, sizeof piece, 0);
      if (got <= 0) return;
      text.append(piece, to_size(got));
      if (head != std::string::npos) continue;
      const std::size_t end = text.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      head = end + 4;
      const std::size_t length = text.find("Content-Length: ");
      wanted = std::strtoul(text.c_str() + length + 16, nullptr, 10);
      if (text.find("Expect: 100-continue") < head) {
        ::send(client, "HTTP/1.1 100 Continue\r\n\r\n", 25, MSG_NOSIGNAL);
      }
    }
    std::string reply;
    {
      const std::lock_guard lock(mutex_);
      reply = answers_[std::min(requests_.size(), answers_.size() - 1)];
      requests_.push_back({text.substr(0, head), text.substr(head)});
    }
    ::send(client, reply.data(), reply.size(), MSG_NOSIGNAL);
    ::shutdown(client, SHUT_WR);
    while (::recv(client, piece, sizeof piece, 0) > 0) {
    }
  }

  std::vector<std::string> answers_;
  int listener_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

}  // namespace ballast::test
