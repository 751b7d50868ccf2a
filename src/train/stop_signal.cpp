#include "train/stop_signal.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>

#include "core/error.h"

namespace ballast::train {
namespace {

using Time = std::chrono::steady_clock::time_point;
constexpr std::chrono::milliseconds kOneRequest{20};
constexpr int kExitCode = 130;

struct Handled {
  int signal;
  const char* name;
  const char* said;  // when it is the first that asks for an end; nullptr: it asks for a save
};
constexpr std::array<Handled, 8> kHandled = {
    {{SIGINT, "SIGINT", "once more to quit at once"},
     {SIGTERM, "SIGTERM", "once more to quit at once"},
     {SIGHUP, "SIGHUP", "the terminal was closed (SIGHUP)"},
     {SIGQUIT, "SIGQUIT", "SIGQUIT; SIGINT or SIGTERM quits at once"},
     {SIGALRM, "SIGALRM", "SIGALRM; SIGINT or SIGTERM quits at once"},
     {SIGUSR2, "SIGUSR2", "SIGUSR2; SIGINT or SIGTERM quits at once"},
     {SIGXCPU, "SIGXCPU", "the limit of processor time was reached (SIGXCPU)"},
     {SIGUSR1, "SIGUSR1", nullptr}}};

const Handled& handled(int signal) {
  for (const Handled& h : kHandled) {
    if (h.signal == signal) return h;
  }
  return kHandled.front();
}

// The handler's only memory. Lock-free: it may interrupt anything, itself on another thread too.
std::atomic<bool> installed{false};
std::atomic<int> asked{0};
std::atomic<bool> save_asked{false};
std::atomic<Time> asked_at{Time()};
constexpr const char* kAfterThisStep = "stopping after this step, then saving";
std::atomic<const char*> answer{kAfterThisStep};
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<Time>::is_always_lock_free);

Time machine_time() {  // clock_gettime is on the list of what a handler may call
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return Time(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}
std::atomic<Clock> clock_now{machine_time};

void say(std::string_view text) {
  // Nothing to do when it fails: the terminal may be gone.
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
}

extern "C" void ballast_on_stop_signal(int signal) {
  const int error = errno;
  const Handled& h = handled(signal);
  if (h.said == nullptr) {
    save_asked.store(true);
    errno = error;
    return;
  }
  const Time now = clock_now.load()();
  // The time first: whoever sees `asked` set sees the time as well.
  Time before;
  if (asked_at.compare_exchange_strong(before, now)) {
    asked.store(signal);
    say("\nballast: ");
    say(answer.load());
    say("; ");
    say(h.said);
    say("\n");
    // A closing terminal sends SIGHUP several times: only who insists loses the step.
  } else if (now - before >= kOneRequest && (signal == SIGINT || signal == SIGTERM)) {
    say("\nballast: quitting at once, nothing saved\n");
    ::_exit(kExitCode);
  }
  errno = error;
}

void install(int signal, struct sigaction& before) {
  struct sigaction action {};
  action.sa_handler = ballast_on_stop_signal;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // reads and writes of the step continue
  check(::sigaction(signal, nullptr, &before) == 0, "no handler for signal {}", signal);
  // nohup and shells that start background jobs ignore these two on purpose.
  if ((signal == SIGHUP || signal == SIGQUIT) && before.sa_handler == SIG_IGN) return;
  check(::sigaction(signal, &action, nullptr) == 0, "no handler for signal {}", signal);
}

}  // namespace

StopSignal::StopSignal(const char* said, Clock now) {
  check(!installed.exchange(true), "two StopSignals at once");
  answer.store(said != nullptr ? said : kAfterThisStep);
  clock_now.store(now != nullptr ? now : machine_time);
  asked.store(0);
  asked_at.store(Time());
  save_asked.store(false);
  for (std::size_t i = 0; i < kHandled.size(); ++i) install(kHandled[i].signal, before_[i]);
}

StopSignal::~StopSignal() {
  for (std::size_t i = 0; i < kHandled.size(); ++i) {
    ::sigaction(kHandled[i].signal, &before_[i], nullptr);
  }
  installed.store(false);
}

int StopSignal::signal() const { return asked.load(); }

const char* StopSignal::name() const {
  const int s = signal();
  return s == 0 ? "" : handled(s).name;
}

bool StopSignal::take_save_request() { return save_asked.exchange(false); }

}  // namespace ballast::train
