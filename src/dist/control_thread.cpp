#include "dist/control_thread.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/lane_activity.h"
#include "core/start_thread.h"
#include "core/to_size.h"
#include "dist/control_socket.h"

namespace ballast {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTurn{100};    // between two looks at everything
constexpr milliseconds kNews{20};     // between two heartbeats at least
constexpr milliseconds kHurry{10};    // while ranks come, and while a job ends
constexpr milliseconds kPause{1500};  // longer, and this process was stopped itself
constexpr milliseconds kGreeting{5000};
constexpr std::size_t kMaxPoll = 300;

// Of the lanes, for this rank's heartbeat. Allocates nothing.
void name_activities(std::size_t network, ControlHeartbeat& to) {
  to.program.fill(0);
  to.instruction.fill(0);
  to.exchange.fill(0);
  const std::lock_guard texts(lane_texts());
  auto& lanes = lane_activities();
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const char* const instruction = lanes[i].instruction.load(std::memory_order_relaxed);
    const char* const program = lanes[i].program.load(std::memory_order_relaxed);
    if (instruction == nullptr || program == nullptr) continue;
    if (i == network) {
      put_text(to.exchange, instruction);
    } else if (text_of(to.instruction).empty()) {
      put_text(to.instruction, instruction);
      put_text(to.program, program);
    }
  }
}

}  // namespace

std::size_t ControlChannel::Thread::links_of(int rank, int ranks) {
  // Ranks 0 and 1 hear all others; two more for whoever comes and is none.
  return rank <= 1 ? to_size(ranks) + 1 : 2;
}

ControlChannel::Thread::Thread(ControlOptions options)
    : options_(std::move(options)),
      peers_(to_size(options_.ranks)),
      facts_(to_size(options_.ranks)),
      oom_kills_(oom_kills()) {
  check(options_.rank >= 0 && options_.rank < options_.ranks, "rank {} of {} on a control channel",
        options_.rank, options_.ranks);
  if (!options_.progress) options_.progress = ended_instructions;
  if (!options_.end) options_.end = [](int code) { ::_exit(code); };
  links_.resize(links_of(options_.rank, options_.ranks));
  for (auto& link : links_) link = std::make_unique<Link>();
  wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (coordinates()) listener_ = listen_for_ranks(options_.token, options_.rank);
  begun_ = next_beat_ = turned_ = std::chrono::steady_clock::now();
  struct stat output {};
  if (::fstat(STDERR_FILENO, &output) == 0) {
    own().hello.output_device = output.st_dev;
    own().hello.output_file = output.st_ino;
  }
  own().hello.token = options_.token;
  own().hello.rank = static_cast<std::uint32_t>(options_.rank);
  own().hello.ranks = static_cast<std::uint32_t>(options_.ranks);
  own().hello.process = ::getpid();
  own().state = ControlPeer::State::here;
  for (ControlPeer& p : peers_) p.heard = p.advanced = begun_;
  thread_ = start_thread("the control channel", [this] { run(); });
}

ControlChannel::Thread::~Thread() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake();
  thread_.join();
}

void ControlChannel::Thread::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(wake_.get(), &one, sizeof(one));
}

void ControlChannel::Thread::run() {
  // Signals are for the rank's own thread, which waits for work that they interrupt.
  sigset_t all;
  ::sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigdelset(&all, fault);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (;;) {
    try {
      turn();
    } catch (const Error&) {  // of a frame: that connection is closed
    } catch (const std::bad_alloc&) {
      if (first_word_) options_.end(static_cast<int>(ErrorCode::lost));
    }
    const std::lock_guard lock(mutex_);
    if (quit_) break;
  }
  for (auto& link : links_) {
    if (!link->line.is_open()) continue;
    if (finished_) link->line.send(encode_bye(frame_));
    link->line.flush();
    link->line.close();
  }
}

void ControlChannel::Thread::turn() {
  const auto before = std::chrono::steady_clock::now();
  forgive_pause(before);
  take_requests(before);
  connect_missing(before);
  if (before >= next_beat_ || has_news(before)) send_heartbeat(before);
  const bool coming = std::ranges::any_of(
      peers_, [](const ControlPeer& p) { return p.state == ControlPeer::State::expected; });
  const bool hurry = first_word_ || (coming && before - begun_ < std::chrono::seconds(10));
  wait(hurry ? kHurry : std::min(kTurn, options_.heartbeat));
  const auto now = std::chrono::steady_clock::now();
  accept_all(now);
  receive_all();
  take_requests(now);
  compare_facts();
  look_at_ends(now);
  if (!applied_ && !hang_) {
    hang_ = find_hang(now);
    if (!hang_) hang_ = find_absent(now);
    if (hang_) word(now);
  }
  if (first_word_ && !applied_ && ready(now)) decide(now);
  end_in_time(now);
}

// Another phase or checkpoint is told at once, so that a report does not name an earlier one; where
// phases are short, not more often than kNews.
bool ControlChannel::Thread::has_news(ControlTime now) {
  if (now < next_beat_ - options_.heartbeat + kNews) return false;
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, false);
}

// Where this process was stopped, or the machine was, the others were silent for it alone.
void ControlChannel::Thread::forgive_pause(ControlTime now) {
  if (now - turned_ > kPause) {
    for (ControlPeer& p : peers_) p.heard = p.advanced = now;
  }
  turned_ = now;
}

void ControlChannel::Thread::take_requests(ControlTime now) {
  std::optional<ControlFacts> facts;
  std::optional<ControlFailure> failure;
  {
    const std::lock_guard lock(mutex_);
    if (!told_) failure = failure_;
    if (options_.rank == 0 || has_link(0)) facts = std::exchange(facts_to_send_, std::nullopt);
  }
  if (failure) {
    told_ = true;
    send_heartbeat(now);
    own().failure = std::move(failure);
    own().told = failed_at_;
    word(failed_at_);
    send_to_all(*own().failure);
  }
  if (!facts) return;
  send_heartbeat(now);  // whoever gets the answer knows where this rank is
  if (options_.rank == 0) {
    facts_[0] = std::move(facts);
    return;
  }
  for (auto& link : links_) {
    if (link->rank == 0 && link->line.is_open()) link->line.send(encode(*facts, frame_));
  }
}

template <class Message>
void ControlChannel::Thread::send_to_all(const Message& message) {
  const auto frame = encode(message, frame_);
  for (auto& link : links_) {
    if (link->rank >= 0 && link->line.is_open()) link->line.send(frame);
  }
}

bool ControlChannel::Thread::has_link(int rank) const {
  return std::ranges::any_of(links_,
                             [&](const auto& l) { return l->rank == rank && l->line.is_open(); });
}

void ControlChannel::Thread::connect_missing(ControlTime now) {
  if (options_.rank >= 1) connect_to(0, now);
  if (options_.rank >= 2) connect_to(1, now);
}

void ControlChannel::Thread::connect_to(int rank, ControlTime now) {
  if (peers_[to_size(rank)].state != ControlPeer::State::expected || has_link(rank)) return;
  const auto free = std::ranges::find_if(links_, [](const auto& l) { return !l->line.is_open(); });
  if (free == links_.end()) return;
  FileDescriptor fd = connect_to_rank(options_.token, rank);
  if (!fd) return;
  Link& link = **free;
  link.line.open(std::move(fd));
  link.rank = rank;
  link.mine = true;
  link.since = now;
  peers_[to_size(rank)].state = ControlPeer::State::here;
  peers_[to_size(rank)].heard = peers_[to_size(rank)].advanced = now;
  link.line.send(encode(own().hello, frame_));
  // What was said before it was there.
  fill_heartbeat();
  link.line.send(encode(beat_, frame_));
  if (own().failure) link.line.send(encode(*own().failure, frame_));
}

void ControlChannel::Thread::accept_all(ControlTime now) {
  for (auto& link : links_) {
    if (link->line.is_open() && link->rank < 0 && now - link->since > kGreeting) {
      link->line.close();  // nobody of this job
    }
  }
  while (listener_) {
    FileDescriptor fd = accept_rank(listener_);
    if (!fd) return;
    const auto free =
        std::ranges::find_if(links_, [](const auto& l) { return !l->line.is_open(); });
    if (free == links_.end()) return;
    (*free)->line.open(std::move(fd));
    (*free)->rank = -1;
    (*free)->mine = false;
    (*free)->since = now;
  }
}

void ControlChannel::Thread::wait(milliseconds most) {
  std::array<pollfd, kMaxPoll> all{};
  nfds_t count = 0;
  const auto add = [&](int fd, short events) {
    if (fd >= 0 && count < all.size()) all[count++] = {.fd = fd, .events = events, .revents = 0};
  };
  add(wake_.get(), POLLIN);
  if (listener_) add(listener_.get(), POLLIN);
  for (const auto& link : links_) {
    if (!link->line.is_open()) continue;
    add(link->line.fd(), static_cast<short>(link->line.has_output() ? POLLIN | POLLOUT : POLLIN));
  }
  ::poll(all.data(), count, static_cast<int>(most.count()));
  std::uint64_t woken = 0;
  while (::read(wake_.get(), &woken, sizeof(woken)) > 0) {
  }
}

void ControlChannel::Thread::receive_all() {
  for (auto& link : links_) {
    if (!link->line.is_open()) continue;
    link->line.flush();
    bool open = true;
    try {
      open = link->line.receive([&](const ControlFrame& frame) { take(*link, frame); });
    } catch (const Error&) {
      open = false;
    }
    if (!open) lost_link(*link, std::chrono::steady_clock::now());
  }
}

void ControlChannel::Thread::lost_link(Link& link, ControlTime now) {
  link.line.close();
  if (link.rank < 0) return;
  ControlPeer& peer = peers_[to_size(link.rank)];
  link.rank = -1;
  if (peer.state != ControlPeer::State::here) return;
  peer.state = ControlPeer::State::gone;
  if (!peer.failure) peer.told = now;
  word(now);
}

// The first sign of an end: where this rank was is what a report tells.
void ControlChannel::Thread::word(ControlTime now) {
  if (first_word_) return;
  fill_heartbeat();
  own().beat = beat_;
  first_word_ = now;
}

void ControlChannel::Thread::refuse(Link& link, std::string why) {
  link.line.send(encode(ControlWelcome{.refused = std::move(why)}, frame_));
  link.line.close();
  link.rank = -1;
}

void ControlChannel::Thread::take_hello(Link& link, const ControlFrame& frame) {
  ControlHello hello;
  decode(frame.fields, hello);
  if (hello.token != options_.token) return refuse(link, "the token of the job is another one");
  if (hello.ranks != own().hello.ranks || hello.rank >= hello.ranks ||
      static_cast<int>(hello.rank) == options_.rank) {
    return refuse(link, fmt::format("rank {} of {}, expected another of {}", hello.rank,
                                    hello.ranks, options_.ranks));
  }
  ControlPeer& peer = peers_[hello.rank];
  if (peer.state != ControlPeer::State::expected) {
    return refuse(link, fmt::format("rank {} is there already", hello.rank));
  }
  link.rank = static_cast<int>(hello.rank);
  peer.hello = hello;
  peer.state = ControlPeer::State::here;
  peer.heard = peer.advanced = std::chrono::steady_clock::now();
  link.line.send(encode(ControlWelcome{}, frame_));
  // The one who listens says who it is as well: its process, where it prints.
  link.line.send(encode(own().hello, frame_));
  if (own().failure) link.line.send(encode(*own().failure, frame_));
}

void ControlChannel::Thread::take(Link& link, const ControlFrame& frame) {
  if (link.rank < 0) {
    if (frame.type != ControlType::hello) return link.line.close();
    return take_hello(link, frame);
  }
  const auto now = std::chrono::steady_clock::now();
  ControlPeer& peer = peers_[to_size(link.rank)];
  peer.heard = now;
  switch (frame.type) {
    case ControlType::hello:
      if (link.mine) decode(frame.fields, peer.hello);
      break;
    case ControlType::heartbeat: {
      if (first_word_) break;  // where it was when that came is what counts
      const std::uint64_t before = peer.beat.progress;
      decode(frame.fields, peer.beat);
      if (peer.beat.progress != before) peer.advanced = now;
      break;
    }
    case ControlType::facts: {
      auto& facts = facts_[to_size(link.rank)].emplace();
      decode(frame.fields, facts);
      break;
    }
    case ControlType::differ: {
      ControlDiffer differ;
      decode(frame.fields, differ);
      const std::lock_guard lock(mutex_);
      differ_ = std::move(differ.table);
      changed_.notify_all();
      break;
    }
    case ControlType::failure:
      if (peer.failure) break;
      decode(frame.fields, peer.failure.emplace());
      peer.told = now;
      word(now);
      break;
    case ControlType::report: {
      ControlReport report;
      decode(frame.fields, report);
      word(now);
      if (link.rank <= 1) apply(std::move(report), now);
      break;
    }
    case ControlType::bye:
      peer.state = ControlPeer::State::left;
      break;
    case ControlType::welcome: {
      ControlWelcome welcome;
      decode(frame.fields, welcome);
      if (welcome.refused.empty()) break;
      own().failure = ControlFailure{
          .code = ErrorCode::input,
          .text = fmt::format("rank {} refused this rank: {}", link.rank, welcome.refused)};
      own().told = now;
      word(now);
      break;
    }
  }
}

void ControlChannel::Thread::fill_heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    beat_ = state_;
  }
  beat_.progress = options_.progress();
  name_activities(options_.network_lane, beat_);
}

void ControlChannel::Thread::send_heartbeat(ControlTime now) {
  next_beat_ = now + options_.heartbeat;
  fill_heartbeat();
  ControlPeer& me = own();
  if (beat_.progress != me.beat.progress) me.advanced = now;
  me.heard = now;
  if (!first_word_) me.beat = beat_;
  send_to_all(beat_);
}

void ControlChannel::Thread::compare_facts() {
  if (options_.rank != 0 ||
      !std::ranges::all_of(facts_, [](const auto& f) { return f.has_value(); })) {
    return;
  }
  std::vector<ControlFacts> all;
  for (auto& f : facts_) all.push_back(*std::exchange(f, std::nullopt));
  ControlDiffer differ = {.table = table_of_differences(all)};
  send_to_all(differ);
  const std::lock_guard lock(mutex_);
  differ_ = std::move(differ.table);
  changed_.notify_all();
}

}  // namespace ballast
