#include "memory/cgroup.h"

#include <algorithm>
#include <string_view>

#include "memory/proc_text.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

template <class T>
void tighten(std::optional<T>& least, const std::optional<T>& value) {
  if (value && (!least || *value < *least)) least = value;
}

// mountinfo writes blanks and backslashes of a path as \ooo.
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t k) {
      return k < text.size() && text[k] >= '0' && text[k] <= '7' ? text[k] - '0' : -1;
    };
    if (text[i] == '\\' && digit(i + 1) >= 0 && digit(i + 2) >= 0 && digit(i + 3) >= 0) {
      out += static_cast<char>(digit(i + 1) * 64 + digit(i + 2) * 8 + digit(i + 3));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Is `word` one of the comma-separated words of `list`?
bool names(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    if (take(list, ',') == word) return true;
  }
  return false;
}

struct Mount {
  std::string group;  // which group of the hierarchy is mounted here
  std::string point;
};

// The mount of the v2 hierarchy (controller empty), or of a v1 controller.
std::optional<Mount> find_mount(std::string_view mountinfo, std::string_view controller) {
  while (!mountinfo.empty()) {
    // 36 35 98:0 /group /point rw,noatime master:1 - cgroup cgroup rw,memory
    const std::string_view line = take(mountinfo, '\n');
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    std::string_view left = line.substr(0, dash), right = line.substr(dash + 3);
    for (int skip = 0; skip < 3; ++skip) take(left, ' ');
    const std::string_view group = take(left, ' '), point = take(left, ' ');
    const std::string_view type = take(right, ' ');
    take(right, ' ');
    const bool found =
        controller.empty() ? type == "cgroup2" : type == "cgroup" && names(right, controller);
    if (found && point.starts_with('/')) return Mount{unescape(group), unescape(point)};
  }
  return std::nullopt;
}

// Our group in the v2 hierarchy (controller empty) or in that of a v1 controller.
std::optional<std::string> find_group(std::string_view cgroup, std::string_view controller) {
  while (!cgroup.empty()) {
    std::string_view line = take(cgroup, '\n');  // 4:memory,cpu:/path   0::/path
    const std::string_view id = take(line, ':'), controllers = take(line, ':');
    const bool found =
        controller.empty() ? id == "0" && controllers.empty() : names(controllers, controller);
    if (found && line.starts_with('/')) return std::string(line);
  }
  return std::nullopt;
}

// The directories of our group and its ancestors, innermost first, as far as the mount shows them.
// In a container the group may lie outside the mount; then the mount itself is our group.
std::vector<fs::path> visible_groups(const fs::path& root, const Mount& mount, std::string group) {
  const fs::path top = root / fs::path(mount.point).relative_path();
  const std::string base = mount.group == "/" ? "" : mount.group;
  const bool inside =
      group.starts_with(base) && (group.size() == base.size() || group[base.size()] == '/');
  fs::path below = inside ? fs::path(group.substr(base.size())).relative_path() : fs::path();
  for (const fs::path& part : below) {
    if (part == "..") return {top};  // seen from another namespace
  }
  std::vector<fs::path> found;
  while (!below.empty() && below != ".") {
    found.push_back(top / below);
    below = below.parent_path();
  }
  found.push_back(top);
  return found;
}

struct MemoryFiles {
  std::vector<const char*> limits;
  const char* usage;
  std::vector<const char*> given_back;  // keys in memory.stat: pages of files
};

void read_memory(const fs::path& root, const fs::path& group, const MemoryFiles& files,
                 CgroupLimits& out) {
  // Without a limit v1 shows the largest multiple of a page below 2^63; "max" is not a number.
  constexpr std::uint64_t kNone = 1ull << 62;
  const auto stat = read_text(group / "memory.stat");
  const auto number = [&](const char* key) -> std::optional<std::uint64_t> {
    const auto value = stat ? line_value(*stat, key) : std::nullopt;
    return value ? parse_number(*value) : std::nullopt;
  };
  std::optional<std::uint64_t> limit;
  const char* file = files.limits.front();
  for (const char* name : files.limits) {
    const auto value = read_number(group / name);
    if (value && (!limit || *value < *limit)) file = name;
    tighten(limit, value);
  }
  tighten(limit, number("hierarchical_memory_limit "));  // v1 only: also of ancestors out of sight
  if (!limit || *limit >= kNone) return;
  std::uint64_t used = read_number(group / files.usage).value_or(0);
  for (const char* key : files.given_back) used -= std::min(used, number(key).value_or(0));
  const Bytes left{*limit - std::min(*limit, used)};
  const fs::path shown = fs::path("/") / group.lexically_relative(root) / file;
  out.groups.push_back({shown.lexically_normal().string(), Bytes{*limit}, left});
  tighten(out.memory, std::optional(Bytes{*limit}));
  tighten(out.memory_left, std::optional(left));
}

std::optional<double> quota(std::optional<std::uint64_t> run, std::optional<std::uint64_t> period) {
  if (!run || !period || *run == 0 || *period == 0) return std::nullopt;
  return static_cast<double>(*run) / static_cast<double>(*period);
}

void read_cpu_v2(const fs::path& group, CgroupLimits& out) {
  const auto text = read_text(group / "cpu.max");  // "150000 100000", "max 100000"
  if (!text) return;
  std::string_view rest = *text;
  const auto run = parse_number(take(rest, ' '));
  tighten(out.cpus, quota(run, parse_number(rest)));
}

void read_cpu_v1(const fs::path& group, CgroupLimits& out) {  // -1 is no quota
  tighten(out.cpus,
          quota(read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")));
}

}  // namespace

CgroupLimits read_cgroup_limits(const fs::path& root) {
  CgroupLimits out;
  const auto cgroup = read_text(root / "proc/self/cgroup");
  const auto mountinfo = read_text(root / "proc/self/mountinfo");
  if (!cgroup || !mountinfo) return out;
  const auto each_group = [&](std::string_view controller, auto&& read) {
    const auto group = find_group(*cgroup, controller);
    const auto mount = find_mount(*mountinfo, controller);
    if (!group || !mount) return;
    for (const fs::path& path : visible_groups(root, *mount, *group)) read(path);
  };
  const MemoryFiles v2 = {
      {"memory.max", "memory.high"}, "memory.current", {"inactive_file ", "active_file "}};
  const MemoryFiles v1 = {{"memory.limit_in_bytes"},
                          "memory.usage_in_bytes",
                          {"total_inactive_file ", "total_active_file "}};
  each_group("", [&](const fs::path& group) {
    read_memory(root, group, v2, out);
    read_cpu_v2(group, out);
  });
  each_group("memory", [&](const fs::path& group) { read_memory(root, group, v1, out); });
  each_group("cpu", [&](const fs::path& group) { read_cpu_v1(group, out); });
  return out;
}

std::optional<fs::path> memory_group(const fs::path& root) {
  const auto cgroup = read_text(root / "proc/self/cgroup");
  const auto mountinfo = read_text(root / "proc/self/mountinfo");
  if (!cgroup || !mountinfo) return std::nullopt;
  for (const std::string_view controller : {"memory", ""}) {
    const auto group = find_group(*cgroup, controller);
    const auto mount = find_mount(*mountinfo, controller);
    if (group && mount) return visible_groups(root, *mount, *group).front();
  }
  return std::nullopt;
}

std::optional<std::uint64_t> oom_kills_of(const fs::path& group) {
  for (const char* file : {"memory.events", "memory.oom_control"}) {
    const auto text = read_text(group / file);
    const auto value = text ? line_value(*text, "oom_kill ") : std::nullopt;
    if (value) return parse_number(*value);
  }
  return std::nullopt;
}

}  // namespace ballast
