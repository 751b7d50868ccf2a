// Requests to the live page of a run whose log is part of the input. Lines: method, target, host,
// cookie, authorization, range, last event id; the rest is the log.

#include <filesystem>
#include <fstream>

#include "fuzz.h"
#include "io/utf8.h"
#include "report/run_log.h"
#include "report/watch/routes.h"

namespace ballast::fuzz {
namespace {

constexpr std::string_view kToken = "0123456789abcdef0123456789abcdef";
constexpr std::string_view kSecret = "outside of the run";

// A run with a preview, and beside it what must not be handed out.
const std::string& run_folder() {
  static const std::string folder = [] {
    const std::string path = memory_folder() + "/runs/run";
    std::filesystem::create_directories(path + "/previews");
    for (const char* name : {"/../secret.png", "/secret.png", "/previews/.secret.png"}) {
      std::ofstream(path + name) << kSecret;
    }
    std::filesystem::create_symlink("../secret.png", path + "/previews/link.png");
    std::ofstream(path + "/previews/a.png") << "0123456789";
    std::ofstream(path + "/plan.json") << "{\"seconds_per_step\":1}";
    return path;
  }();
  return folder;
}

// The whole of an answer, as a browser would get it.
std::string content_of(WatchAnswer& a) {
  if (a.events) {
    std::string text;
    for (int i = 0; i < 100 && a.events->poll(i, 1.8e9); ++i) {
      std::string piece(4096, '\0');
      piece.resize(a.events->take(piece.data(), piece.size()));
      text += piece;
    }
    return text;
  }
  if (a.file) {
    const auto facts = facts_of(a.file);
    require(facts && a.range.begin <= facts->size && a.range.bytes <= facts->size - a.range.begin);
    return read_at(a.file, a.range.begin, a.range.bytes);
  }
  return a.asset.empty() ? a.body : std::string(a.asset);
}

}  // namespace

void one_input(Input input) {
  const std::string folder = run_folder();
  if (input.rest().find(kSecret) != std::string_view::npos) return;  // it may tell itself
  WatchRequest r;
  std::string_view* const fields[] = {&r.method,        &r.target, &r.host,         &r.cookie,
                                      &r.authorization, &r.range,  &r.last_event_id};
  for (std::string_view* f : fields) *f = input.line();
  std::ofstream(folder + "/" + std::string(kRunLogFile), std::ios::binary | std::ios::trunc)
      << input.rest();
  static WatchRoutes routes({.folder = folder,
                             .token = std::string(kToken),
                             .now = [] { return 1.8e9; },
                             .steady_now = [] { return 0.0; }});
  WatchAnswer a = routes.answer(r);
  const std::string content = content_of(a);
  require(a.status >= 200 && a.status <= 503);
  // Nothing from outside, and nothing at all without the token and one of our names.
  require(content.find(kSecret) == content.npos);
  const bool knows = r.cookie.find(kToken) != r.cookie.npos ||
                     r.authorization.find(kToken) != r.authorization.npos;
  require(a.status >= 300 || (knows && (r.method == "GET" || r.method == "HEAD")));
  for (const auto& [name, value] : a.headers) {
    require(value.find_first_of("\r\n") == value.npos && !name.starts_with("Access-Control"));
  }
  if (!a.events && !a.file) require(!first_invalid_utf8(content));
}

}  // namespace ballast::fuzz
