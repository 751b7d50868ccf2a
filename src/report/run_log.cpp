#include "report/run_log.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "memory/text_file.h"
#include "report/json_text.h"

namespace ballast {
namespace {

using LogJson = nlohmann::json;

constexpr LineLimits kLogLimits = {.line_bytes = 16 << 20, .long_line = LineLimits::LongLine::skip};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Reading: whatever has another type than expected reads as nothing.
const LogJson& member(const LogJson& j, const char* name) {
  static const LogJson kNothing;
  const auto found = j.is_object() ? j.find(name) : j.end();
  return j.is_object() && found != j.end() ? *found : kNothing;
}

double number_of(const LogJson& j) {
  return j.is_number() ? j.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

double time_of(const LogJson& j) {
  const double t = number_of(member(j, "time"));
  return std::isnan(t) ? 0 : t;
}

std::string text_of(const LogJson& j) {
  return j.is_string() ? j.get<std::string>() : std::string();
}

std::optional<std::int64_t> step_of(const LogJson& j) {
  const LogJson& step = member(j, "step");
  if (!step.is_number_integer()) return std::nullopt;
  return step.get<std::int64_t>();
}

MemoryNumbers memory_of(const LogJson& j) {
  MemoryNumbers m;
  MemoryNumbers::each(m, [&](const char* name, Bytes& b) {
    const LogJson& n = member(j, name);
    if (n.is_number_unsigned()) b = {n.get<std::uint64_t>()};
  });
  return m;
}

StepRecord step_record_of(const LogJson& j, std::int64_t step) {
  StepRecord r;
  r.time = time_of(j);
  r.step = step;
  const LogJson& epoch = member(j, "epoch");
  if (epoch.is_number_integer()) r.epoch = epoch.get<std::int64_t>();
  r.loss = number_of(member(j, "loss"));
  r.lr = number_of(member(j, "lr"));
  r.grad_norm = number_of(member(j, "grad_norm"));
  r.seconds = number_of(member(j, "seconds"));
  const LogJson& times = member(j, "times");
  StepTimes::each(r.times, [&](const char* name, double& t) {
    if (const LogJson& n = member(times, name); n.is_number()) t = n.get<double>();
  });
  r.planned = memory_of(member(member(j, "memory"), "planned"));
  r.measured = memory_of(member(member(j, "memory"), "measured"));
  if (const LogJson& samples = member(j, "samples"); samples.is_array()) {
    for (const LogJson& s : samples) r.samples.push_back(text_of(s));
  }
  if (const LogJson& t = member(j, "t"); t.is_array()) {
    for (const LogJson& v : t) r.t.push_back(number_of(v));
  }
  if (const LogJson& n = member(j, "batches"); n.is_number_integer()) {
    r.batches = n.get<std::int64_t>();
  }
  return r;
}

void put_memory(std::string& out, std::string_view name, const MemoryNumbers& m) {
  put_json_text(out, name);
  out += ":{";
  MemoryNumbers::each(m, [&](const char* tier, Bytes b) {
    fmt::format_to(std::back_inserter(out), "{}\"{}\":{}", out.back() == '{' ? "" : ",", tier,
                   b.count);
  });
  out += '}';
}

}  // namespace

bool add_log_line(RunHistory& history, std::string_view line) {
  const LogJson j = LogJson::parse(line, nullptr, false);
  const std::string kind = text_of(member(j, "kind"));
  const auto step = step_of(j);
  if (!step) return false;
  if (kind == "step") {
    history.steps.push_back(step_record_of(j, *step));
  } else if (kind == "eval") {
    history.evals.push_back(
        {time_of(j), *step, text_of(member(j, "name")), number_of(member(j, "loss"))});
  } else if (kind == "score") {
    history.scores.push_back(
        {time_of(j), *step, text_of(member(j, "name")), number_of(member(j, "value"))});
  } else if (kind == "event") {
    history.events.push_back(
        {time_of(j), *step, text_of(member(j, "event")), text_of(member(j, "text"))});
  } else if (kind == "run") {
    history.info = run_info_from_json(member(j, "info").dump());
    ++history.starts;
  } else {
    return false;
  }
  return true;
}

RunHistory read_run_log(const std::string& path, std::int64_t every) {
  RunHistory history;
  LineReader reader = LineReader::open(path, kLogLimits);
  for (FileLine line; reader.next(line);) {
    const bool blank = line.text.find_first_not_of(" \t\r") == std::string_view::npos;
    if (blank && !line.too_long) continue;
    if (line.too_long || !add_log_line(history, line.text)) ++history.unreadable;
    if (!history.steps.empty() && history.steps.back().step % every != 0) history.steps.pop_back();
  }
  return history;
}

RunLog::RunLog(std::string path, std::int64_t resumed_at, LineListener listener)
    : file_(std::move(path), AppendFile::Open::existing), listener_(std::move(listener)) {
  std::uint64_t keep = 0;
  bool cut = resumed_at <= 0;
  bool add_end = false;
  LineReader reader = LineReader::open(file_.path(), kLogLimits);
  for (FileLine line; !cut && reader.next(line);) {
    const LogJson j = line.too_long ? LogJson() : LogJson::parse(line.text, nullptr, false);
    const auto step = step_of(j);
    cut = (!line.complete && !step) || (step && *step > resumed_at);
    if (cut) break;
    add_end = !line.complete;
    keep = line.end;
  }
  if (keep < file_.size()) file_.truncate(keep);
  if (add_end) file_.append("\n");
}

void RunLog::begin(std::string_view kind, double time, std::int64_t step) {
  line_.clear();
  fmt::format_to(std::back_inserter(line_), "{{\"kind\":\"{}\",\"time\":{:.3f},\"step\":{}", kind,
                 time > 0 ? time : seconds_now(), step);
}

void RunLog::end() {
  line_ += "}\n";
  if (listener_) listener_(line_);
  file_.append(line_);
}

void RunLog::run(const RunInfo& info, std::int64_t step) {
  begin("run", 0, step);
  line_ += ",\"info\":";
  line_ += to_json(info);
  end();
}

void RunLog::step(const StepRecord& r) {
  begin("step", r.time, r.step);
  fmt::format_to(std::back_inserter(line_), ",\"epoch\":{}", r.epoch);
  const auto put = [&](std::string_view name, double value) {
    line_ += ",\"";
    line_ += name;
    line_ += "\":";
    put_json_number(line_, value);
  };
  put("loss", r.loss);
  put("lr", r.lr);
  put("grad_norm", r.grad_norm);
  put("seconds", r.seconds);
  line_ += ",\"times\":{";
  StepTimes::each(r.times, [&](const char* name, double t) {
    fmt::format_to(std::back_inserter(line_), "{}\"{}\":{:.6f}", line_.back() == '{' ? "" : ",",
                   name, std::isfinite(t) ? t : 0.0);
  });
  line_ += "},\"memory\":{";
  put_memory(line_, "planned", r.planned);
  line_ += ',';
  put_memory(line_, "measured", r.measured);
  line_ += "},\"samples\":[";
  for (const std::string& s : r.samples) {
    if (line_.back() != '[') line_ += ',';
    put_json_text(line_, s);
  }
  line_ += "],\"t\":[";
  for (const double t : r.t) {
    if (line_.back() != '[') line_ += ',';
    put_json_number(line_, t);
  }
  line_ += ']';
  if (r.batches > 0 && r.seconds > 0) {
    fmt::format_to(std::back_inserter(line_), ",\"batches\":{}", r.batches);
    put("samples_per_second", static_cast<double>(r.samples.size()) / r.seconds);
    put("batches_per_second", static_cast<double>(r.batches) / r.seconds);
  }
  end();
}

void RunLog::eval(std::int64_t step, std::string_view name, double loss) {
  begin("eval", 0, step);
  line_ += ",\"name\":";
  put_json_text(line_, name);
  line_ += ",\"loss\":";
  put_json_number(line_, loss);
  end();
}

void RunLog::score(std::int64_t step, std::string_view name, double value) {
  begin("score", 0, step);
  line_ += ",\"name\":";
  put_json_text(line_, name);
  line_ += ",\"value\":";
  put_json_number(line_, value);
  end();
}

void RunLog::event(std::int64_t step, std::string_view event, std::string_view text) {
  begin("event", 0, step);
  line_ += ",\"event\":";
  put_json_text(line_, event);
  line_ += ",\"text\":";
  put_json_text(line_, text);
  end();
}

}  // namespace ballast
