#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <string_view>
#include <type_traits>

#include "report/http_post.h"

namespace ballast {
namespace {

constexpr std::size_t kMaxBody = 64 << 10;

std::optional<double> seconds_of(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == ':')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value < 0) return std::nullopt;
  return value;
}

struct Received {
  HttpAnswer answer;
  std::string body;
};

std::size_t take_header(const char* data, std::size_t, std::size_t size, void* to) {
  HttpAnswer& answer = static_cast<Received*>(to)->answer;
  const std::string_view line(data, size);
  const std::string_view value = line.substr(std::min(line.find(':'), size));
  std::string name(line.substr(0, line.size() - value.size()));
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  if (name == "retry-after") answer.retry_after = seconds_of(value);
  if (name == "x-ratelimit-reset-after") answer.reset_after = seconds_of(value);
  if (name == "x-ratelimit-remaining") {
    if (const auto n = seconds_of(value)) answer.remaining = static_cast<int>(std::min(*n, 1e6));
  }
  return size;
}

std::size_t take_body(const char* data, std::size_t, std::size_t size, void* to) {
  std::string& body = static_cast<Received*>(to)->body;
  body.append(data, std::min(size, kMaxBody - std::min(body.size(), kMaxBody)));
  return size;
}

// libcurl is loaded by the first webhook, not with the program: it and the 26 libraries behind it
// would add 1.1 MB of anonymous memory to every run's baseline.
struct Curl {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_setopt) set;
  decltype(&curl_easy_perform) perform;
  decltype(&curl_easy_getinfo) get_info;
  decltype(&curl_easy_strerror) text_of;
  decltype(&curl_slist_append) list_append;
  decltype(&curl_slist_free_all) list_free;
};

std::optional<Curl> load_curl() {
  void* const library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  Curl curl;
  const auto load = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
  const bool whole =
      load(curl.global_init, "curl_global_init") && load(curl.easy_init, "curl_easy_init") &&
      load(curl.easy_cleanup, "curl_easy_cleanup") && load(curl.set, "curl_easy_setopt") &&
      load(curl.perform, "curl_easy_perform") && load(curl.get_info, "curl_easy_getinfo") &&
      load(curl.text_of, "curl_easy_strerror") && load(curl.list_append, "curl_slist_append") &&
      load(curl.list_free, "curl_slist_free_all");
  if (!whole || curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return std::nullopt;
  return curl;
}

const std::optional<Curl>& library() {
  static const std::optional<Curl> curl = load_curl();
  return curl;
}

}  // namespace

bool http_available() { return library().has_value(); }

HttpAnswer http_post(const std::string& url, const std::string& body, int timeout_ms) {
  Received received;
  if (!library()) {
    received.answer.problem = "libcurl.so.4 cannot be loaded";
    return received.answer;
  }
  const Curl& curl = *library();
  const std::unique_ptr<CURL, decltype(curl.easy_cleanup)> easy(curl.easy_init(),
                                                                curl.easy_cleanup);
  const std::unique_ptr<curl_slist, decltype(curl.list_free)> headers(
      curl.list_append(nullptr, "Content-Type: application/json"), curl.list_free);
  if (!easy || !headers) {
    received.answer.problem = "libcurl does not start";
    return received.answer;
  }
  CURL* const c = easy.get();
  curl.set(c, CURLOPT_URL, url.c_str());
  curl.set(c, CURLOPT_PROTOCOLS_STR, "http,https");
  curl.set(c, CURLOPT_FOLLOWLOCATION, 0L);
  curl.set(c, CURLOPT_NOSIGNAL, 1L);  // we are a thread among others
  curl.set(c, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_ms));
  curl.set(c, CURLOPT_USERAGENT, "ballast");
  curl.set(c, CURLOPT_HTTPHEADER, headers.get());
  curl.set(c, CURLOPT_POSTFIELDS, body.c_str());
  curl.set(c, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  curl.set(c, CURLOPT_HEADERFUNCTION, &take_header);
  curl.set(c, CURLOPT_HEADERDATA, &received);
  curl.set(c, CURLOPT_WRITEFUNCTION, &take_body);
  curl.set(c, CURLOPT_WRITEDATA, &received);
  const CURLcode code = curl.perform(c);
  if (code != CURLE_OK) {
    received.answer.problem = curl.text_of(code);  // a fixed text per code: no address in it
    return received.answer;
  }
  long status = 0;
  curl.get_info(c, CURLINFO_RESPONSE_CODE, &status);
  received.answer.status = static_cast<int>(status);
  constexpr std::string_view kKey = "\"retry_after\"";
  const std::size_t at = received.body.find(kKey);
  if (!received.answer.retry_after && at != std::string::npos) {
    received.answer.retry_after =
        seconds_of(std::string_view(received.body).substr(at + kKey.size()));
  }
  return received.answer;
}

}  // namespace ballast
