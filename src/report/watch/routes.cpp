#include "report/watch/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "report/json_text.h"
#include "report/page/plan_page.h"
#include "report/watch/page_assets.h"

namespace ballast {
namespace {

constexpr std::string_view kPlanFile = "plan.json", kPreviewFolder = "previews",
                           kReportFile = "report.html";
constexpr std::size_t kMaxReaders = 4, kMaxRuns = 1000;
constexpr std::uint64_t kMaxPlan = 16 << 20;

constexpr std::string_view kJson = "application/json", kText = "text/plain; charset=utf-8";

struct Asset {
  std::string_view path, type;
  const std::string_view* text;
};
constexpr std::array<Asset, 6> kAssets = {
    {{"/", "text/html; charset=utf-8", &kPageHtml},
     {"/app.js", "text/javascript; charset=utf-8", &kPageScript},
     {"/app.css", "text/css; charset=utf-8", &kPageStyle},
     {"/plan.js", "text/javascript; charset=utf-8", &kPlanPageScript},
     {"/plan.css", "text/css; charset=utf-8", &kPlanPageStyle},
     {"/favicon.svg", "image/svg+xml", &kPageIcon}}};

// Of what a run draws of itself; anything else is not handed out.
std::string_view preview_type(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTypes = {
      {{".mp4", "video/mp4"},
       {".webp", "image/webp"},
       {".png", "image/png"},
       {".gif", "image/gif"}}};
  for (const auto& [ending, type] : kTypes) {
    if (name.ends_with(ending)) return type;
  }
  return {};
}

void put_header(WatchAnswer& answer, std::string_view name, std::string_view value) {
  answer.headers.emplace_back(name, value);
}

WatchAnswer text_answer(int status, std::string body, std::string_view type = kText) {
  WatchAnswer answer;
  answer.status = status;
  answer.body = std::move(body);
  put_header(answer, "Content-Type", type);
  return answer;
}

WatchAnswer file_answer(FileDescriptor file, std::string_view type) {
  const auto facts = facts_of(file);
  if (!facts) return text_answer(404, "there is no such file\n");
  WatchAnswer answer;
  answer.file = std::move(file);
  answer.range = {.begin = 0, .bytes = facts->size};
  put_header(answer, "Content-Type", type);
  return answer;
}

constexpr std::string_view kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
// The report of a run: a page without scripts, with its style inside.
constexpr std::string_view kReportPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; media-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void put_security_headers(WatchAnswer& answer) {
  const bool has_policy = std::ranges::any_of(
      answer.headers, [](const auto& h) { return h.first == "Content-Security-Policy"; });
  if (!has_policy) put_header(answer, "Content-Security-Policy", kPagePolicy);
  put_header(answer, "X-Content-Type-Options", "nosniff");
  put_header(answer, "Referrer-Policy", "no-referrer");
  put_header(answer, "Cache-Control", "no-store");
  put_header(answer, "Cross-Origin-Resource-Policy", "same-origin");
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_run(const WatchedFolder& folder) {
  return folder.file(kRunLogFile) || folder.file(kFlightFile);
}

// What the plan of the run says of a step; its map is long and not kept.
std::optional<double> predicted_seconds(const WatchedFolder& run) {
  const FileDescriptor file = run.file(kPlanFile);
  const auto facts = facts_of(file);
  if (!facts || facts->size > kMaxPlan) return std::nullopt;
  using Json = nlohmann::json;
  const Json plan = Json::parse(
      read_at(file, 0, static_cast<std::size_t>(facts->size)),
      [](int depth, Json::parse_event_t event, Json& parsed) {
        return depth != 1 || event != Json::parse_event_t::key || parsed == "seconds_per_step";
      },
      false);
  if (!plan.is_object()) return std::nullopt;
  const auto found = plan.find("seconds_per_step");
  if (found == plan.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

}  // namespace

WatchRoutes::WatchRoutes(WatchOptions options)
    : options_(std::move(options)), root_(WatchedFolder::open(options_.folder)) {
  if (!options_.now) options_.now = unix_seconds;
  if (!options_.steady_now) options_.steady_now = steady_seconds;
  std::filesystem::path path = std::filesystem::absolute(options_.folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  own_name_ = path.filename().string();
}

WatchAnswer WatchRoutes::answer(const WatchRequest& request) {
  const std::string_view path = path_of(request.target);
  const auto reply = [&]() -> WatchAnswer {
    if (request.method != "GET" && request.method != "HEAD") {
      WatchAnswer answer = text_answer(405, "only GET and HEAD are answered\n");
      put_header(answer, "Allow", "GET, HEAD");
      return answer;
    }
    const std::string_view host = host_name(request.host);
    if (std::ranges::find(options_.hosts, host) == options_.hosts.end()) {
      return text_answer(421,
                         "this page is not served under that name: use localhost, or start "
                         "ballast watch with --host NAME\n");
    }
    if (const auto token = query_value(request.target, "token"); token && path == "/") {
      if (!same_secret(*token, options_.token)) return text_answer(403, "wrong token\n");
      WatchAnswer answer = text_answer(303, "");
      put_header(answer, "Location", "/");
      put_header(
          answer, "Set-Cookie",
          fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict", options_.cookie, options_.token));
      return answer;
    }
    if (!is_allowed(request, path)) {
      return text_answer(403, "open the address that ballast watch printed: it has the token\n");
    }
    return route(request, path);
  };
  WatchAnswer answer = reply();
  put_security_headers(answer);
  return answer;
}

bool WatchRoutes::is_allowed(const WatchRequest& request, std::string_view path) const {
  if (same_secret(cookie_value(request.cookie, options_.cookie), options_.token)) return true;
  constexpr std::string_view kScheme = "Bearer ";
  const bool for_tools = path == "/metrics" || path == "/healthz";
  return for_tools && request.authorization.starts_with(kScheme) &&
         same_secret(request.authorization.substr(kScheme.size()), options_.token);
}

WatchAnswer WatchRoutes::route(const WatchRequest& request, std::string_view path) {
  for (const Asset& a : kAssets) {
    if (path != a.path) continue;
    WatchAnswer answer;
    answer.asset = *a.text;
    put_header(answer, "Content-Type", a.type);
    return answer;
  }
  constexpr std::string_view kPreviews = "/previews/";
  if (path == "/api/runs") return runs();
  if (path == "/api/run") return run(request);
  if (path == "/api/plan") return plan(request);
  if (path == "/events") return events(request);
  if (path == "/metrics") return metrics();
  if (path == "/healthz") return health();
  if (path == "/report.html") return report(request);
  if (path.starts_with(kPreviews)) return preview(request, path.substr(kPreviews.size()));
  return text_answer(404, "there is no such page\n");
}

std::vector<std::string> WatchRoutes::run_names() const {
  std::vector<std::pair<double, std::string>> all;
  const auto add = [&](const WatchedFolder& folder, const std::string& name) {
    if (!is_run(folder) || all.size() == kMaxRuns) return;
    const auto log = facts_of(folder.file(kRunLogFile)),
               record = facts_of(folder.file(kFlightFile));
    all.emplace_back(std::max(log ? log->changed : 0, record ? record->changed : 0), name);
  };
  add(root_, own_name_);
  for (const std::string& name : root_.names()) {
    if (const auto folder = root_.folder(name)) add(*folder, name);
  }
  std::ranges::sort(all);
  std::vector<std::string> names;
  for (auto& [time, name] : all) names.push_back(std::move(name));
  return names;
}

std::optional<WatchedFolder> WatchRoutes::run_folder(const std::string& name) const {
  if (name == own_name_ && is_run(root_)) return WatchedFolder::open(options_.folder);
  auto folder = root_.folder(name);
  if (folder && is_run(*folder)) return folder;
  return std::nullopt;
}

std::string WatchRoutes::newest_run() const {
  const auto names = run_names();
  return names.empty() ? std::string() : names.back();
}

RunReader* WatchRoutes::reader(const WatchRequest& request) {
  const auto name = query_value(request.target, "name");
  return reader_of(name ? *name : newest_run());
}

RunReader* WatchRoutes::reader_of(const std::string& name) {
  const auto known = std::ranges::find(readers_, name, &RunReader::name);
  if (known != readers_.end()) {
    readers_.splice(readers_.begin(), readers_, known);
  } else {
    auto folder = run_folder(name);
    if (!folder) return nullptr;
    if (readers_.size() == kMaxReaders) readers_.pop_back();
    readers_.emplace_front(name, std::move(*folder));
  }
  readers_.front().refresh();
  return &readers_.front();
}

bool WatchRoutes::any_running() const {
  return std::ranges::any_of(run_names(), [&](const std::string& name) {
    const auto folder = run_folder(name);
    return folder && read_run_state(*folder, now()).is_running();
  });
}

WatchAnswer WatchRoutes::runs() const {
  std::string out = "{\"runs\":[";
  for (const std::string& name : run_names()) {
    const auto folder = run_folder(name);
    if (!folder) continue;
    const RunState state = read_run_state(*folder, now());
    const auto log = facts_of(folder->file(kRunLogFile));
    out += out.back() == '[' ? "{\"name\":" : ",{\"name\":";
    put_json_text(out, name);
    out += ",\"title\":";
    put_json_text(out, run_title(*folder));
    out += fmt::format(",\"state\":\"{}\",\"step\":{},\"total_steps\":{},\"time\":{:.3f}}}",
                       state_word(state), state.record ? state.record->state.step : 0,
                       state.record ? state.record->start.total_steps : 0, log ? log->changed : 0);
  }
  return text_answer(200, out + "]}", kJson);
}

WatchAnswer WatchRoutes::run(const WatchRequest& request) {
  RunReader* const reader = this->reader(request);
  if (reader == nullptr) return text_answer(404, "there is no such run\n");
  std::string out = "{\"name\":";
  put_json_text(out, reader->name());
  out +=
      fmt::format(",\"offset\":{},\"has_plan\":{},\"has_report\":{},\"state\":", reader->offset(),
                  static_cast<bool>(reader->folder().file(kPlanFile)),
                  static_cast<bool>(reader->folder().file(kReportFile)));
  out += state_json(read_run_state(reader->folder(), now()));
  out += ',';
  reader->summary().put_json(out);
  out += '}';
  return text_answer(200, std::move(out), kJson);
}

WatchAnswer WatchRoutes::plan(const WatchRequest& request) {
  RunReader* const reader = this->reader(request);
  FileDescriptor file = reader == nullptr ? FileDescriptor() : reader->folder().file(kPlanFile);
  if (!file) return text_answer(404, "this run has no plan.json\n");
  return file_answer(std::move(file), kJson);
}

WatchAnswer WatchRoutes::report(const WatchRequest& request) {
  RunReader* const reader = this->reader(request);
  FileDescriptor file = reader == nullptr ? FileDescriptor() : reader->folder().file(kReportFile);
  if (!file) return text_answer(404, "this run has no report yet: ballast report RUN makes one\n");
  WatchAnswer answer = file_answer(std::move(file), "text/html; charset=utf-8");
  put_header(answer, "Content-Security-Policy", kReportPolicy);
  return answer;
}

WatchAnswer WatchRoutes::events(const WatchRequest& request) {
  const auto name = query_value(request.target, "name");
  auto folder = run_folder(name ? *name : newest_run());
  if (!folder) return text_answer(404, "there is no such run\n");
  std::uint64_t from = 0;
  if (const auto asked = query_value(request.target, "from")) {
    from = decimal_number(*asked).value_or(0);
  }
  // The newest word: a browser repeats the address with the id of what it had last.
  if (const auto id = decimal_number(request.last_event_id)) from = *id;
  WatchAnswer answer;
  answer.events = std::make_unique<EventStream>(std::move(*folder), from, steady_now());
  put_header(answer, "Content-Type", "text/event-stream");
  return answer;
}

WatchAnswer WatchRoutes::preview(const WatchRequest& request, std::string_view file) {
  const auto name = unescaped(file, false);
  const std::string_view type = name ? preview_type(*name) : std::string_view();
  RunReader* const reader = type.empty() ? nullptr : this->reader(request);
  const auto folder = reader != nullptr && reader->summary().has_preview(*name)
                          ? reader->folder().folder(kPreviewFolder)
                          : std::nullopt;
  if (!folder) return text_answer(404, "there is no such preview\n");
  WatchAnswer answer = file_answer(folder->file(*name), type);
  if (!answer.file) return answer;
  put_header(answer, "Accept-Ranges", "bytes");
  if (request.range.empty()) return answer;
  const std::uint64_t size = answer.range.bytes;
  const auto range = byte_range(request.range, size);
  if (!range) {
    answer = text_answer(416, "one range of bytes at most\n");
    put_header(answer, "Content-Range", fmt::format("bytes */{}", size));
    return answer;
  }
  answer.status = 206;
  answer.range = *range;
  put_header(answer, "Content-Range",
             fmt::format("bytes {}-{}/{}", range->begin, range->begin + range->bytes - 1, size));
  return answer;
}

WatchAnswer WatchRoutes::metrics() {
  std::vector<std::string> names = run_names();
  if (names.size() > kMaxReaders) {
    names.erase(names.begin(), names.end() - static_cast<std::ptrdiff_t>(kMaxReaders));
  }
  std::vector<RunState> states;
  std::vector<const RunReader*> all;
  for (const std::string& name : names) {
    const RunReader* const r = reader_of(name);
    if (r == nullptr) continue;
    all.push_back(r);
    states.push_back(read_run_state(r->folder(), now()));
  }
  std::vector<MetricsOfRun> runs;
  for (std::size_t i = 0; i < all.size(); ++i) {
    runs.push_back({*all[i], states[i], predicted_seconds(all[i]->folder())});
  }
  return text_answer(200, prometheus_text(runs, now()), "text/plain; version=0.0.4; charset=utf-8");
}

WatchAnswer WatchRoutes::health() {
  constexpr double kSteps = 10, kLeastSeconds = 60;
  const std::string name = newest_run();
  const RunReader* const r = name.empty() ? nullptr : reader_of(name);
  if (r == nullptr) return text_answer(503, "there is no run yet\n");
  const RunState state = read_run_state(r->folder(), now());
  if (state.is_dead()) return text_answer(503, "dead: " + state.diagnosis.cause + "\n");
  const auto log = facts_of(r->folder().file(kRunLogFile));
  const double step = r->summary().mean_step_seconds();
  const double patience = std::max(kSteps * step, kLeastSeconds);
  if (state.is_running() && log && step > 0 && now() - log->changed > patience) {
    return text_answer(503, fmt::format("the last record is {:.0f} s old, a step takes {:.3g} s\n",
                                        now() - log->changed, step));
  }
  return text_answer(200, "ok\n");
}

}  // namespace ballast
