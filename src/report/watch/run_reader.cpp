#include "report/watch/run_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "core/error.h"
#include "report/json_text.h"

namespace ballast {
namespace {

void put_text(std::string& out, std::string_view name, std::string_view value) {
  fmt::format_to(std::back_inserter(out), ",\"{}\":", name);
  put_json_text(out, value);
}

void put_numbers(std::string& out, std::string_view name, const MemoryNumbers& m) {
  fmt::format_to(std::back_inserter(out), ",\"{}\":{{", name);
  const char* comma = "";
  MemoryNumbers::each(m, [&](const char* tier, Bytes b) {
    fmt::format_to(std::back_inserter(out), "{}\"{}\":{}", comma, tier, b.count);
    comma = ",";
  });
  out += '}';
}

}  // namespace

RunState read_run_state(const WatchedFolder& run, double now, const std::string& root) {
  RunState state;
  const FileDescriptor file = run.file(kFlightFile);
  if (!file) return state;
  try {
    // The file that was opened, whatever has its name by now.
    state.record = read_flight_record(fmt::format("/proc/self/fd/{}", file.get()), 1);
  } catch (const Error&) {
    return state;  // damaged, or not whole yet
  }
  state.diagnosis = diagnose(*state.record, now, root);
  return state;
}

std::string_view state_word(const RunState& state) {
  if (!state.record) return "waiting";
  switch (state.diagnosis.outcome) {
    case Outcome::finished:
      return "finished";
    case Outcome::stopped:
      return "stopped";
    case Outcome::failed:
      return "failed";
    case Outcome::died:
      return "dead";
    case Outcome::running:
      break;
  }
  const Phase phase = state.record->state.phase;
  return phase == Phase::starting || phase == Phase::load ? "loading" : "training";
}

std::string state_json(const RunState& state) {
  std::string out = "{\"state\":";
  put_json_text(out, state_word(state));
  if (!state.record) return out + "}";
  const FlightRecord& r = *state.record;
  const FlightDiagnosis& d = state.diagnosis;
  fmt::format_to(std::back_inserter(out),
                 ",\"pid\":{},\"started\":{:.3f},\"updated\":{:.3f},\"step\":{},\"total_steps\":{},"
                 "\"epoch\":{},\"gpu\":{},\"loss\":",
                 r.pid, r.started, r.updated, r.state.step, r.start.total_steps, r.state.epoch,
                 is_for_gpu(r.start.planned));
  put_json_number(out, r.state.loss);
  put_text(out, "phase", name_of(r.state.phase));
  put_text(out, "command", r.start.command);
  put_text(out, "host", r.host);
  put_text(out, "note", r.note);
  put_text(out, "cause", d.cause);
  out += ",\"findings\":[";
  for (const std::string& f : d.findings) {
    if (&f != d.findings.data()) out += ',';
    put_json_text(out, f);
  }
  out += "],\"advice\":[";
  for (const Advice& a : d.advice) {
    if (&a != d.advice.data()) out += ',';
    out += "{\"change\":";
    put_json_text(out, a.change);
    put_text(out, "effect", a.effect);
    out += '}';
  }
  out += ']';
  put_numbers(out, "planned", r.start.planned);
  put_numbers(out, "allowed", r.start.allowed);
  put_numbers(out, "measured", r.state.measured);
  put_numbers(out, "most", r.state.most);
  return out + "}";
}

void RunReader::refresh() {
  constexpr std::size_t kAll = SIZE_MAX;
  const auto add = [&](std::string_view line, std::uint64_t) { summary_.add(line); };
  if (log_.read(folder_, kAll, add) != LogFollower::Found::rewritten) return;
  summary_ = RunSummary();
  log_.read(folder_, kAll, add);
}

std::string run_title(const WatchedFolder& run) {
  constexpr std::size_t kMaxFirstLine = 1 << 20;
  const FileDescriptor log = run.file(kRunLogFile);
  if (!log) return {};
  for (std::size_t bytes = 16 << 10; bytes <= kMaxFirstLine; bytes *= 4) {
    const std::string text = read_at(log, 0, bytes);
    const std::size_t end = text.find('\n');
    if (end == text.npos && text.size() == bytes) continue;
    RunHistory first;
    (void)add_log_line(first, std::string_view(text).substr(0, end));
    return first.info ? first.info->title : std::string();
  }
  return {};
}

}  // namespace ballast
