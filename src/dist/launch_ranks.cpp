#include "dist/launch_ranks.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/system_limits.h"
#include "core/to_size.h"
#include "dist/host_memory.h"
#include "dist/rank_environment.h"
#include "memory/file_descriptor.h"

namespace ballast {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// What train/stop_signal.h takes for a request to stop.
constexpr std::array<int, 7> kStops = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR2, SIGXCPU};
// `timeout` and job launchers signal both a process and its group.
constexpr milliseconds kOneRequest{20};
constexpr int kQuit = 130;
constexpr int kLost = static_cast<int>(ErrorCode::lost);

std::string errno_text(int error) { return std::system_category().message(error); }

// While one lives, signals wait until they are taken.
class TakenSignals {
 public:
  TakenSignals() {
    ::sigemptyset(&set_);
    for (const int s : {SIGCHLD, SIGUSR1, SIGTSTP}) ::sigaddset(&set_, s);
    for (const int s : kStops) {
      struct sigaction before {};
      ::sigaction(s, nullptr, &before);
      // nohup and shells that start background jobs ignore them on purpose.
      if (before.sa_handler != SIG_IGN) ::sigaddset(&set_, s);
    }
    struct sigaction wait {};
    wait.sa_handler = SIG_DFL;  // ignored, it would take the exit codes of children away
    ::sigaction(SIGCHLD, &wait, &child_before_);
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~TakenSignals() {
    while (take(milliseconds(0))) {  // repeated requests, for a job that has ended
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    ::sigaction(SIGCHLD, &child_before_, nullptr);
  }
  TakenSignals(const TakenSignals&) = delete;
  TakenSignals& operator=(const TakenSignals&) = delete;

  const sigset_t& before() const { return before_; }

  // As SIGTSTP does: not where nobody could let it continue. Returns when it does.
  static void stop_this_process() {
    sigset_t stop;
    ::sigemptyset(&stop);
    ::sigaddset(&stop, SIGTSTP);
    ::kill(::getpid(), SIGTSTP);
    ::pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
    ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  }

  // The next one; nullopt: none came. Without a limit it waits for one.
  std::optional<int> take(std::optional<milliseconds> limit) const {
    timespec time{};
    if (limit) {
      time.tv_sec = limit->count() / 1000;
      time.tv_nsec = limit->count() % 1000 * 1000000;
    }
    const int signal =
        limit ? ::sigtimedwait(&set_, nullptr, &time) : ::sigwaitinfo(&set_, nullptr);
    return signal > 0 ? std::optional(signal) : std::nullopt;
  }

 private:
  sigset_t set_{}, before_{};
  struct sigaction child_before_ {};
};

// Processors as the system's calls take them, for more than the 1,024 of one cpu_set_t.
struct Processors {
  std::array<cpu_set_t, 8> words{};

  static constexpr int kMax = 8 * CPU_SETSIZE;
  bool has(int cpu) const { return CPU_ISSET_S(to_size(cpu), sizeof(words), words.data()); }
  void add(int cpu) { CPU_SET_S(to_size(cpu), sizeof(words), words.data()); }
};

// Equal parts of those that this process may use, neighbours together. Empty: there are fewer than
// ranks, who then share all.
std::vector<Processors> deal_processors(int ranks) {
  Processors own;
  std::vector<int> usable;
  if (::sched_getaffinity(0, sizeof(own.words), own.words.data()) != 0) return {};
  for (int cpu = 0; cpu < Processors::kMax; ++cpu) {
    if (own.has(cpu)) usable.push_back(cpu);
  }
  if (usable.size() < to_size(ranks)) return {};
  std::vector<Processors> parts(to_size(ranks));
  for (std::size_t i = 0; i < usable.size(); ++i) {
    parts[i * parts.size() / usable.size()].add(usable[i]);
  }
  return parts;
}

// A list of C strings that ends with nullptr.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& t : texts) list.push_back(t.data());
  list.push_back(nullptr);
  return list;
}

std::vector<std::string> environment_with(const RankPlace& place) {
  std::vector<std::string> all;
  const auto own = environment_of(place);
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry = *e;
    const bool replaced = std::ranges::any_of(own, [&](const auto& variable) {
      return entry.substr(0, entry.find('=')) == variable.first;
    });
    if (!replaced) all.emplace_back(entry);
  }
  for (const auto& [name, value] : own) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

// What a rank's process needs between fork and exec, where nothing may be allocated.
struct Start {
  const char* program;
  char* const* arguments;
  char* const* environment;
  const sigset_t* signals;
  const Processors* processors;  // nullptr: all
  int rank;
  pid_t launcher;
  int memory_fd;
  int nothing;  // /dev/null
};

[[noreturn]] void become_rank(const Start& s, int failure_fd) {
  ::setpgid(0, 0);
  // Whoever kills the launcher wants no ranks: SIGKILL also ends one that is stopped.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != s.launcher) ::_exit(kLost);  // it went before that
  if (s.processors != nullptr) {
    ::sched_setaffinity(0, sizeof(s.processors->words), s.processors->words.data());
  }
  const bool files = s.rank == 0 || (::dup2(s.nothing, STDIN_FILENO) >= 0 &&
                                     ::dup2(s.nothing, STDOUT_FILENO) >= 0);
  if (files && ::fcntl(s.memory_fd, F_SETFD, 0) == 0) {
    ::pthread_sigmask(SIG_SETMASK, s.signals, nullptr);
    ::execve(s.program, s.arguments, s.environment);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t told = ::write(failure_fd, &error, sizeof(error));
  ::_exit(127);
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options)
      : options_(options), memory_(options.ranks), ranks_(to_size(options.ranks)) {}
  ~Launch() { kill_all(); }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int run() {
    start();
    while (alive() > 0) {
      const auto signal = signals_.take(time_left());
      if (signal == SIGTSTP) {
        stop_with_ranks();
      } else if (signal && *signal != SIGCHLD) {
        pass_on(*signal);
      }
      for (int r = 0; r < options_.ranks; ++r) collect(r);
      end_who_is_late();
    }
    return exit_code();
  }

 private:
  struct Rank {
    pid_t process = 0;  // 0: not started, or collected
    bool started = false;
    int code = 0;    // of exit
    int signal = 0;  // that ended it
    bool dumped = false;
    int order = 0;       // 1 ended first
    bool asked = false;  // it ended after SIGTERM or SIGKILL of ours

    // An end that began with this rank, as far as it tells.
    bool is_cause() const { return !asked && (signal != 0 || (code != 0 && code != kLost)); }
  };

  void start() {
    const std::vector<Processors> processors = deal_processors(options_.ranks);
    const FileDescriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!nothing) fail(ErrorCode::io, fmt::format("/dev/null: {}", errno_text(errno)));
    std::vector<std::string> arguments = options_.arguments;
    arguments.insert(arguments.begin(), "ballast");
    const std::vector<char*> argument_list = pointers(arguments);
    for (int r = 0; r < options_.ranks; ++r) {
      std::vector<std::string> environment = environment_with({.rank = r,
                                                               .ranks = options_.ranks,
                                                               .local_rank = r,
                                                               .local_ranks = options_.ranks,
                                                               .memory_fd = memory_.fd(),
                                                               .token = memory_.token()});
      const std::vector<char*> environment_list = pointers(environment);
      start(r, {.program = options_.program.c_str(),
                .arguments = argument_list.data(),
                .environment = environment_list.data(),
                .signals = &signals_.before(),
                .processors = processors.empty() ? nullptr : &processors[to_size(r)],
                .rank = r,
                .launcher = ::getpid(),
                .memory_fd = memory_.fd(),
                .nothing = nothing.get()});
    }
  }

  void start(int r, const Start& how) {
    int ends[2] = {-1, -1};
    const bool piped = ::pipe2(ends, O_CLOEXEC) == 0;
    const FileDescriptor read_end(ends[0]);
    FileDescriptor write_end(ends[1]);
    const std::string who = fmt::format("rank {}", r);
    const pid_t process = piped ? ::fork() : -1;
    if (process == 0) become_rank(how, write_end.get());
    if (process < 0) throw out_of_processes(who, errno_text(errno));
    ranks_[to_size(r)].process = process;
    ranks_[to_size(r)].started = true;
    memory_.set_process(r, process);
    write_end = FileDescriptor();
    int error = 0;
    ssize_t got = 0;
    while ((got = ::read(read_end.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
    }
    if (got == sizeof(error)) {  // else the program runs
      fail(ErrorCode::device, fmt::format("{} could not be started: {}: {}", who, options_.program,
                                          errno_text(error)));
    }
  }

  int alive() const {
    return static_cast<int>(
        std::ranges::count_if(ranks_, [](const Rank& r) { return r.process != 0; }));
  }

  std::optional<milliseconds> time_left() const {
    if (!deadline_) return std::nullopt;
    const auto left = std::chrono::ceil<milliseconds>(*deadline_ - steady_clock::now());
    return std::max(left, milliseconds(0));
  }

  void send(int signal) const {
    for (const Rank& r : ranks_) {
      if (r.process != 0) ::kill(r.process, signal);
    }
  }

  void pass_on(int signal) {
    if (signal == SIGUSR1) return send(signal);
    if (!stop_) {
      stop_ = signal;
      stopped_at_ = steady_clock::now();
      send(signal);
      send(SIGCONT);  // a rank that was stopped hears it too
    } else if ((signal == SIGINT || signal == SIGTERM) &&
               steady_clock::now() - stopped_at_ >= kOneRequest) {
      log::info("quitting at once, nothing saved");
      quit_ = true;
      kill_all();
    }
  }

  // Ctrl-Z: ranks are no part of the terminal's group. Who stopped this process continues it.
  void stop_with_ranks() {
    const auto before = steady_clock::now();
    send(SIGSTOP);
    signals_.stop_this_process();
    send(SIGCONT);
    if (deadline_) *deadline_ += steady_clock::now() - before;
  }

  void collect(int r) {
    Rank& rank = ranks_[to_size(r)];
    siginfo_t found{};
    if (rank.process == 0 ||
        ::waitid(P_PID, static_cast<id_t>(rank.process), &found, WEXITED | WNOHANG | WNOWAIT) !=
            0 ||
        found.si_pid == 0) {
      return;
    }
    const bool exited = found.si_code == CLD_EXITED;
    rank.code = exited ? found.si_status : 0;
    rank.signal = exited ? 0 : found.si_status;
    rank.dumped = found.si_code == CLD_DUMPED;
    rank.asked = (terminated_ && rank.signal == SIGTERM) || (killed_ && rank.signal == SIGKILL);
    rank.order = ++ended_;
    // Before the process is collected: until then its group has no other owner.
    if (!exited || rank.code != 0) ::kill(-rank.process, SIGKILL);
    ::waitpid(rank.process, nullptr, 0);
    rank.process = 0;
    const RankLoss end = {.rank = r,
                          .cause = exited ? RankLoss::Cause::ended : RankLoss::Cause::killed,
                          .value = exited ? rank.code : rank.signal};
    memory_.set_end(end);
    if (exited && rank.code == 0) return memory_.set_ended(r);
    if (!deadline_) deadline_ = steady_clock::now() + options_.patience;
    memory_.lose(end);
  }

  void end_who_is_late() {
    if (!deadline_ || steady_clock::now() < *deadline_ || alive() == 0) return;
    if (terminated_) return kill_all();
    terminated_ = true;
    send(SIGTERM);
    send(SIGCONT);
    deadline_ = steady_clock::now() + options_.patience;
  }

  // Waits for the ends too: nothing survives SIGKILL.
  void kill_all() {
    killed_ = true;
    for (int r = 0; r < options_.ranks; ++r) {
      const pid_t process = ranks_[to_size(r)].process;
      if (process == 0) continue;
      ::kill(-process, SIGKILL);
      ::kill(process, SIGKILL);  // it may have no group yet
      siginfo_t found{};
      while (::waitid(P_PID, static_cast<id_t>(process), &found, WEXITED | WNOWAIT) != 0 &&
             errno == EINTR) {
      }
      collect(r);
    }
  }

  // The first rank, by the order of their ends, that `is` holds for.
  template <class Is>
  std::optional<int> first(const Is& is) const {
    std::optional<int> found;
    for (int r = 0; r < options_.ranks; ++r) {
      const Rank& rank = ranks_[to_size(r)];
      if (is(rank) && (!found || rank.order < ranks_[to_size(*found)].order)) found = r;
    }
    return found;
  }

  int exit_code() const {
    if (quit_) return kQuit;
    if (const auto code = memory_.reported()) return *code;
    std::optional<int> cause = first([](const Rank& r) { return r.is_cause(); });
    // A rank says that it cannot go on before it ends, which may take it longer than others.
    const auto loss = memory_.loss();
    if (loss && loss->rank < options_.ranks && ranks_[to_size(loss->rank)].is_cause()) {
      cause = loss->rank;
    }
    if (!cause) {
      if (first([](const Rank& r) { return r.code != 0 || r.signal != 0; })) fail_left(loss);
      return 0;
    }
    const Rank& rank = ranks_[to_size(*cause)];
    if (rank.signal != 0 && rank.signal == stop_) return 128 + rank.signal;
    if (rank.signal != 0) fail_killed(*cause, rank);
    const bool alike =
        std::ranges::all_of(ranks_, [&](const Rank& r) { return r.code == rank.code; });
    if (!alike) log::warn("rank {} ended with exit code {}{}", *cause, rank.code, others_text());
    return rank.code;
  }

  std::string others_text() const {
    const int others = options_.ranks - 1;
    if (others == 0) return "";
    return others == 1 ? ", and the other rank stopped"
                       : fmt::format(", and the other {} ranks stopped", others);
  }

  static std::vector<Advice> advice() {
    return {{"the same command with --resume", "continues from the newest checkpoint"}};
  }

  [[noreturn]] void fail_killed(int r, const Rank& rank) const {
    std::vector<Advice> what = advice();
    if (rank.signal == SIGKILL) {
      what.push_back({"dmesg", "says whether the system killed it because RAM ran out"});
    }
    fail(ErrorCode::lost,
         fmt::format("rank {} was killed by {}{}{}", r, signal_name(rank.signal),
                     rank.dumped ? " (core dumped)" : "", others_text()),
         std::move(what));
  }

  // All that failed did so because another one left.
  [[noreturn]] void fail_left(const std::optional<RankLoss>& loss) const {
    if (const auto left = first([](const Rank& r) { return r.code == 0 && r.signal == 0; })) {
      fail(ErrorCode::lost,
           fmt::format("rank {} ended while other ranks needed it{}", *left, others_text()),
           advice());
    }
    fail(ErrorCode::lost,
         loss ? describe(*loss) + others_text() : std::string("the ranks lost each other"),
         advice());
  }

  const LaunchOptions& options_;
  TakenSignals signals_;
  HostMemory memory_;
  std::vector<Rank> ranks_;
  int ended_ = 0;
  int stop_ = 0;  // the signal that asked for an end
  steady_clock::time_point stopped_at_;
  std::optional<steady_clock::time_point> deadline_;  // for ranks that still run
  bool terminated_ = false, killed_ = false, quit_ = false;
};

}  // namespace

int launch_ranks(const LaunchOptions& options) { return Launch(options).run(); }

}  // namespace ballast
