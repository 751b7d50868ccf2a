#include "report/flight_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <type_traits>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/to_size.h"
#include "memory/disk_file.h"
#include "memory/machine.h"
#include "memory/proc_text.h"
#include "memory/regular_file.h"
#include "report/process_start.h"

namespace ballast {
namespace {

constexpr std::uint64_t kMagic = 0x4452434552474C42;  // "BLGRECRD"
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kUnknown = UINT64_MAX;

using Numbers = std::array<std::uint64_t, 4>;  // MemoryNumbers::each order

// On disk. Little-endian like every machine we run on; the CRC is over all bytes before it.
struct Header {
  std::uint64_t magic;
  std::uint32_t version, bytes;
  std::int64_t pid;
  std::uint64_t start_ticks;
  double started, started_since_boot;
  std::int64_t total_steps;
  Numbers planned, allowed;
  std::uint64_t group_limit, ram, group_oom_kills, system_oom_kills;
  char boot_id[64], host[256], command[1024], folder[1024], group[1024];
  std::uint32_t unused, crc;
};
struct Slot {
  std::uint64_t sequence;  // from 1
  double updated;
  std::uint32_t phase, unused;
  std::int64_t step, epoch;
  double loss;
  Numbers measured, most;
  std::uint64_t available;
  char note[240];
  std::uint32_t reserved, crc;
};
static_assert(std::is_trivially_copyable_v<Header> && std::is_trivially_copyable_v<Slot>);
static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kSlotAt = 4096;
constexpr std::size_t kSlotStride = 512;  // one slot per sector
constexpr std::size_t kFileBytes = 8192;
static_assert(sizeof(Header) <= kSlotAt && sizeof(Slot) <= kSlotStride);

template <class T>
std::uint32_t crc_of(const T& t) {
  return crc32c({reinterpret_cast<const std::byte*>(&t), offsetof(T, crc)});
}

Numbers pack(const MemoryNumbers& m) {
  Numbers packed{};
  std::size_t i = 0;
  MemoryNumbers::each(m, [&](const char*, Bytes b) { packed[i++] = b.count; });
  return packed;
}

MemoryNumbers unpack(const Numbers& packed) {
  MemoryNumbers m;
  std::size_t i = 0;
  MemoryNumbers::each(m, [&](const char*, Bytes& b) { b = {packed[i++]}; });
  return m;
}

template <std::size_t N>
void put_text(char (&to)[N], std::string_view text) {
  std::memset(to, 0, N);
  std::memcpy(to, text.data(), std::min(text.size(), N));
}

template <std::size_t N>
std::string text_of(const char (&from)[N]) {
  return {from, ::strnlen(from, N)};
}

std::uint64_t or_unknown(const std::optional<Bytes>& b) { return b ? b->count : kUnknown; }
std::optional<std::uint64_t> known(std::uint64_t n) {
  return n == kUnknown ? std::nullopt : std::optional(n);
}
std::optional<Bytes> known_bytes(std::uint64_t n) {
  return n == kUnknown ? std::nullopt : std::optional(Bytes{n});
}

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

Header make_header(const FlightStart& start, const std::filesystem::path& root) {
  Header h;
  std::memset(&h, 0, sizeof h);
  h.magic = kMagic;
  h.version = kVersion;
  h.bytes = kFileBytes;
  h.pid = ::getpid();
  h.start_ticks = process_start_ticks(h.pid, root).value_or(0);
  h.started = unix_now();
  h.started_since_boot =
      static_cast<double>(h.start_ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  h.total_steps = start.total_steps;
  h.planned = pack(start.planned);
  h.allowed = pack(start.allowed);
  const Machine machine = read_machine(root);
  h.group_limit = or_unknown(machine.cgroup.memory);
  h.ram = or_unknown(machine.ram);
  const auto group = memory_group(root);
  h.group_oom_kills = group ? oom_kills_of(*group).value_or(kUnknown) : kUnknown;
  h.system_oom_kills = system_oom_kills(root).value_or(kUnknown);
  put_text(h.boot_id, boot_id(root));
  put_text(h.host, this_host());
  put_text(h.command, start.command);
  put_text(h.folder, start.folder);
  if (group) put_text(h.group, "/" + group->lexically_relative(root).string());
  h.crc = crc_of(h);
  return h;
}

}  // namespace

std::string_view name_of(Phase p) {
  constexpr std::array<std::string_view, kPhases> kNames = {
      "starting", "load", "step", "update", "save", "evaluate", "finished", "stopped", "failed"};
  const auto index = to_size(p);
  return index < kNames.size() ? kNames[index] : "unknown";
}

FlightRecorder::FlightRecorder(const std::string& path, const FlightStart& start,
                               const std::filesystem::path& root, Clock now)
    : now_(now) {
  // Under its name only when whole: whoever looks meanwhile sees the earlier record.
  const std::string fresh = fmt::format("{}.{}", path, ::getpid());
  fd_ = FileDescriptor(::open(fresh.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd_) fail_io(fresh, "make the flight record", errno);
  const auto give_up = [&](const char* doing, int error) {
    ::unlink(fresh.c_str());
    fail_io(fresh, doing, error);
  };
  // Space for all of it: writing to a map of a full disk would be a SIGBUS.
  if (const int error = ::posix_fallocate(fd_.get(), 0, kFileBytes); error != 0) {
    give_up("take 8 KiB of disk space", error);
  }
  void* const map = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (map == MAP_FAILED) give_up("map it", errno);
  map_ = static_cast<std::byte*>(map);
  const Header header = make_header(start, root);
  std::memcpy(map_, &header, sizeof header);
  ::flock(fd_.get(), LOCK_EX | LOCK_NB);  // where locks do not work, readers look for the process
  update({});
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::munmap(map_, kFileBytes);
    give_up("give it its name", error);
  }
}

FlightRecorder::~FlightRecorder() { ::munmap(map_, kFileBytes); }

void FlightRecorder::refresh_available() {
  if (since_available_ && since_available_->seconds() < 0.1) return;
  since_available_.emplace(now_);
  std::array<char, 1024> text;  // MemAvailable is the third line
  const FileDescriptor file(::open("/proc/meminfo", O_RDONLY | O_CLOEXEC));
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : 0;
  const auto left =
      kilobytes_of({text.data(), to_size(std::max<ssize_t>(got, 0))}, "MemAvailable:");
  available_ = left.value_or(kUnknown);
}

void FlightRecorder::update(const FlightState& state, std::string_view note) {
  state_ = state;
  if (!note.empty()) put_text(note_, note);
  refresh_available();
  Slot s;
  std::memset(&s, 0, sizeof s);
  s.sequence = ++sequence_;
  s.updated = unix_now();
  s.phase = static_cast<std::uint32_t>(state.phase);
  s.step = state.step;
  s.epoch = state.epoch;
  s.loss = state.loss;
  s.measured = pack(state.measured);
  s.most = pack(state.most);
  s.available = available_;
  std::memcpy(s.note, note_, sizeof s.note);
  s.crc = crc_of(s);
  std::memcpy(map_ + kSlotAt + s.sequence % 2 * kSlotStride, &s, sizeof s);
  // A kill between this slot and the next finds this one in memory, whatever the compiler moves.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void FlightRecorder::phase(Phase phase, std::string_view note) {
  FlightState state = state_;
  state.phase = phase;
  update(state, note);
}

FlightRecord read_flight_record(const std::string& path) {
  const FileDescriptor fd = open_regular_file(path);
  std::array<std::byte, kFileBytes> bytes{};
  std::size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got =
        ::pread(fd.get(), bytes.data() + size, bytes.size() - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io(path, "read the flight record", errno);
    if (got == 0) break;
    size += to_size(got);
  }
  Header h;
  std::memcpy(&h, bytes.data(), sizeof h);
  if (size != kFileBytes || h.magic != kMagic) {
    fail(ErrorCode::input, "{} is no flight record: {} bytes, expected {} that begin with BLGRECRD",
         path, size, kFileBytes);
  }
  if (h.version != kVersion) {
    fail(ErrorCode::input, "{} is a flight record of version {}, this program reads {}", path,
         h.version, kVersion);
  }
  if (h.crc != crc_of(h)) {
    fail(ErrorCode::input, "{} is damaged: the checksum of its header is wrong", path);
  }
  FlightRecord r;
  r.pid = h.pid;
  r.start_ticks = h.start_ticks;
  r.started = h.started;
  r.started_since_boot = h.started_since_boot;
  r.boot_id = text_of(h.boot_id);
  r.host = text_of(h.host);
  r.start = {text_of(h.command), text_of(h.folder), h.total_steps, unpack(h.planned),
             unpack(h.allowed)};
  r.group = text_of(h.group);
  r.group_limit = known_bytes(h.group_limit);
  r.ram = known_bytes(h.ram);
  r.group_oom_kills = known(h.group_oom_kills);
  r.system_oom_kills = known(h.system_oom_kills);

  std::array<Slot, 2> slots;
  const Slot* newest = nullptr;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    std::memcpy(&slots[i], bytes.data() + kSlotAt + i * kSlotStride, sizeof(Slot));
    const bool whole = slots[i].crc == crc_of(slots[i]) && slots[i].sequence % 2 == i;
    const bool empty = slots[i].sequence == 0 && slots[i].crc == 0;
    if (!whole && !empty) r.torn = true;
    if (whole && slots[i].sequence > 0 && (!newest || slots[i].sequence > newest->sequence)) {
      newest = &slots[i];
    }
  }
  if (newest == nullptr) {
    fail(ErrorCode::input, "{} is damaged: neither of its two states is whole", path);
  }
  r.state = {static_cast<Phase>(newest->phase), newest->step,        newest->epoch, newest->loss,
             unpack(newest->measured),          unpack(newest->most)};
  r.updated = newest->updated;
  r.available = known_bytes(newest->available);
  r.note = text_of(newest->note);
  // The kernel may close the files of a killed process a moment after it is gone, so a lock without
  // its process is looked at again. Processes of another container keep theirs and are not seen.
  const FileDescriptor probe(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  for (int tries = 0; probe && tries < 20; ++tries) {
    r.locked = ::flock(probe.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!r.locked || ::kill(static_cast<pid_t>(r.pid), 0) == 0 || errno != ESRCH) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  return r;
}

}  // namespace ballast
