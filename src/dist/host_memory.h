#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/bytes.h"
#include "memory/file_descriptor.h"

namespace ballast {

// Why a job cannot finish: what became of the first rank that was lost.
struct RankLoss {
  enum class Cause { failed = 1, ended, killed, vanished };

  int rank = 0;  // of the job
  Cause cause = Cause::failed;
  int value = 0;  // exit code or signal
};
// "rank 3 was killed by SIGKILL"
std::string describe(const RankLoss& loss);
// "SIGKILL"; "signal 35" for those without a name.
std::string signal_name(int signal);

// Memory that the processes of one host share, in a memfd that the launcher makes and ranks
// inherit:
//
//   header    version, sizes, the job's token, the loss
//   ranks     a cache line for each: its process, whether it has ended
//   groups    kMaxGroups of: a name, a cache line of counters for each rank
//   windows   two of kWindow for each rank, for bytes on their way (host_ranks.h)
//
// All words are atomic: processes read them while others write.
class HostMemory {
 public:
  static constexpr int kMaxRanks = 256;
  static constexpr int kMaxGroups = 16;
  static constexpr std::size_t kWindow = std::size_t{4} << 20;

  // What a rank of a group tells the others.
  struct alignas(64) Line {
    std::atomic<std::uint64_t> published;  // pieces that it has written, since the group began
    std::atomic<std::uint64_t> consumed;   // pieces of all that it has read
    // The exchange that its next piece belongs to.
    std::atomic<std::uint64_t> bytes;
    std::atomic<std::uint32_t> operation;
    std::atomic<std::uint32_t> root;
    std::atomic<std::uint32_t> owner;  // its rank in the job and 1; 0: it has not joined yet
    std::atomic<std::uint32_t> left;   // 1: it takes part in no exchange of the group any more
    std::atomic<std::uint32_t> bell;   // a futex: another number after each change
    std::atomic<std::uint32_t> sleepers;

    // To be called after each change of the words above.
    void ring() noexcept;
    // Until the bell has another number than this, or the time is over; it may return earlier.
    // Whether the time is over.
    bool sleep(std::uint32_t number, std::chrono::milliseconds most) noexcept;
  };

  // A new one. Windows are not mapped: a launcher needs none.
  explicit HostMemory(int ranks);
  // That of a job, mapped and in RAM; `control` is all but the windows. Fails with
  // ErrorCode::input where `fd` is something else, or of another job.
  enum class Part { control, whole };
  HostMemory(int fd, std::string_view token, int ranks, Part part = Part::whole);
  // Only what this process maps goes.
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // RAM that it takes for so many ranks, all together.
  static Bytes size_for(int ranks);
  // What this process has mapped of it: its RssShmem has as much that other ranks count too.
  static Bytes mapped_by_process();

  int fd() const { return fd_.get(); }  // of the one who made it
  const std::string& token() const { return token_; }
  int ranks() const { return ranks_; }

  // The lines of a group's ranks, by its name; nullptr: there are kMaxGroups others. size: fails
  // where others have joined with another one.
  Line* group(std::string_view name, int size);
  std::byte* window(int rank, std::uint64_t number) const;  // number: even or odd

  // Who runs a rank, so that others see when it is gone.
  void set_process(int rank, int process) noexcept;
  // A rank's process makes itself known, once.
  bool attach(int rank) noexcept;
  // This rank takes part in nothing any more.
  void set_ended(int rank) noexcept;
  bool ended(int rank) const noexcept;

  // The first loss stays. Whoever sleeps wakes up.
  void lose(const RankLoss& loss) noexcept;
  std::optional<RankLoss> loss() const noexcept;
  // Records the loss of a rank whose process is gone. A launcher sees that at once and knows more:
  // this is for ranks that have outlived it.
  void lose_vanished_ranks() noexcept;

  // How a rank's process ended, as the launcher saw it: killed or ended, with its number.
  void set_end(const RankLoss& end) noexcept;
  std::optional<RankLoss> end_of(int rank) const noexcept;
  // Ranks have printed why the job ends, with this exit code.
  void set_reported(int code) noexcept;
  std::optional<int> reported() const noexcept;

  // Whether no other rank has printed this text. For messages that ranks would print alike.
  bool first_to_print(std::string_view text) noexcept;

 private:
  struct Header {
    std::array<char, 8> magic;
    std::uint32_t version, ranks;
    std::uint64_t size, window;
    std::array<char, 32> token;
    std::atomic<std::uint64_t> loss;                    // packed; 0: none
    std::atomic<std::uint32_t> reported;                // exit code and 1; 0: not yet
    std::array<std::atomic<std::uint64_t>, 8> printed;  // hashes of texts
  };
  struct alignas(64) RankState {
    std::atomic<std::int32_t> process;
    std::atomic<std::uint32_t> attached, ended;
    std::atomic<std::uint64_t> started;  // by the system's clock, against numbers used again
    std::atomic<std::uint64_t> end;      // packed as a loss; 0: it runs
  };
  struct alignas(64) GroupName {
    std::atomic<std::uint64_t> hash;
    std::atomic<std::uint32_t> size;
  };

  static std::size_t control_size(int ranks);
  void map(std::size_t size, int fd);
  void check_header(int fd, std::string_view token, int ranks) const;
  void ring_all() noexcept;
  Header& header() const;
  RankState& state(int rank) const;
  GroupName& name(int group) const;
  Line* lines(int group) const;

  FileDescriptor fd_;
  std::string token_;
  int ranks_ = 0;
  std::byte* base_ = nullptr;
  std::size_t mapped_ = 0;
};

}  // namespace ballast
