#pragma once

#include <optional>
#include <string>

namespace ballast {

// What a server said. problem never contains the address: it may be a secret.
struct HttpAnswer {
  int status = 0;                     // 0: there was no answer
  std::string problem;                // then why
  std::optional<double> retry_after;  // seconds, of the header or the JSON body
  std::optional<double> reset_after;  // X-RateLimit-Reset-After
  std::optional<int> remaining;       // X-RateLimit-Remaining
};

// Whether this build can send at all and libcurl is installed. The two implementations are
// webhook_curl.cpp and webhook_none.cpp; CMake takes the first where it finds curl's headers.
bool http_available();

// Posts a JSON body, to http and https addresses only, and follows no redirects. Never throws.
// For one thread at a time.
HttpAnswer http_post(const std::string& url, const std::string& body, int timeout_ms);

}  // namespace ballast
