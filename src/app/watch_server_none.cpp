#include "app/watch_server.h"
#include "core/error.h"

namespace ballast {

std::unique_ptr<WatchServer> open_watch_server(const WatchListen&) {
  fail(ErrorCode::usage, "this build has no live page: the headers of libmicrohttpd were missing",
       {{"apt install libmicrohttpd-dev, then scripts/build.sh", "builds the program with it"},
        {"ballast report RUN", "writes a page that needs no server"}});
}

}  // namespace ballast
