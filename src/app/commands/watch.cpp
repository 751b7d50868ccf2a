#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "app/command.h"
#include "app/output.h"
#include "app/watch_server.h"
#include "core/error.h"
#include "core/log.h"
#include "core/sandbox.h"

namespace ballast {
namespace {

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fail(ErrorCode::io, fmt::format("no random numbers: {}", std::strerror(errno)));
  }
  std::string text;
  for (const unsigned char b : bytes) text += fmt::format("{:02x}", b);
  return text;
}

// ballast watch RUN: a page in the browser that shows a run while it trains. It reads the files of
// the run's folder and nothing else; the run knows nothing of it.
class Watch : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("run", run_, "folder of a run, or an output_dir: all its runs")->required();
    app.add_option("--port", port_, "port of the page; 0: a free one")
        ->check(CLI::Range(0, 65535))
        ->capture_default_str();
    app.add_option("--host", hosts_,
                   "an address to listen at instead of this machine's own, such as 0.0.0.0, or a "
                   "name that the page is asked for by; may be repeated. Nothing is encrypted");
    app.add_option("--linger", linger_,
                   "end so many seconds after the run, and print nothing after the address: as "
                   "`ballast train --serve` uses it");
  }

  void run() override {
    if (!std::filesystem::is_directory(run_)) {
      fail(ErrorCode::input, fmt::format("{} is no folder", printable(run_)),
           {{"ballast watch OUTPUT_DIR", "the output_dir of the config, or a run's folder in it"}});
    }
    const WatchListen listen = listen_at();
    const std::unique_ptr<WatchServer> server = open_watch_server(listen);
    WatchOptions options = {.folder = run_, .token = random_token()};
    // Browsers send a cookie to all ports of a host.
    options.cookie = fmt::format("ballast_{}", server->port());
    options.hosts.insert(options.hosts.end(), hosts_.begin(), hosts_.end());
    const std::string shown = listen.addresses[0].find(':') == std::string::npos
                                  ? listen.addresses[0]
                                  : "[" + listen.addresses[0] + "]";
    print(fmt::format("live page: http://{}:{}/?token={}\n",
                      shown == "0.0.0.0" ? "127.0.0.1" : shown, server->port(), options.token));
    WatchRoutes routes(std::move(options));
    if (linger_ >= 0) close_output();
    // What doctor looks at beside the run's folder.
    const std::array<std::string, 4> readable = {std::filesystem::absolute(run_).string(), "/proc",
                                                 "/sys/fs/cgroup", "/dev/kmsg"};
    restrict_to_reading(readable);
    server->run(routes, [&] { return is_over(routes); });
  }

 private:
  WatchListen listen_at() const;
  bool is_over(const WatchRoutes& routes);
  static void close_output();

  std::string run_;
  int port_ = 8080;
  std::vector<std::string> hosts_;
  double linger_ = -1;
  const pid_t parent_ = ::getppid();
  bool seen_ = false;       // the run in progress
  double over_since_ = -1;  // of a steady clock
};

const RegisterCommand<Watch> kWatch("watch", "a live page of a run in the browser");

WatchListen Watch::listen_at() const {
  WatchListen listen;
  listen.port = port_;
  std::vector<std::string> addresses;
  for (const std::string& h : hosts_) {
    if (h.find_first_not_of("0123456789.") == h.npos || h.find(':') != h.npos) {
      addresses.push_back(h);
    }
  }
  if (addresses.empty()) return listen;
  listen.addresses = addresses;
  log::warn(
      "what is sent is not encrypted: who reads the network reads the run and the token. "
      "ssh -L {0}:127.0.0.1:{0} HOST needs no --host",
      port_);
  return listen;
}

// Whoever reads the output of a training run is not kept waiting by its page.
void Watch::close_output() {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) return;
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, fd);
  ::close(nothing);
}

bool Watch::is_over(const WatchRoutes& routes) {
  if (linger_ < 0) return false;
  std::error_code unknown;
  if (!std::filesystem::is_directory(run_, unknown)) return true;
  const bool running = routes.any_running();
  seen_ = seen_ || running;
  const bool over = !running && (seen_ || ::getppid() != parent_);
  if (!over) {
    over_since_ = -1;
    return false;
  }
  if (over_since_ < 0) over_since_ = routes.steady_now();
  return routes.steady_now() - over_since_ >= linger_;
}

}  // namespace
}  // namespace ballast
