#include "dist/host_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast {
namespace {

constexpr std::array<char, 8> kMagic = {'B', 'A', 'L', 'R', 'A', 'N', 'K', 'S'};
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kPages = 64 << 10;  // whole pages on every machine
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));  // a futex
static_assert(sizeof(HostMemory::Line) == 64);

std::atomic<std::uint64_t> mapped_bytes{0};

std::string system_words(int error) { return std::system_category().message(error); }

// FNV-1a, 64 bits; never 0, which is a free place.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return std::max<std::uint64_t>(hash, 1);
}

std::array<char, 32> random_token() {
  std::array<unsigned char, 16> bytes{};
  check(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
        "the system gave no random bytes");
  std::array<char, 32> token{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    token[2 * i] = kDigits[bytes[i] >> 4];
    token[2 * i + 1] = kDigits[bytes[i] & 15];
  }
  return token;
}

// One word, so that nobody sees half a loss: a mark, the cause, the rank, the value.
std::uint64_t packed(const RankLoss& loss) {
  return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(loss.cause) << 32 |
         static_cast<std::uint64_t>(loss.rank & 0xffff) << 16 |
         static_cast<std::uint64_t>(loss.value & 0xffff);
}

RankLoss unpacked(std::uint64_t word) {
  const auto cause = static_cast<int>(word >> 32 & 0xff);
  const bool known = cause >= static_cast<int>(RankLoss::Cause::failed) &&
                     cause <= static_cast<int>(RankLoss::Cause::vanished);
  return {.rank = static_cast<int>(word >> 16 & 0xffff),
          .cause = known ? static_cast<RankLoss::Cause>(cause) : RankLoss::Cause::vanished,
          .value = static_cast<int>(word & 0xffff)};
}

// When a process began, in the system's ticks; 0: it is gone, or /proc does not say. Allocates
// nothing: ranks ask while they wait.
std::uint64_t start_time(int process) {
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", process);
  const FileDescriptor file(::open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : 0;
  if (got <= 0) return 0;
  std::string_view rest(text.data(), to_size(got));
  // "123 (name, which may hold anything) S 1 ...": the state is field 3, the start field 22.
  rest.remove_prefix(std::min(rest.rfind(')') + 2, rest.size()));
  if (rest.starts_with('Z') || rest.starts_with('X')) return 0;
  for (int field = 3; field < 22; ++field) {
    rest.remove_prefix(std::min(rest.find(' ') + 1, rest.size()));
  }
  std::uint64_t ticks = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), ticks);
  return ticks;
}

[[noreturn]] void fail_foreign(int fd, std::string_view why) {
  fail(ErrorCode::input,
       fmt::format("file descriptor {} is not the memory that the ranks of this job share: {}", fd,
                   why),
       {{"start ranks with ballast train --ranks N", "which makes that memory and hands it on"}});
}

}  // namespace

std::string signal_name(int signal) {
  switch (signal) {
    case SIGHUP:
      return "SIGHUP";
    case SIGINT:
      return "SIGINT";
    case SIGQUIT:
      return "SIGQUIT";
    case SIGILL:
      return "SIGILL";
    case SIGTRAP:
      return "SIGTRAP";
    case SIGABRT:
      return "SIGABRT";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGKILL:
      return "SIGKILL";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGSEGV:
      return "SIGSEGV";
    case SIGUSR2:
      return "SIGUSR2";
    case SIGPIPE:
      return "SIGPIPE";
    case SIGALRM:
      return "SIGALRM";
    case SIGTERM:
      return "SIGTERM";
    case SIGXCPU:
      return "SIGXCPU";
    case SIGXFSZ:
      return "SIGXFSZ";
    case SIGSYS:
      return "SIGSYS";
    default:
      return fmt::format("signal {}", signal);
  }
}

std::string describe(const RankLoss& loss) {
  switch (loss.cause) {
    case RankLoss::Cause::failed:
      return fmt::format("rank {} cannot go on", loss.rank);
    case RankLoss::Cause::ended:
      return fmt::format("rank {} ended with exit code {}", loss.rank, loss.value);
    case RankLoss::Cause::killed:
      return fmt::format("rank {} was killed by {}", loss.rank, signal_name(loss.value));
    case RankLoss::Cause::vanished:
      break;
  }
  return fmt::format("the process of rank {} is gone", loss.rank);
}

void HostMemory::Line::ring() noexcept {
  bell.fetch_add(1);
  if (sleepers.load() > 0) {
    ::syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

bool HostMemory::Line::sleep(std::uint32_t number, std::chrono::milliseconds most) noexcept {
  timespec limit{};
  limit.tv_sec = most.count() / 1000;
  limit.tv_nsec = most.count() % 1000 * 1000000;
  sleepers.fetch_add(1);
  const bool failed = ::syscall(SYS_futex, &bell, FUTEX_WAIT, number, &limit, nullptr, 0) != 0;
  const bool over = failed && errno == ETIMEDOUT;
  sleepers.fetch_sub(1);
  return over;
}

std::size_t HostMemory::control_size(int ranks) {
  const std::size_t group = sizeof(GroupName) + to_size(ranks) * sizeof(Line);
  return round_up(
      round_up(sizeof(Header), 64) + to_size(ranks) * sizeof(RankState) + kMaxGroups * group,
      kPages);
}

Bytes HostMemory::size_for(int ranks) {
  return Bytes{control_size(ranks) + to_size(ranks) * 2 * kWindow};
}

Bytes HostMemory::mapped_by_process() { return {mapped_bytes.load()}; }

HostMemory::HostMemory(int ranks) : ranks_(ranks) {
  check(ranks > 0 && ranks <= kMaxRanks, "{} ranks share memory", ranks);
  const FileDescriptor made(::memfd_create("ballast-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Behind the standard files, which may be closed here and are opened for ranks.
  fd_ = FileDescriptor(made ? ::fcntl(made.get(), F_DUPFD_CLOEXEC, 3) : -1);
  const std::uint64_t size = size_for(ranks).count;
  if (!fd_ || ::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0 ||
      ::fcntl(fd_.get(), F_ADD_SEALS, kSeals) != 0) {
    fail(ErrorCode::device, fmt::format("the system has no shared memory for {} ranks: {}", ranks,
                                        system_words(errno)));
  }
  map(control_size(ranks), fd_.get());
  Header& h = *new (base_) Header{};
  h.magic = kMagic;
  h.version = kVersion;
  h.ranks = static_cast<std::uint32_t>(ranks);
  h.size = size;
  h.window = kWindow;
  h.token = random_token();
  token_.assign(h.token.data(), h.token.size());
}

HostMemory::HostMemory(int fd, std::string_view token, int ranks, Part part)
    : token_(token), ranks_(ranks) {
  check(ranks > 0 && ranks <= kMaxRanks, "{} ranks share memory", ranks);
  struct stat found {};
  if (::fstat(fd, &found) != 0) fail_foreign(fd, system_words(errno));
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) fail_foreign(fd, "it is another kind of file");
  const std::uint64_t size = size_for(ranks).count;
  if (static_cast<std::uint64_t>(found.st_size) != size) {
    fail_foreign(fd, fmt::format("it has {} bytes, {} ranks share {}", found.st_size, ranks, size));
  }
  map(part == Part::whole ? size : control_size(ranks), fd);
  try {
    check_header(fd, token, ranks);
  } catch (...) {
    ::munmap(base_, mapped_);
    mapped_bytes -= mapped_;
    throw;
  }
}

HostMemory::~HostMemory() {
  ::munmap(base_, mapped_);
  mapped_bytes -= mapped_;
}

// At once in RAM: what a run takes is known before it begins, and nothing fails later.
void HostMemory::map(std::size_t size, int fd) {
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (at == MAP_FAILED) {
    fail(ErrorCode::device, fmt::format("the system cannot map {} that ranks share: {}",
                                        Bytes{size}, system_words(errno)));
  }
  base_ = static_cast<std::byte*>(at);
  mapped_ = size;
  mapped_bytes += size;
}

void HostMemory::check_header(int fd, std::string_view token, int ranks) const {
  const Header& h = header();
  if (h.magic != kMagic) fail_foreign(fd, "its first bytes are others");
  if (h.version != kVersion) {
    fail_foreign(fd, fmt::format("version {}, expected {}", h.version, kVersion));
  }
  if (h.ranks != static_cast<std::uint32_t>(ranks) || h.size != size_for(ranks).count ||
      h.window != kWindow) {
    fail_foreign(fd, fmt::format("{} ranks, {} bytes, windows of {}; expected {}, {} and {}",
                                 h.ranks, h.size, h.window, ranks, size_for(ranks).count, kWindow));
  }
  if (std::string_view(h.token.data(), h.token.size()) != token) {
    fail_foreign(fd, "the token of the job is another one");
  }
}

HostMemory::Header& HostMemory::header() const { return *reinterpret_cast<Header*>(base_); }

HostMemory::RankState& HostMemory::state(int rank) const {
  std::byte* const first = base_ + round_up(sizeof(Header), 64);
  return reinterpret_cast<RankState*>(first)[rank];
}

HostMemory::GroupName& HostMemory::name(int group) const {
  std::byte* const first =
      base_ + round_up(sizeof(Header), 64) + to_size(ranks_) * sizeof(RankState);
  return reinterpret_cast<GroupName*>(first)[group];
}

HostMemory::Line* HostMemory::lines(int group) const {
  return reinterpret_cast<Line*>(&name(kMaxGroups)) + std::ptrdiff_t{group} * ranks_;
}

std::byte* HostMemory::window(int rank, std::uint64_t number) const {
  check(rank >= 0 && rank < ranks_, "a window of rank {} of {}", rank, ranks_);
  return base_ + control_size(ranks_) + (2 * to_size(rank) + to_size(number % 2)) * kWindow;
}

HostMemory::Line* HostMemory::group(std::string_view group_name, int size) {
  check(size > 0 && size <= ranks_, "group {} of {} in a job of {} ranks", group_name, size,
        ranks_);
  const std::uint64_t hash = hash_of(group_name);
  for (int g = 0; g < kMaxGroups; ++g) {
    std::uint64_t there = 0;
    if (!name(g).hash.compare_exchange_strong(there, hash) && there != hash) continue;
    std::uint32_t others = 0;
    check(name(g).size.compare_exchange_strong(others, static_cast<std::uint32_t>(size)) ||
              others == static_cast<std::uint32_t>(size),
          "group {} of {} is joined as one of {}", group_name, others, size);
    return lines(g);
  }
  return nullptr;
}

void HostMemory::set_process(int rank, int process) noexcept {
  state(rank).started = start_time(process);
  state(rank).process = process;
}

bool HostMemory::attach(int rank) noexcept {
  if (state(rank).attached.exchange(1) != 0) return false;
  set_process(rank, ::getpid());
  return true;
}

void HostMemory::set_ended(int rank) noexcept {
  state(rank).ended = 1;
  ring_all();
}

bool HostMemory::ended(int rank) const noexcept { return state(rank).ended != 0; }

void HostMemory::lose(const RankLoss& loss) noexcept {
  std::uint64_t none = 0;
  header().loss.compare_exchange_strong(none, packed(loss));
  ring_all();
}

std::optional<RankLoss> HostMemory::loss() const noexcept {
  const std::uint64_t word = header().loss;
  return word == 0 ? std::nullopt : std::optional(unpacked(word));
}

void HostMemory::set_end(const RankLoss& end) noexcept { state(end.rank).end = packed(end); }

std::optional<RankLoss> HostMemory::end_of(int rank) const noexcept {
  const std::uint64_t word = state(rank).end;
  return word == 0 ? std::nullopt : std::optional(unpacked(word));
}

void HostMemory::set_reported(int code) noexcept {
  header().reported = static_cast<std::uint32_t>(code) + 1;
}

std::optional<int> HostMemory::reported() const noexcept {
  const std::uint32_t word = header().reported;
  return word == 0 ? std::nullopt : std::optional(static_cast<int>(word) - 1);
}

void HostMemory::lose_vanished_ranks() noexcept {
  for (int r = 0; r < ranks_; ++r) {
    const int process = state(r).process;
    const std::uint64_t started = state(r).started;
    if (process <= 0 || started == 0 || ended(r) || start_time(process) == started) continue;
    // It may have ended on purpose between the two looks.
    if (!ended(r)) lose({.rank = r, .cause = RankLoss::Cause::vanished});
  }
}

void HostMemory::ring_all() noexcept {
  for (int g = 0; g < kMaxGroups && name(g).hash != 0; ++g) {
    for (int r = 0; r < ranks_; ++r) lines(g)[r].ring();
  }
}

bool HostMemory::first_to_print(std::string_view text) noexcept {
  const std::uint64_t hash = hash_of(text);
  for (std::atomic<std::uint64_t>& place : header().printed) {
    std::uint64_t there = 0;
    if (place.compare_exchange_strong(there, hash)) return true;
    if (there == hash) return false;
  }
  return true;
}

}  // namespace ballast
