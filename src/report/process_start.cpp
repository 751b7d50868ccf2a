#include "report/process_start.h"

#include <fmt/format.h>

#include "memory/proc_text.h"

namespace ballast {

std::optional<std::uint64_t> process_start_ticks(std::int64_t pid,
                                                 const std::filesystem::path& root) {
  const auto stat = read_text(root / fmt::format("proc/{}/stat", pid));
  if (!stat) return std::nullopt;
  // "12 (name, which may hold blanks and brackets) S 1 ...": the state is field 3, the start 22.
  const std::size_t name_end = stat->rfind(')');
  if (name_end == std::string::npos || name_end + 2 > stat->size()) return std::nullopt;
  std::string_view rest = std::string_view(*stat).substr(name_end + 2);
  const std::string_view state = take(rest, ' ');
  if (state == "Z" || state == "X") return std::nullopt;
  for (int field = 4; field < 22; ++field) take(rest, ' ');
  return parse_number(take(rest, ' '));
}

std::string boot_id(const std::filesystem::path& root) {
  std::string id = read_text(root / "proc/sys/kernel/random/boot_id").value_or("");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

std::optional<std::uint64_t> system_oom_kills(const std::filesystem::path& root) {
  const auto vmstat = read_text(root / "proc/vmstat");
  const auto value = vmstat ? line_value(*vmstat, "oom_kill ") : std::nullopt;
  return value ? parse_number(*value) : std::nullopt;
}

}  // namespace ballast
