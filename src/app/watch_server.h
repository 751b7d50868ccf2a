#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "report/watch/routes.h"

namespace ballast {

// Serves the live page by libmicrohttpd, which is loaded for it (docs/decisions/0061).

struct WatchListen {
  std::vector<std::string> addresses = {"127.0.0.1", "::1"};  // numeric
  int port = 8080;                                            // 0: a free one
};

class WatchServer {
 public:
  virtual ~WatchServer() = default;
  virtual int port() const = 0;
  // Until SIGINT, SIGTERM or SIGHUP, or until done() is true; it is asked once a second.
  virtual void run(WatchRoutes& routes, const std::function<bool()>& done) = 0;
};

// Listens already. Fails where the library cannot be loaded (this build has no headers of it, or
// the machine no library) or the port is taken.
std::unique_ptr<WatchServer> open_watch_server(const WatchListen& listen);

}  // namespace ballast
