#include "app/live_page.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "app/plan_pages.h"
#include "app/planning_heap.h"
#include "core/log.h"
#include "core/to_size.h"
#include "io/atomic_file.h"
#include "memory/file_descriptor.h"

namespace ballast {
namespace {

// What `ballast watch` holds with 200,000 steps in the log.
constexpr Bytes kLivePage{4 << 20};
constexpr const char* kLinger = "60";  // seconds that the page outlives its run

// The document without its last brace, and one more member.
std::string with_map(std::string document, const std::string& map) {
  document.erase(document.rfind('}'));
  document.erase(document.find_last_not_of("\n ") + 1);
  return document + ",\n  \"map\": " + map + "\n}\n";
}

struct SpawnSettings {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;

  explicit SpawnSettings(int output) {
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    // Of its own session: Ctrl-C is the run's.
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
};

// The first line of what the page prints; "" where it ended without one.
std::string first_line(const FileDescriptor& from) {
  std::string text;
  std::array<char, 512> piece{};
  while (text.find('\n') == text.npos) {
    const ssize_t got = ::read(from.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece.data(), to_size(got));
  }
  return text.substr(0, text.find('\n'));
}

void start_live_page(const std::string& folder, const std::string& port) {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return log::warn("no live page: {}; training continues", std::strerror(errno));
  }
  const FileDescriptor from(ends[0]);
  FileDescriptor to(ends[1]);
  const SpawnSettings settings(to.get());
  const std::array<std::string, 7> words = {"ballast", "watch",    folder, "--port",
                                            port,      "--linger", kLinger};
  std::array<char*, words.size() + 1> argv{};
  for (std::size_t i = 0; i < words.size(); ++i) argv[i] = const_cast<char*>(words[i].c_str());
  pid_t child = -1;
  const int error = ::posix_spawn(&child, "/proc/self/exe", &settings.files, &settings.attributes,
                                  argv.data(), environ);
  to = FileDescriptor();
  if (error != 0) return log::warn("no live page: {}; training continues", std::strerror(error));
  const std::string said = first_line(from);
  if (!said.empty()) return log::info("{}", said);
  ::waitpid(child, nullptr, 0);
  log::warn("no live page (see above); training continues");
}

}  // namespace

void add_live_page(const OwnFlags& own, fit::Request& request) {
  if (own.serve) {
    request.other_lines.push_back({"live page", kLivePage, "--serve, a process of its own"});
  }
}

std::function<void(const std::string& folder)> at_run_start(const OwnFlags& own,
                                                            const PlanTitle& title,
                                                            const fit::Request& request,
                                                            const fit::PlannedRun& run,
                                                            const PlanView& view) {
  const PlanningHeap heap;
  const MappedPlan mapped = map_run("this plan", title, request, run, verdict_line(title, view),
                                    view.policy_text, kSmallMap);
  // Shared, so that it is gone for good once it is written.
  auto document = std::make_shared<std::string>(
      with_map(plan_json(title, view), plans_json(std::span(&mapped, 1))));
  return [document, serve = own.serve](const std::string& folder) {
    try {
      write_text_file(folder + "/" + std::string(kRunPlanFile), *document);
    } catch (const Error& e) {
      log::warn("{}; training continues without {}", e.what(), kRunPlanFile);
    }
    document->clear();
    document->shrink_to_fit();
    if (serve) start_live_page(folder, *serve);
  };
}

}  // namespace ballast
