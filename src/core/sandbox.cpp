#include "core/sandbox.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace ballast {
namespace {

constexpr std::uint64_t kRead = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
// All that version 1 knows: what is named here and not allowed below is refused.
constexpr std::uint64_t kAll = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;

bool allow_reading(int rules, const std::string& path) {
  const int fd = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (fd < 0) return true;
  landlock_path_beneath_attr rule = {};
  rule.allowed_access = kRead;
  rule.parent_fd = fd;
  bool done = ::syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
  if (!done) {  // of a file that is no folder
    rule.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE;
    done = ::syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
  }
  ::close(fd);
  return done;
}

}  // namespace

bool restrict_to_reading(std::span<const std::string> paths) {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  landlock_ruleset_attr handled = {};
  handled.handled_access_fs = kAll;
  const long made = ::syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0);
  if (made < 0) return false;
  const int rules = static_cast<int>(made);
  bool done = true;
  for (const std::string& path : paths) done = allow_reading(rules, path) && done;
  done = done && ::syscall(SYS_landlock_restrict_self, rules, 0) == 0;
  ::close(rules);
  return done;
}

}  // namespace ballast
