#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/output.h"
#include "core/device.h"
#include "core/simd.h"
#include "memory/machine.h"

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

// ballast doctor: the machine's numbers, as plans see them.
class Doctor : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--disk", disk_, "folder whose free space is shown (default: this one)");
    app.add_flag("--json", json_, "print JSON, sizes in bytes");
  }
  void run() override {
    const Machine m = read_machine();
    print(json_ ? as_json(m) : as_text(m));
  }

 private:
  std::string as_text(const Machine& m) const;
  std::string as_json(const Machine& m) const;

  std::string disk_ = ".";
  bool json_ = false;
};

const RegisterCommand<Doctor> kDoctor("doctor", "what this machine has and what Ballast may use");

std::string Doctor::as_text(const Machine& m) const {
  std::string text;
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
  line("CUDA", kBuiltWithCuda ? "yes" : "no", "in this build");
  return text;
}

std::string Doctor::as_json(const Machine& m) const {
  const Json j = {{"usable_memory", json_of(available_memory(m))},
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
                  {"cuda", kBuiltWithCuda}};
  return j.dump(2) + "\n";
}

}  // namespace
}  // namespace ballast
