#include <arpa/inet.h>
#include <dlfcn.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <type_traits>

#include "app/watch_server.h"
#include "core/error.h"
#include "core/to_size.h"

namespace ballast {
namespace {

constexpr unsigned kMaxConnections = 16, kMaxOfOneAddress = 8;
constexpr std::size_t kConnectionMemory = 16 << 10;  // bounds the head of a request, too
constexpr unsigned kIdleSeconds = 60;
constexpr double kHeadSeconds = 10;
constexpr int kTickMs = 100, kIdleTickMs = 1000;
constexpr double kNever = std::numeric_limits<double>::infinity();

struct Microhttpd {
  decltype(&MHD_start_daemon) start_daemon;
  decltype(&MHD_stop_daemon) stop_daemon;
  decltype(&MHD_run) run;
  decltype(&MHD_get_timeout) get_timeout;
  decltype(&MHD_get_daemon_info) get_daemon_info;
  decltype(&MHD_get_connection_info) get_connection_info;
  decltype(&MHD_get_connection_values) get_connection_values;
  decltype(&MHD_create_response_from_buffer) from_buffer;
  decltype(&MHD_create_response_from_fd_at_offset64) from_file;
  decltype(&MHD_create_response_from_callback) from_callback;
  decltype(&MHD_add_response_header) add_header;
  decltype(&MHD_queue_response) queue_response;
  decltype(&MHD_destroy_response) destroy_response;
  decltype(&MHD_suspend_connection) suspend;
  decltype(&MHD_resume_connection) resume;
};

std::optional<Microhttpd> load_microhttpd() {
  void* const library = ::dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  Microhttpd m;
  const auto load = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
  const bool whole =
      load(m.start_daemon, "MHD_start_daemon") && load(m.stop_daemon, "MHD_stop_daemon") &&
      load(m.run, "MHD_run") && load(m.get_timeout, "MHD_get_timeout") &&
      load(m.get_daemon_info, "MHD_get_daemon_info") &&
      load(m.get_connection_info, "MHD_get_connection_info") &&
      load(m.get_connection_values, "MHD_get_connection_values") &&
      load(m.from_buffer, "MHD_create_response_from_buffer") &&
      load(m.from_file, "MHD_create_response_from_fd_at_offset64") &&
      load(m.from_callback, "MHD_create_response_from_callback") &&
      load(m.add_header, "MHD_add_response_header") &&
      load(m.queue_response, "MHD_queue_response") &&
      load(m.destroy_response, "MHD_destroy_response") &&
      load(m.suspend, "MHD_suspend_connection") && load(m.resume, "MHD_resume_connection");
  return whole ? std::optional(m) : std::nullopt;
}

const Microhttpd& library() {
  static const std::optional<Microhttpd> loaded = load_microhttpd();
  if (!loaded) {
    fail(ErrorCode::io, "the live page needs libmicrohttpd.so.12, which cannot be loaded",
         {{"apt install libmicrohttpd12", "the library (Debian, Ubuntu)"},
          {"ballast report RUN", "writes a page that needs no server"}});
  }
  return *loaded;
}

struct ListenAddress {
  sockaddr_storage address = {};
  socklen_t size = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&address); }
};

std::optional<ListenAddress> address_of(const std::string& text, int port) {
  ListenAddress a;
  const auto port_bytes = htons(static_cast<std::uint16_t>(port));
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&a.address);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&a.address);
  if (::inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = port_bytes;
    a.size = sizeof *v4;
    return a;
  }
  if (::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = port_bytes;
    a.size = sizeof *v6;
    return a;
  }
  return std::nullopt;
}

// A socket that listens; none where the machine has no such address, as ::1 without IPv6.
FileDescriptor listening_socket(const std::string& text, int port) {
  auto address = address_of(text, port);
  if (!address) {
    fail(ErrorCode::usage, fmt::format("--host {}: expected an address such as 0.0.0.0", text));
  }
  const int family = address->address.ss_family;
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd && errno == EAFNOSUPPORT) return {};
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (::bind(fd.get(), address->get(), address->size) == 0 && ::listen(fd.get(), 16) == 0) {
    return fd;
  }
  if (errno == EADDRNOTAVAIL && text == "::1") return {};
  if (errno == EADDRINUSE) {
    fail(ErrorCode::io, fmt::format("port {} of {} is taken by another program", port, text),
         {{fmt::format("--port {}", port + 1), "another port"}, {"--port 0", "any free port"}});
  }
  fail(ErrorCode::io, fmt::format("{} port {}: {}", text, port, std::strerror(errno)));
}

int port_of(const FileDescriptor& socket) {
  ListenAddress a;
  a.size = sizeof a.address;
  if (::getsockname(socket.get(), a.get(), &a.size) != 0) return 0;
  const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&a.address);
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&a.address);
  return ntohs(a.address.ss_family == AF_INET ? v4->sin_port : v6->sin6_port);
}

class MicrohttpdServer : public WatchServer {
 public:
  explicit MicrohttpdServer(const WatchListen& listen) : api_(library()), port_(listen.port) {
    for (const std::string& address : listen.addresses) {
      FileDescriptor socket = listening_socket(address, port_);
      if (!socket) continue;
      if (port_ == 0) port_ = port_of(socket);
      sockets_.push_back(std::move(socket));
    }
    if (sockets_.empty())
      fail(ErrorCode::io, "this machine has none of the addresses to listen at");
  }
  ~MicrohttpdServer() override { stop(); }

  int port() const override { return port_; }
  void run(WatchRoutes& routes, const std::function<bool()>& done) override;

 private:
  // A connection, from when it is accepted.
  struct Client {
    int socket = -1;
    double deadline = kNever;  // of the head of its next request
  };
  struct Request {
    std::string target;
  };
  struct Stream {
    MicrohttpdServer* server = nullptr;
    MHD_Connection* connection = nullptr;
    int socket = -1;
    std::unique_ptr<EventStream> events;
    bool suspended = false, over = false;
  };

  static void* on_target(void*, const char* uri, MHD_Connection*);
  static MHD_Result on_request(void* self, MHD_Connection*, const char*, const char* method,
                               const char*, const char*, std::size_t*, void** context);
  static void on_completed(void* self, MHD_Connection*, void** context, MHD_RequestTerminationCode);
  static void on_connection(void* self, MHD_Connection*, void** context,
                            MHD_ConnectionNotificationCode what);
  static ssize_t read_stream(void* stream, std::uint64_t, char* to, std::size_t bytes);
  static void free_stream(void* stream);

  void start(FileDescriptor socket);
  void stop();
  void tick();
  int timeout_ms() const;
  Client* client_of(MHD_Connection* c) const;
  MHD_Result send(MHD_Connection* c, WatchAnswer answer, bool head);
  MHD_Response* response_of(MHD_Connection* c, WatchAnswer& answer);

  const Microhttpd& api_;
  int port_;
  std::vector<FileDescriptor> sockets_;  // until the daemons have them
  std::vector<MHD_Daemon*> daemons_;
  WatchRoutes* routes_ = nullptr;
  std::list<Client> clients_;
  std::list<Stream> streams_;
};

// MHD's own threads would be two for each daemon; its epoll descriptors go into our poll() instead.
void MicrohttpdServer::start(FileDescriptor socket) {
  MHD_Daemon* const daemon = api_.start_daemon(
      MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr, nullptr, &on_request, this,
      MHD_OPTION_LISTEN_SOCKET, socket.get(), MHD_OPTION_CONNECTION_LIMIT, kMaxConnections,
      MHD_OPTION_PER_IP_CONNECTION_LIMIT, kMaxOfOneAddress, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      kConnectionMemory, MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds, MHD_OPTION_URI_LOG_CALLBACK,
      &on_target, this, MHD_OPTION_NOTIFY_COMPLETED, &on_completed, this,
      MHD_OPTION_NOTIFY_CONNECTION, &on_connection, this, MHD_OPTION_END);
  if (daemon == nullptr) fail(ErrorCode::io, "libmicrohttpd does not start");
  (void)socket.release();  // the daemon closes it
  daemons_.push_back(daemon);
}

// A daemon that stops with suspended connections ends the process: they are resumed first.
void MicrohttpdServer::stop() {
  for (Stream& s : streams_) {
    s.over = true;
    if (std::exchange(s.suspended, false)) api_.resume(s.connection);
  }
  for (MHD_Daemon* d : daemons_) {
    api_.run(d);
    api_.stop_daemon(d);
  }
  daemons_.clear();
}

MicrohttpdServer::Client* MicrohttpdServer::client_of(MHD_Connection* c) const {
  const auto* const info = api_.get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info == nullptr ? nullptr : static_cast<Client*>(info->socket_context);
}

void MicrohttpdServer::on_connection(void* self, MHD_Connection* c, void** context,
                                     MHD_ConnectionNotificationCode what) {
  auto& server = *static_cast<MicrohttpdServer*>(self);
  if (what == MHD_CONNECTION_NOTIFY_STARTED) {
    const auto* const info = server.api_.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    server.clients_.push_back({.socket = info == nullptr ? -1 : info->connect_fd,
                               .deadline = server.routes_->steady_now() + kHeadSeconds});
    *context = &server.clients_.back();
    return;
  }
  server.clients_.remove_if([&](const Client& client) { return &client == *context; });
}

// The target as it was sent: MHD would have undone its escapes.
void* MicrohttpdServer::on_target(void*, const char* uri, MHD_Connection*) {
  return new Request{uri};
}

void MicrohttpdServer::on_completed(void* self, MHD_Connection* c, void** context,
                                    MHD_RequestTerminationCode) {
  auto& server = *static_cast<MicrohttpdServer*>(self);
  delete static_cast<Request*>(*context);
  *context = nullptr;
  if (Client* const client = server.client_of(c)) {
    client->deadline = server.routes_->steady_now() + kHeadSeconds;
  }
}

// What a request's head says. A header that is there twice says nothing.
struct HeadFields {
  std::string host, cookie, authorization, range, last_event_id;

  static MHD_Result take(void* self, MHD_ValueKind, const char* name, const char* value) {
    auto& fields = *static_cast<HeadFields*>(self);
    const auto is = [&](const char* n) { return ::strcasecmp(name, n) == 0; };
    std::string* const to = is("Host")            ? &fields.host
                            : is("Cookie")        ? &fields.cookie
                            : is("Authorization") ? &fields.authorization
                            : is("Range")         ? &fields.range
                            : is("Last-Event-ID") ? &fields.last_event_id
                                                  : nullptr;
    if (to == nullptr || value == nullptr) return MHD_YES;
    *to = to->empty() ? value : "\x01";
    return MHD_YES;
  }
};

MHD_Result MicrohttpdServer::on_request(void* self, MHD_Connection* c, const char*,
                                        const char* method, const char*, const char*, std::size_t*,
                                        void** context) {
  auto& server = *static_cast<MicrohttpdServer*>(self);
  const auto* const request = static_cast<const Request*>(*context);
  if (request == nullptr) return MHD_NO;
  if (Client* const client = server.client_of(c)) client->deadline = kNever;
  // C code calls this: nothing may be thrown through it.
  try {
    HeadFields fields;
    server.api_.get_connection_values(c, MHD_HEADER_KIND, &HeadFields::take, &fields);
    return server.send(c,
                       server.routes_->answer({.method = method,
                                               .target = request->target,
                                               .host = fields.host,
                                               .cookie = fields.cookie,
                                               .authorization = fields.authorization,
                                               .range = fields.range,
                                               .last_event_id = fields.last_event_id}),
                       std::strcmp(method, "HEAD") == 0);
  } catch (const std::exception&) {
    return MHD_NO;  // the connection is closed
  }
}

MHD_Response* MicrohttpdServer::response_of(MHD_Connection* c, WatchAnswer& answer) {
  constexpr std::size_t kPiece = 8 << 10;
  if (answer.events) {
    const auto* const info = api_.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    streams_.push_back({.server = this,
                        .connection = c,
                        .socket = info == nullptr ? -1 : info->connect_fd,
                        .events = std::move(answer.events)});
    return api_.from_callback(MHD_SIZE_UNKNOWN, kPiece, &read_stream, &streams_.back(),
                              &free_stream);
  }
  if (answer.file) {
    MHD_Response* const r =
        api_.from_file(answer.range.bytes, answer.file.get(), answer.range.begin);
    if (r != nullptr) (void)answer.file.release();  // the response closes it
    return r;
  }
  if (!answer.asset.empty()) {
    return api_.from_buffer(answer.asset.size(), const_cast<char*>(answer.asset.data()),
                            MHD_RESPMEM_PERSISTENT);
  }
  return api_.from_buffer(answer.body.size(), answer.body.data(), MHD_RESPMEM_MUST_COPY);
}

MHD_Result MicrohttpdServer::send(MHD_Connection* c, WatchAnswer answer, bool head) {
  if (head) answer.events.reset();  // its body would never be read, nor end
  MHD_Response* const response = response_of(c, answer);
  if (response == nullptr) return MHD_NO;
  for (const auto& [name, value] : answer.headers) {
    api_.add_header(response, name.c_str(), value.c_str());
  }
  const MHD_Result queued = api_.queue_response(c, static_cast<unsigned>(answer.status), response);
  api_.destroy_response(response);
  return queued;
}

ssize_t MicrohttpdServer::read_stream(void* stream, std::uint64_t, char* to, std::size_t bytes) {
  auto& s = *static_cast<Stream*>(stream);
  if (s.over) return MHD_CONTENT_READER_END_OF_STREAM;
  const std::size_t n = s.events->take(to, bytes);
  if (n > 0) return static_cast<ssize_t>(n);
  s.suspended = true;
  s.server->api_.suspend(s.connection);
  return 0;
}

void MicrohttpdServer::free_stream(void* stream) {
  auto* const gone = static_cast<Stream*>(stream);
  gone->server->streams_.remove_if([&](const Stream& s) { return &s == gone; });
}

// Of a connection that the library does not look at while it is suspended.
bool is_gone(int socket) {
  char byte = 0;
  return ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

void MicrohttpdServer::tick() {
  const double now = routes_->steady_now();
  for (Client& c : clients_) {
    if (now < c.deadline) continue;
    ::shutdown(c.socket, SHUT_RDWR);
    c.deadline = kNever;
  }
  for (Stream& s : streams_) {
    bool wakes = false;
    try {
      wakes = s.events->poll(now, routes_->now());
      s.over = s.over || s.events->is_too_slow() || (s.suspended && is_gone(s.socket));
    } catch (const Error&) {
      s.over = true;  // the folder is gone
    }
    // One that does not read is not asked for more either.
    if (s.over && !s.suspended) ::shutdown(s.socket, SHUT_RDWR);
    if ((wakes || s.over) && std::exchange(s.suspended, false)) api_.resume(s.connection);
  }
}

int MicrohttpdServer::timeout_ms() const {
  unsigned long long least = streams_.empty() ? kIdleTickMs : kTickMs;
  for (MHD_Daemon* d : daemons_) {
    MHD_UNSIGNED_LONG_LONG own = 0;
    if (api_.get_timeout(d, &own) == MHD_YES) least = std::min<unsigned long long>(least, own);
  }
  return static_cast<int>(least);
}

void MicrohttpdServer::run(WatchRoutes& routes, const std::function<bool()>& done) {
  routes_ = &routes;
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, signal);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  const FileDescriptor signals(::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
  for (FileDescriptor& s : sockets_) start(std::move(s));
  sockets_.clear();
  std::vector<pollfd> watched = {{.fd = signals.get(), .events = POLLIN, .revents = 0}};
  for (MHD_Daemon* d : daemons_) {
    const auto* const info = api_.get_daemon_info(d, MHD_DAEMON_INFO_EPOLL_FD);
    if (info == nullptr) fail(ErrorCode::io, "libmicrohttpd has no epoll on this system");
    watched.push_back({.fd = info->epoll_fd, .events = POLLIN, .revents = 0});
  }
  double next_tick = 0, next_question = 0;
  while (true) {
    const int n = ::poll(watched.data(), watched.size(), timeout_ms());
    if (n < 0 && errno != EINTR) fail(ErrorCode::io, fmt::format("poll: {}", std::strerror(errno)));
    if (watched[0].revents != 0) break;
    const double now = routes.steady_now();
    if (now >= next_tick) {
      next_tick = now + 1e-3 * kTickMs;
      tick();
    }
    for (MHD_Daemon* d : daemons_) api_.run(d);
    if (now >= next_question) {
      next_question = now + 1;
      if (done()) break;
    }
  }
  stop();
}

}  // namespace

std::unique_ptr<WatchServer> open_watch_server(const WatchListen& listen) {
  return std::make_unique<MicrohttpdServer>(listen);
}

}  // namespace ballast
