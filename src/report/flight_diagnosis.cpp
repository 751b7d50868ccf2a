#include "report/flight_diagnosis.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "core/progress.h"
#include "core/to_size.h"
#include "memory/budget.h"
#include "memory/machine.h"
#include "report/kernel_log.h"
#include "report/process_start.h"
#include "report/run_info.h"

namespace ballast {
namespace {

std::string ago(double seconds) {
  return to_string(std::chrono::seconds(std::llround(std::clamp(seconds, 0.0, 1e9)))) + " ago";
}

std::string where_it_was(const FlightRecord& r) {
  const FlightState& s = r.state;
  const std::string of =
      r.start.total_steps > 0 ? fmt::format(" of {}", r.start.total_steps) : std::string();
  switch (s.phase) {
    case Phase::starting:
      return "while starting";
    case Phase::load:
      return "while loading";
    case Phase::step:
      return fmt::format("step {}{}", s.step + 1, of);
    case Phase::update:
      return fmt::format("update of step {}{}", s.step + 1, of);
    case Phase::save:
      return fmt::format("saving after step {}{}", s.step, of);
    case Phase::evaluate:
      return fmt::format("evaluation after step {}{}", s.step, of);
    default:
      return fmt::format("after step {}{}", s.step, of);
  }
}

// What the run could have had at most, and whose limit that is.
struct Limit {
  Bytes bytes;
  std::string_view of;
};
std::optional<Limit> limit_of(const FlightRecord& r) {
  if (r.group_limit && (!r.ram || *r.group_limit < *r.ram)) {
    return Limit{*r.group_limit, "the control group's limit"};
  }
  if (r.ram) return Limit{*r.ram, "the machine's RAM"};
  return std::nullopt;
}

// What was left to the run at its last update: of the machine, and inside its group.
std::optional<Bytes> left_of(const FlightRecord& r) {
  if (!r.group_limit) return r.available;
  const Bytes in_group = *r.group_limit - std::min(*r.group_limit, r.state.measured.ram);
  return r.available ? std::min(*r.available, in_group) : in_group;
}

// Near enough to the end of memory that the next allocation of anybody could have been too much.
bool was_short(const FlightRecord& r) {
  const auto limit = limit_of(r);
  if (!limit) return false;
  if (r.available && *r.available < reserve_of(r.ram.value_or(limit->bytes))) return true;
  return r.state.most.ram.count >= limit->bytes.count - limit->bytes.count / 10;
}

class Examination {
 public:
  Examination(const FlightRecord& r, double now, const std::filesystem::path& root)
      : r_(r), now_(now), root_(root) {}

  FlightDiagnosis run() {
    const auto ticks = process_start_ticks(r_.pid, root_);
    const bool same_boot = !r_.boot_id.empty() && r_.boot_id == boot_id(root_);
    const bool alive = same_boot && ticks && *ticks == r_.start_ticks;
    if (is_end(r_.state.phase)) {
      ended();
    } else if (alive || r_.locked) {
      d_.outcome = Outcome::running;
      d_.headline = fmt::format("still running, process {}: {}, last heard of {}", r_.pid,
                                where_it_was(r_), ago(now_ - r_.updated));
    } else {
      died(same_boot);
    }
    return std::move(d_);
  }

 private:
  void say(std::string finding) { d_.findings.push_back(std::move(finding)); }
  void raise(OutOfMemory to) { d_.out_of_memory = std::max(d_.out_of_memory, to); }

  void ended() {
    const FlightState& s = r_.state;
    d_.outcome = s.phase == Phase::finished  ? Outcome::finished
                 : s.phase == Phase::stopped ? Outcome::stopped
                                             : Outcome::failed;
    d_.headline = fmt::format("{} after step {}, {}",
                              s.phase == Phase::finished  ? "finished normally"
                              : s.phase == Phase::stopped ? "stopped on request"
                                                          : "ended with an error",
                              s.step, ago(now_ - r_.updated));
    if (!r_.note.empty()) say(printable(r_.note, 240));
    if (d_.outcome != Outcome::finished) advise_resume();
  }

  void died(bool same_boot) {
    d_.outcome = Outcome::died;
    d_.headline = fmt::format("{}, {}: ", where_it_was(r_), ago(now_ - r_.updated));
    if (r_.torn) say("It died while it wrote this record; the state shown is the one before.");
    if (!r_.note.empty()) say("Its last note: " + printable(r_.note, 240));
    if (same_boot) {
      look_at_kernel_log();
      look_at_counters();
    } else {
      raise(OutOfMemory::unknown);
      say(
          fmt::format("It ran on {} before that machine's last restart, or on another machine than "
                      "this one: what its kernel counted is gone.",
                      printable(r_.host)));
    }
    judge_memory(same_boot);
    conclude();
    advise_memory();
    advise_resume();
  }

  void look_at_kernel_log() {
    const auto line = find_oom_kill(r_.pid, r_.started_since_boot, root_);
    if (!line) return;
    raise(OutOfMemory::certain);
    say("The kernel's log says: " + printable(*line, 300));
  }

  void look_at_counters() {
    const auto group = r_.group.empty()
                           ? std::nullopt
                           : oom_kills_of(root_ / std::filesystem::path(r_.group).relative_path());
    const auto system = system_oom_kills(root_);
    const auto more = [](const auto& before, const auto& after) -> std::uint64_t {
      return before && after && *after > *before ? *after - *before : 0;
    };
    const std::uint64_t in_group = more(r_.group_oom_kills, group);
    const std::uint64_t in_system = more(r_.system_oom_kills, system);
    if (in_group > 0) {
      raise(OutOfMemory::likely);
      say(fmt::format(
          "The kernel's OOM killer has ended {} process{} of its control group since it "
          "started.",
          in_group, in_group == 1 ? "" : "es"));
    } else if (in_system > 0) {
      raise(was_short(r_) ? OutOfMemory::likely : OutOfMemory::possible);
      say(
          fmt::format("The kernel's OOM killer has ended {} process{} on this machine since it "
                      "started; the counter does not say which.",
                      in_system, in_system == 1 ? "" : "es"));
    }
    counters_known_ = (r_.group_oom_kills && group) || (r_.system_oom_kills && system);
    if (counters_known_ && in_group == 0 && in_system == 0) {
      say("The kernel's OOM killer has ended nothing since it started (its counters did not "
          "move).");
    }
  }

  void judge_memory(bool same_boot) {
    const auto limit = limit_of(r_);
    if (!limit) return;
    if (was_short(r_)) {
      say(
          fmt::format("Memory was short: the process held {} at most, {} is {}, and {} was left at "
                      "the last update.",
                      r_.state.most.ram, limit->of, limit->bytes,
                      left_of(r_) ? to_string(*left_of(r_)) : "an unknown amount"));
      if (same_boot && d_.out_of_memory == OutOfMemory::no) {
        // Daemons that kill before the kernel has to leave no trace in its counters.
        raise(OutOfMemory::possible);
        say("A daemon that kills early (systemd-oomd, earlyoom) would leave no trace there.");
      }
    } else {
      say(
          fmt::format("Memory was not short at the last update: the process held {} at most, {} is "
                      "{}{}.",
                      r_.state.most.ram, limit->of, limit->bytes,
                      left_of(r_) ? fmt::format(", {} was available", *left_of(r_)) : ""));
    }
    if (r_.start.planned.ram > limit->bytes) {
      say(fmt::format("Its plan of {} was above {} of {}: it could not have ended otherwise.",
                      r_.start.planned.ram, limit->of, limit->bytes));
    }
  }

  void conclude() {
    switch (d_.out_of_memory) {
      case OutOfMemory::certain:
        d_.cause = "the process was killed by the kernel: out of memory.";
        break;
      case OutOfMemory::likely:
        d_.cause = "the process was most likely killed by the kernel: out of memory.";
        break;
      case OutOfMemory::possible:
        d_.cause = "the process was killed or crashed. Memory may have been the cause.";
        break;
      case OutOfMemory::unknown:
        d_.cause = "the process was killed or crashed. The cause is unknown.";
        break;
      case OutOfMemory::no:
        d_.cause = counters_known_ ? "the process was killed (SIGKILL or crash). Memory was "
                                     "not the cause."
                                   : "the process was killed or crashed. The cause is unknown.";
        break;
    }
    d_.headline += d_.cause;
  }

  void advise_memory() {
    const Bytes planned = r_.start.planned.ram, most = r_.state.most.ram;
    if (planned.count > 0 && most > planned) {
      d_.advice.push_back(
          {"internal error (please report, with the flight record and run log)",
           fmt::format("it held {} more than its plan of {}", most - planned, planned)});
    }
    if (d_.out_of_memory < OutOfMemory::possible) return;
    const auto limit = limit_of(r_);
    if (limit && r_.available && limit->bytes > *r_.available + most &&
        r_.group_limit == std::nullopt) {
      const Bytes others = limit->bytes - *r_.available - most;
      if (others > most) {
        d_.advice.push_back(
            {"end other programs before the run",
             fmt::format("they held {} when it died, the run itself {}", others, most)});
      }
    }
    const Bytes had = r_.start.allowed.ram.count > 0 ? r_.start.allowed.ram : planned;
    if (r_.group_limit && *r_.group_limit < had) {
      const Bytes wanted = *r_.group_limit - Bytes{r_.group_limit->count / 20};
      return advise_ram(wanted,
                        fmt::format("instead of {}: {} is its control group's limit, 5 % of that "
                                    "stay for the kernel",
                                    had, *r_.group_limit));
    }
    const Machine machine = read_machine(root_);
    if (!available_memory(machine)) return;
    // With the run gone: what is free now, less the reserve; never above what it already had.
    const Bytes room = default_budget(machine).host;
    Bytes wanted = room;
    if (had.count > 0 && wanted >= had) wanted = had - std::min(had, reserve_of(had));
    if (wanted.count == 0 || wanted >= had) return;
    advise_ram(wanted,
               fmt::format("instead of {}: {} can be used here now, less a reserve of {}", had,
                           *available_memory(machine), reserve_of(*available_memory(machine))));
  }

  void advise_ram(Bytes wanted, const std::string& why) {
    d_.advice.push_back({fmt::format("[memory] ram = \"{}MiB\"", wanted.count >> 20),
                         why + "; ballast plan shows what that changes"});
  }

  void advise_resume() {
    if (r_.start.command.empty()) return;
    const bool has = r_.start.command.find("--resume") != std::string::npos;
    d_.advice.push_back({printable(r_.start.command, 1024) + (has ? "" : " --resume"),
                         "continues from the newest whole checkpoint"});
  }

  const FlightRecord& r_;
  double now_;
  const std::filesystem::path& root_;
  FlightDiagnosis d_;
  bool counters_known_ = false;
};

}  // namespace

std::string_view name_of(Outcome o) {
  constexpr std::array<std::string_view, 5> kNames = {"finished", "stopped", "failed", "running",
                                                      "died"};
  return kNames[to_size(o)];
}

std::string_view name_of(OutOfMemory o) {
  constexpr std::array<std::string_view, 5> kNames = {"no", "unknown", "possible", "likely",
                                                      "certain"};
  return kNames[to_size(o)];
}

FlightDiagnosis diagnose(const FlightRecord& record, double now,
                         const std::filesystem::path& root) {
  return Examination(record, now, root).run();
}

std::string describe(const FlightRecord& r, const FlightDiagnosis& d) {
  std::string text = fmt::format("last run: {}\n", d.headline);
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<10} {}\n", name, value);
  };
  line("command", printable(r.start.command, 1024));
  line("folder", printable(r.start.folder, 1024));
  line("started",
       fmt::format("{} on {}, process {}", iso_time(r.started), printable(r.host), r.pid));
  line("last state",
       fmt::format("{}: phase {}, {} steps done, epoch {}, loss {:.6g}", iso_time(r.updated),
                   name_of(r.state.phase), r.state.step, r.state.epoch, r.state.loss));
  text += fmt::format("  {:<20} {:>10} {:>10} {:>10} {:>10}\n", "memory", "planned", "allowed",
                      "last", "most");
  struct Row {
    const char* name;
    std::array<Bytes, 4> bytes{};
  };
  std::array<Row, 4> rows{};
  const std::array<const MemoryNumbers*, 4> columns = {&r.start.planned, &r.start.allowed,
                                                       &r.state.measured, &r.state.most};
  for (std::size_t c = 0; c < columns.size(); ++c) {
    std::size_t i = 0;
    MemoryNumbers::each(*columns[c], [&](const char* name, Bytes b) {
      rows[i].name = name;
      rows[i++].bytes[c] = b;
    });
  }
  for (const Row& row : rows) {
    if (std::ranges::all_of(row.bytes, [](Bytes b) { return b.count == 0; })) continue;
    text +=
        fmt::format("  {:<20} {:>10} {:>10} {:>10} {:>10}\n",
                    display_name_of(row.name, is_for_gpu(r.start.planned)), to_string(row.bytes[0]),
                    row.bytes[1].count > 0 ? to_string(row.bytes[1]) : "-", to_string(row.bytes[2]),
                    to_string(row.bytes[3]));
  }
  for (const std::string& finding : d.findings) text += fmt::format("  {}\n", finding);
  if (!d.advice.empty()) text += "what would help:\n";
  int number = 0;
  for (const Advice& a : d.advice) {
    text += fmt::format("  {}. {}: {}\n", ++number, a.change, a.effect);
  }
  return text;
}

}  // namespace ballast
