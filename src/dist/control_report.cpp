#include "dist/control_report.h"

#include <algorithm>
#include <csignal>
#include <map>

#include "core/to_size.h"
#include "core/wrap_text.h"

namespace ballast {
namespace {

using Kind = ControlCause::Kind;

const ControlPeer& peer_of(const ControlCause& cause, std::span<const ControlPeer> peers) {
  return peers[to_size(cause.rank)];
}

std::string seconds_text(double seconds) { return fmt::format("{:.3g} s", seconds); }

// "in step 13 of 40, phase step"; "before its run began".
std::string place_text(const ControlHeartbeat& b) {
  const std::string phase = printable(text_of(b.phase));
  if (phase.empty()) return "before its run began";
  const bool in_step = phase == "step" || phase == "update";
  std::string text =
      fmt::format("{} step {}", in_step ? "in" : "after", b.step + (in_step ? 1 : 0));
  if (b.total_steps > 0) text += fmt::format(" of {}", b.total_steps);
  text += fmt::format(", phase {}", phase);
  const std::string doing = printable(text_of(b.instruction));
  const std::string_view exchange = text_of(b.exchange);
  if (!doing.empty()) {
    text += fmt::format(", at {} of program {}", doing, printable(text_of(b.program)));
  } else if (!exchange.empty()) {
    text += fmt::format(", in the exchange {}", printable(exchange));
  }
  return text;
}

// What happened to the rank, as the verb of a sentence.
std::string fate_text(const ControlCause& cause, const ControlFindings& f) {
  switch (cause.kind) {
    case Kind::failed:
      return "failed";
    case Kind::gone:
      if (f.end && f.end->cause == RankLoss::Cause::killed) {
        return fmt::format("was killed by {}", signal_name(f.end->value));
      }
      return "was lost";
    case Kind::silent:
    case Kind::hung:
      return "hangs";
    case Kind::absent:
      return "did not come";
    case Kind::parted:
      break;
  }
  return "lost the others";
}

std::string oom_text(const ControlFindings& f) {
  if (!f.oom_kills) return "";
  if (*f.oom_kills == 0) {
    return "; memory was not the cause (the out-of-memory count of its control group did not move)";
  }
  return fmt::format(
      "; memory may be the cause: the kernel has ended {} process{} of its control group because "
      "RAM ran out",
      *f.oom_kills, *f.oom_kills == 1 ? "" : "es");
}

std::string cause_text(const ControlCause& cause, const ControlPeer& peer,
                       const ControlFindings& f) {
  switch (cause.kind) {
    case Kind::failed:
    case Kind::parted:
      return peer.failure ? peer.failure->text : "";
    case Kind::gone: {
      if (!f.end) return "its process ended without a word" + oom_text(f);
      if (f.end->cause == RankLoss::Cause::ended) {
        return fmt::format("its process ended without a word, with exit code {}", f.end->value);
      }
      return fmt::format("its process was killed by {}{}", signal_name(f.end->value),
                         f.end->value == SIGKILL ? oom_text(f) : "");
    }
    case Kind::silent:
      return fmt::format("no word from its process {} for {}{}", peer.hello.process,
                         seconds_text(cause.seconds),
                         f.stopped ? ": it is stopped (SIGSTOP, or a debugger)" : "");
    case Kind::hung:
      return fmt::format(
          "no rank has advanced for {}; this one answers, and the others wait for it",
          seconds_text(cause.seconds));
    case Kind::absent:
      return fmt::format("it was not there within {}", seconds_text(cause.seconds));
  }
  return "";
}

// Further lines of a text stand below its first.
std::string indented(std::string_view text, std::size_t columns) {
  std::string all;
  for (const char c : text) {
    all += c;
    if (c == '\n') all.append(columns, ' ');
  }
  return all;
}

constexpr std::size_t kNames = 11;  // columns before what a line says

std::string line_text(std::string_view name, std::string_view text) {
  return fmt::format("  {:<9}{}\n", name, indented(text, kNames));
}

std::string others_text(const ControlCause& cause, std::span<const ControlPeer> peers) {
  int stopped = 0;
  std::map<std::string, int> exchanges;
  for (std::size_t r = 0; r < peers.size(); ++r) {
    if (static_cast<int>(r) == cause.rank || peers[r].state != ControlPeer::State::here) continue;
    ++stopped;
    const std::string_view at = text_of(peers[r].beat.exchange);
    if (!at.empty()) ++exchanges[printable(at)];
  }
  if (stopped == 0) return "";
  std::string text = stopped == 1 ? "1 rank stopped" : fmt::format("{} ranks stopped", stopped);
  for (const auto& [at, count] : exchanges) {
    text += count == stopped ? fmt::format(", waiting in {}", at)
                             : fmt::format(", {} of them waiting in {}", count, at);
  }
  return line_text("others", text);
}

std::string memory_text(const ControlCause& cause, std::span<const ControlPeer> peers) {
  const ControlHeartbeat& own = peer_of(cause, peers).beat;
  std::string text;
  for (std::size_t i = 0; i < own.memory.size(); ++i) {
    const ControlMemory& line = own.memory[i];
    if (text_of(line.name).empty() || line.planned + line.measured == 0) continue;
    std::optional<std::uint64_t> least, most;
    for (std::size_t r = 0; r < peers.size(); ++r) {
      if (static_cast<int>(r) == cause.rank || text_of(peers[r].beat.phase).empty()) continue;
      const std::uint64_t there = peers[r].beat.memory[i].measured;
      least = std::min(least.value_or(there), there);
      most = std::max(most.value_or(there), there);
    }
    const std::string others = !least            ? "-"
                               : *least == *most ? to_string(Bytes{*least})
                                                 : fmt::format("{} to {}", to_string(Bytes{*least}),
                                                               to_string(Bytes{*most}));
    text += fmt::format("  {:<20} {:>10} {:>10} {:>10}   {}\n", printable(text_of(line.name)),
                        to_string(Bytes{line.planned}),
                        line.allowed > 0 ? to_string(Bytes{line.allowed}) : "-",
                        to_string(Bytes{line.measured}), others);
  }
  if (text.empty()) return "";
  return fmt::format("  {:<20} {:>10} {:>10} {:>10}   {}\n", "memory", "planned", "allowed",
                     fmt::format("rank {}", cause.rank), "other ranks") +
         text;
}

struct RunPlace {
  bool begun = false;
  std::int64_t checkpoint = -1;
  std::string folder;
};

RunPlace run_of(std::span<const ControlPeer> peers) {
  RunPlace run;
  for (const ControlPeer& p : peers) {
    run.begun |= !text_of(p.beat.phase).empty();
    run.checkpoint = std::max(run.checkpoint, p.beat.checkpoint);
    if (run.folder.empty()) run.folder = printable(text_of(p.beat.folder), 512);
  }
  return run;
}

std::vector<Advice> advice_of(const ControlCause& cause, const ControlPeer& peer,
                              const RunPlace& run, const ControlFindings& f) {
  std::vector<Advice> all;
  if (cause.kind == Kind::failed && peer.failure) all = peer.failure->advice;
  if (!run.begun) return all;
  const std::string command = f.command.empty() ? "the same command" : f.command;
  const bool resumes = command.find("--resume") != std::string::npos;
  if (run.checkpoint >= 0) {
    all.push_back({command + (resumes ? "" : " --resume"),
                   fmt::format("continues after step {}", run.checkpoint)});
  } else {
    all.push_back({command, "begins again: there is no checkpoint yet"});
  }
  if (f.end && f.end->value == SIGKILL && f.oom_kills.value_or(1) > 0) {
    all.push_back({"dmesg", "says whether the system killed it because RAM ran out"});
  }
  if (!run.folder.empty()) {
    all.push_back({"ballast doctor " + run.folder, "shows the flight records of all ranks"});
  }
  return all;
}

std::string advice_text(const std::vector<Advice>& advice) {
  std::string text = advice.empty() ? "" : "what would help:\n";
  int number = 0;
  for (const Advice& a : advice) {
    const std::string first = fmt::format("  {}. ", ++number);
    const std::string line = a.effect.empty() ? a.change : a.change + ": " + a.effect;
    text += wrapped(first, line, kPlainColumns, first.size()) + "\n";
  }
  return text;
}

// Whether all ranks that are there say the same: then it is the error of a run, not of a rank.
bool all_say(const ControlFailure& failure, std::span<const ControlPeer> peers) {
  return std::ranges::all_of(
      peers, [&](const ControlPeer& p) { return p.failure && *p.failure == failure; });
}

std::string headline(const ControlCause& cause, std::span<const ControlPeer> peers,
                     const ControlFindings& f) {
  return fmt::format("rank {} {} {}", cause.rank, fate_text(cause, f),
                     place_text(peer_of(cause, peers).beat));
}

std::string ranks_text(const std::vector<std::size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i ? ", " : "", ranks[i]);
  return text;
}

}  // namespace

std::optional<ControlCause> find_cause(std::span<const ControlPeer> peers) {
  std::optional<ControlCause> found, parted;
  ControlTime first, first_parted;
  for (std::size_t r = 0; r < peers.size(); ++r) {
    const ControlPeer& p = peers[r];
    const int rank = static_cast<int>(r);
    if (p.failure && p.failure->code == ErrorCode::lost) {
      if (!parted || p.told < first_parted) {
        parted = ControlCause{.kind = Kind::parted, .rank = rank};
        first_parted = p.told;
      }
    } else if (p.failure || p.state == ControlPeer::State::gone) {
      if (found && first <= p.told) continue;
      found = ControlCause{.kind = p.failure ? Kind::failed : Kind::gone, .rank = rank};
      first = p.told;
    }
  }
  return found ? found : parted;
}

ControlReport make_report(const ControlCause& cause, std::span<const ControlPeer> peers,
                          const ControlFindings& findings) {
  const ControlPeer& peer = peer_of(cause, peers);
  ControlReport report = {.rank = static_cast<std::uint32_t>(cause.rank)};
  if (cause.kind == Kind::failed) report.code = peer.failure->code;
  const RunPlace run = run_of(peers);
  if (cause.kind == Kind::failed && (all_say(*peer.failure, peers) || !run.begun)) {
    const bool all = all_say(*peer.failure, peers);
    const bool shown = cause.rank == 0 && peer.failure->shown;
    if (!shown) {
      report.text = fmt::format("ballast: {}{}\n", all ? "" : fmt::format("rank {}: ", cause.rank),
                                peer.failure->text);
    }
    report.text += advice_text(peer.failure->advice);
    if (!all) report.line = fmt::format("stopped: rank {} failed", cause.rank);
    return report;
  }
  const std::string head = headline(cause, peers, findings);
  report.line = "stopped: " + head;
  report.text = fmt::format("ballast: {}\n", head) +
                line_text("cause", cause_text(cause, peer, findings)) + others_text(cause, peers) +
                memory_text(cause, peers);
  if (run.begun) {
    report.text += run.checkpoint >= 0
                       ? fmt::format("  newest whole checkpoint: step {}\n", run.checkpoint)
                       : std::string("  newest whole checkpoint: none yet\n");
  }
  report.text += advice_text(advice_of(cause, peer, run, findings));
  return report;
}

std::vector<bool> choose_printers(std::span<const ControlPeer> peers,
                                  const std::vector<bool>& hears) {
  std::vector<bool> prints(peers.size(), false);
  for (std::size_t r = 0; r < peers.size(); ++r) {
    const ControlHello& own = peers[r].hello;
    bool first = hears[r];
    for (std::size_t other = 0; other < r && first; ++other) {
      const ControlHello& h = peers[other].hello;
      first = !(prints[other] && h.output_device == own.output_device &&
                h.output_file == own.output_file);
    }
    prints[r] = first;
  }
  return prints;
}

std::string table_of_differences(std::span<const ControlFacts> ranks) {
  std::vector<std::string> names;
  std::map<std::string, std::map<std::string, std::vector<std::size_t>>> table;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const auto& [name, value] : ranks[r].facts) {
      if (!table.contains(name)) names.push_back(name);
      table[name][value].push_back(r);
    }
  }
  std::string text;
  for (const std::string& name : names) {
    auto& values = table[name];
    std::size_t said = 0;
    for (const auto& [value, who] : values) said += who.size();
    if (values.size() == 1 && said == ranks.size()) continue;
    text += fmt::format("\n  {}", name);
    for (const auto& [value, who] : values) {
      text += fmt::format("\n    {:<12} {}", ranks_text(who), value.empty() ? "none" : value);
    }
  }
  return text;
}

}  // namespace ballast
