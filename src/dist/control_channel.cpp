#include "dist/control_channel.h"

#include <utility>

#include "core/to_size.h"
#include "dist/control_thread.h"

namespace ballast {
namespace {

constexpr Bytes kStack{128 << 10};
// Longer than a job of ranks that come late takes to its report.
constexpr std::chrono::milliseconds kForReport{1800};

// Message and trail, as a single run prints them.
ControlFailure failure_of(const Error& error, bool shown, const ControlOptions& options) {
  const bool ours = error.code() == ErrorCode::internal;
  std::string text = ours ? "internal error (please report): " : "";
  text += options.words ? options.words(error.what()) : std::string(error.what());
  for (const std::string& doing : error.trail()) text += "\n  while " + doing;
  return {.code = error.code(), .text = std::move(text), .advice = error.advice(), .shown = shown};
}

}  // namespace

ControlChannel::ControlChannel(ControlOptions options)
    : thread_(std::make_unique<Thread>(std::move(options))) {}

ControlChannel::~ControlChannel() = default;

Bytes ControlChannel::memory_for(int ranks) {
  const std::size_t links = Thread::links_of(0, ranks);
  return kStack +
         Bytes{links * ControlLink::kBytes +
               to_size(ranks) * (sizeof(ControlPeer) + sizeof(ControlFacts)) + sizeof(Thread)};
}

void ControlChannel::set_state(const ControlHeartbeat& state) noexcept {
  bool news = false;
  {
    const std::lock_guard lock(thread_->mutex_);
    ControlHeartbeat& now = thread_->state_;
    news = text_of(now.phase) != text_of(state.phase) || now.checkpoint != state.checkpoint;
    const double longest = now.longest;
    now = state;
    now.longest = longest;
    thread_->news_ |= news;
  }
  if (news) thread_->wake();
}

void ControlChannel::set_longest(double seconds) noexcept {
  const std::lock_guard lock(thread_->mutex_);
  thread_->state_.longest = seconds;
}

void ControlChannel::set_command(std::string command) {
  const std::lock_guard lock(thread_->mutex_);
  thread_->command_ = std::move(command);
}

void ControlChannel::set_last_words(std::function<void(const ControlReport&)> words) {
  const std::lock_guard lock(thread_->mutex_);
  thread_->last_words_ = std::move(words);
}

void ControlChannel::require_same(const Facts& facts) {
  std::unique_lock lock(thread_->mutex_);
  thread_->differ_.reset();
  thread_->facts_to_send_ = ControlFacts{.facts = facts};
  thread_->wake();
  thread_->changed_.wait(lock, [&] { return thread_->differ_ || thread_->report_; });
  if (!thread_->differ_) {
    fail(ErrorCode::lost, "the ranks could not compare what they would train: another one is lost");
  }
  const std::string table = *std::exchange(thread_->differ_, std::nullopt);
  if (table.empty()) return;
  fail(ErrorCode::input, "the ranks of this job would not train the same:" + table,
       {{"the same program, files and options on all ranks", "they share one run"}});
}

void ControlChannel::tell(const Error& error, bool shown) noexcept {
  const auto now = std::chrono::steady_clock::now();
  try {
    ControlFailure failure = failure_of(error, shown, thread_->options_);
    const std::lock_guard lock(thread_->mutex_);
    if (thread_->failure_) return;
    thread_->failure_ = std::move(failure);
    thread_->failed_at_ = now;
  } catch (const std::bad_alloc&) {
    return;  // its end is seen all the same
  }
  thread_->wake();
}

std::optional<ControlReport> ControlChannel::await_report() {
  std::unique_lock lock(thread_->mutex_);
  thread_->leaving_ = true;
  thread_->changed_.wait_for(lock, kForReport, [&] { return thread_->report_.has_value(); });
  return thread_->report_;
}

void ControlChannel::finish() noexcept {
  const std::lock_guard lock(thread_->mutex_);
  thread_->finished_ = true;
}

}  // namespace ballast
