#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "app/command.h"
#include "app/output.h"
#include "core/simd.h"
#include "memory/disk_speed.h"
#include "memory/gpu.h"
#include "memory/machine.h"
#include "report/flight_diagnosis.h"
#include "report/flight_record.h"
#include "report/gpu_checks.h"
#include "report/last_run.h"
#include "report/machine_checks.h"
#include "report/rank_records.h"
#include "report/run_info.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const std::optional<Bytes>& b) {
  if (!b) return "unknown";
  if (*b == kUnlimited) return "unlimited";
  return to_string(*b);
}

Json json_of(const std::optional<Bytes>& b) {
  if (!b) return nullptr;
  if (*b == kUnlimited) return "unlimited";
  return b->count;
}

template <class T>
std::string text_of_number(const std::optional<T>& n) {
  return n ? fmt::format("{}", *n) : "unknown";
}

template <class T>
Json json_of_number(const std::optional<T>& n) {
  return n ? Json(*n) : Json(nullptr);
}

struct LastRun {
  std::string path;
  FlightRecord record;
  FlightDiagnosis diagnosis;
  std::vector<RankRecord> ranks;  // empty: it had one
};

Json json_of(const MemoryNumbers& m) {
  Json j = Json::object();
  MemoryNumbers::each(m, [&](const char* name, Bytes b) { j[name] = b.count; });
  return j;
}

Json json_of(const RankRecord& rank) {
  Json j = {{"rank", rank.rank}, {"flight_record", rank.path}};
  if (!rank.record) {
    j["problem"] = rank.problem;
    return j;
  }
  const FlightRecord& r = *rank.record;
  j["outcome"] = name_of(rank.diagnosis.outcome);
  j["pid"] = r.pid;
  j["updated"] = iso_time(r.updated);
  j["phase"] = name_of(r.state.phase);
  j["step"] = r.state.step;
  j["note"] = r.note;
  j["measured"] = json_of(r.state.measured);
  j["most"] = json_of(r.state.most);
  return j;
}

Json json_of(const LastRun& run) {
  const auto& [path, r, d, ranks] = run;
  Json of_ranks = Json::array();
  for (const RankRecord& rank : ranks) of_ranks.push_back(json_of(rank));
  Json advice = Json::array();
  for (const Advice& a : d.advice) advice.push_back({{"change", a.change}, {"effect", a.effect}});
  return {{"flight_record", path},
          {"outcome", name_of(d.outcome)},
          {"out_of_memory", name_of(d.out_of_memory)},
          {"headline", d.headline},
          {"findings", d.findings},
          {"advice", std::move(advice)},
          {"command", r.start.command},
          {"folder", r.start.folder},
          {"pid", r.pid},
          {"started", iso_time(r.started)},
          {"updated", iso_time(r.updated)},
          {"phase", name_of(r.state.phase)},
          {"step", r.state.step},
          {"total_steps", r.start.total_steps},
          {"epoch", r.state.epoch},
          {"loss", r.state.loss},
          {"note", r.note},
          {"planned", json_of(r.start.planned)},
          {"allowed", json_of(r.start.allowed)},
          {"measured", json_of(r.state.measured)},
          {"most", json_of(r.state.most)},
          {"ranks", std::move(of_ranks)}};
}

Json json_of(const GpuFacts& facts) {
  if (!facts.gpu) return nullptr;
  const GpuInfo& g = *facts.gpu;
  Json libraries = Json::array();
  for (const GpuLibrary& l : facts.libraries) {
    libraries.push_back({{"name", l.name},
                         {"file", l.file},
                         {"path", l.path},
                         {"origin", l.origin},
                         {"version", l.version},
                         {"problem", l.problem}});
  }
  return {{"name", g.name},
          {"compute_capability", g.sm},
          {"multiprocessors", g.multiprocessors},
          {"memory", g.memory.count},
          {"free", g.free.count},
          {"context", g.context.count},
          {"driver", g.driver},
          {"runtime", g.runtime},
          {"libraries", std::move(libraries)}};
}

// ballast doctor: what became of the last run, and the machine's numbers, as plans see them.
class Doctor : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("run", run_,
                   "folder of a run, or an output_dir: its newest run (default: your last run)");
    app.add_option("--disk", disk_, "folder whose disk is looked at (default: that of the run)");
    app.add_flag("--no-disk-trial", no_trial_, "do not measure how fast the disk is");
    app.add_flag("--alive", alive_,
                 "only whether the run lives or has ended well: fails (exit status 4) where it "
                 "died, failed or never began");
    app.add_flag("--json", json_, "print JSON, sizes in bytes");
  }

  void run() override {
    const auto last = find_last_run();
    if (alive_) return print_alive(last);
    if (disk_.empty()) disk_ = run_.empty() ? "." : run_;
    if (!std::filesystem::is_directory(disk_)) {
      disk_ = std::filesystem::absolute(disk_).parent_path().string();
    }
    const Machine m = read_machine();
    const auto speed = no_trial_ ? std::nullopt : std::optional(measure_disk(disk_));
    auto checks = check_machine(m, disk_, speed);
    const GpuFacts gpu = find_gpu();
    for (MachineCheck& c : check_gpu(gpu)) checks.push_back(std::move(c));
    print(json_ ? as_json(m, last, speed, checks, gpu) : as_text(m, last, checks));
  }

 private:
  static void print_alive(const std::optional<LastRun>& last);
  std::optional<LastRun> find_last_run() const;
  std::string as_text(const Machine& m, const std::optional<LastRun>& last,
                      std::span<const MachineCheck> checks) const;
  std::string as_json(const Machine& m, const std::optional<LastRun>& last,
                      const std::optional<DiskSpeed>& speed, std::span<const MachineCheck> checks,
                      const GpuFacts& gpu) const;

  std::string run_, disk_;
  bool no_trial_ = false, alive_ = false, json_ = false;
};

const RegisterCommand<Doctor> kDoctor("doctor",
                                      "what became of the last run, what this machine has");

std::optional<LastRun> Doctor::find_last_run() const {
  std::optional<std::string> path = run_.empty() ? last_run() : find_flight_record(run_);
  if (!run_.empty() && !path) {
    fail(ErrorCode::input,
         fmt::format("{} holds no run: no file {} there or in one of its folders", run_,
                     kFlightFile),
         {{"ballast doctor OUTPUT_DIR", "the output_dir of the config, or a run's folder in it"}});
  }
  // The last run's folder may have been removed since; a path that was given must be right.
  if (!path || (run_.empty() && !std::filesystem::exists(*path))) return std::nullopt;
  LastRun last = {*path, read_flight_record(*path), {}, {}};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = std::chrono::duration<double>(now).count();
  last.diagnosis = diagnose(last.record, seconds);
  last.ranks = read_rank_records(last.path, last.record, seconds);
  return last;
}

// For health checks of containers and the like.
void Doctor::print_alive(const std::optional<LastRun>& last) {
  if (!last) fail(ErrorCode::input, "there is no run of yours yet");
  const Outcome outcome = last->diagnosis.outcome;
  if (outcome == Outcome::died || outcome == Outcome::failed) {
    fail(ErrorCode::input, last->diagnosis.headline,
         {{"ballast doctor " + last->path, "says more"}});
  }
  print(last->diagnosis.headline + "\n");
}

std::string Doctor::as_text(const Machine& m, const std::optional<LastRun>& last,
                            std::span<const MachineCheck> checks) const {
  std::string text;
  if (last) text += describe(last->record, last->diagnosis) + describe(last->ranks) + "\n";
  text += "this machine\n";
  for (const MachineCheck& c : checks) {
    const bool bad = c.state == MachineCheck::State::warning;
    text += fmt::format("{} {:<20} {}\n", bad ? "!" : " ", c.name, c.finding);
    if (!c.advice.empty()) text += fmt::format("{:23}-> {}\n", "", c.advice);
  }
  text += "\nnumbers\n";
  const auto line = [&](std::string_view what, const std::string& value, std::string_view note) {
    text += fmt::format("{:<22} {:>12}  {}\n", what, value, note);
  };
  line("usable memory", text_of(available_memory(m)), "before the kernel swaps or kills");
  line("RAM", text_of(m.ram), "");
  line("RAM available", text_of(m.ram_available), "free, or given back on demand");
  line("control group limit", m.cgroup.memory ? text_of(m.cgroup.memory) : "none", "");
  line("control group left", m.cgroup.memory_left ? text_of(m.cgroup.memory_left) : "none", "");
  line("swap", text_of(m.swap), fmt::format("{} free", text_of(m.swap_free)));
  line("locked memory", text_of(m.locked), "limit of this process");
  line("disk free", text_of(disk_free(disk_)), disk_);
  line("page", text_of(m.page), "");
  line("huge page", text_of(m.huge_page), "");
  line("NUMA nodes", text_of_number(m.numa_nodes), "");
  line("processors allowed", text_of_number(m.affinity), "");
  line("processor quota", m.cgroup.cpus ? fmt::format("{:.2f}", *m.cgroup.cpus) : "none", "");
  line("compute threads", fmt::format("{}", usable_cpus(m)),
       "used unless --threads says otherwise");
  line("vector instructions", name_of(isa()), "");
  line("CUDA", built_with_cuda() ? "yes" : "no", "in this build");
  return text;
}

std::string Doctor::as_json(const Machine& m, const std::optional<LastRun>& last,
                            const std::optional<DiskSpeed>& speed,
                            std::span<const MachineCheck> checks, const GpuFacts& gpu) const {
  Json j = {{"usable_memory", json_of(available_memory(m))},
            {"ram", json_of(m.ram)},
            {"ram_available", json_of(m.ram_available)},
            {"cgroup_memory", json_of(m.cgroup.memory)},
            {"cgroup_memory_left", json_of(m.cgroup.memory_left)},
            {"swap", json_of(m.swap)},
            {"swap_free", json_of(m.swap_free)},
            {"locked", json_of(m.locked)},
            {"disk_free", json_of(disk_free(disk_))},
            {"page", m.page.count},
            {"huge_page", json_of(m.huge_page)},
            {"numa_nodes", json_of_number(m.numa_nodes)},
            {"affinity", json_of_number(m.affinity)},
            {"cgroup_cpus", json_of_number(m.cgroup.cpus)},
            {"threads", usable_cpus(m)},
            {"isa", name_of(isa())},
            {"cuda", built_with_cuda()}};
  j["gpu"] = json_of(gpu);
  const bool measured = speed && speed->problem.empty();
  j["disk_read_bytes_per_s"] = measured ? Json(speed->read) : Json(nullptr);
  j["disk_write_bytes_per_s"] = measured && speed->write ? Json(*speed->write) : Json(nullptr);
  j["disk_direct"] = measured ? Json(speed->direct) : Json(nullptr);
  j["checks"] = Json::array();
  for (const MachineCheck& c : checks) {
    j["checks"].push_back({{"name", c.name},
                           {"state", name_of(c.state)},
                           {"finding", c.finding},
                           {"advice", c.advice}});
  }
  j["last_run"] = last ? json_of(*last) : Json(nullptr);
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace
}  // namespace ballast
