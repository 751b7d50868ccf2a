#include "core/log.h"

#include "app/output.h"
#include "c_api/guard.h"

using namespace ballast::c_api;  // NOLINT(google-build-using-namespace): C functions stand outside

namespace {

constexpr int kProgressLevel = 3;  // ballast_c.h

}  // namespace

void ballast_set_log(ballast_log_function function, void* user) {
  namespace log = ballast::log;
  guarded(nullptr, [&] {
    if (function == nullptr) {
      log::set_sink({});
      return;
    }
    log::set_sink({.line =
                       [function, user](log::Level level, std::string_view text) {
                         function(static_cast<int>(level), std::string(text).c_str(), user);
                       },
                   .progress =
                       [function, user](const log::ProgressRecord& p) {
                         function(kProgressLevel, ballast::progress_json(p).c_str(), user);
                       }});
  });
}
