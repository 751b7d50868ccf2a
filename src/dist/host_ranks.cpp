#include "dist/host_ranks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/to_size.h"
#include "memory/gpu.h"

namespace ballast {
namespace {

using Line = HostMemory::Line;
using std::chrono::steady_clock;

constexpr std::chrono::microseconds kLook{50};
// A launcher wakes sleepers when a rank is gone. They look themselves so often, for a launcher that
// is gone.
constexpr std::chrono::milliseconds kLookForProcesses{100};

// By Operation.
constexpr std::array<std::string_view, 4> kOperationNames = {"barrier", "all_gather", "all_to_all",
                                                             "broadcast"};

// Another process wrote the number.
std::string_view name_of(std::uint32_t operation) {
  return operation < kOperationNames.size() ? kOperationNames[operation] : "an unknown operation";
}

std::size_t bytes_of_row(const ConstTensorView& v, int rows) {
  check(v.shape.rank() == 2 && (v.shape[1] <= 1 || v.strides[1] == 1),
        "ranks exchange rows, not {} with strides {}", v.shape, v.strides);
  check(v.shape[0] == rows, "{} rows for {} ranks", v.shape[0], rows);
  return to_size(v.shape[1]) * size_of(v.dtype);
}

void copy(std::byte* to, Device to_device, const std::byte* from, Device from_device,
          std::size_t bytes) {
  if (to == from || bytes == 0) return;
  if (to_device == Device::cuda || from_device == Device::cuda) {
    gpu_copy(to, from, {bytes});
  } else {
    std::memcpy(to, from, bytes);
  }
}

// The bytes of a row that are in one piece.
struct Piece {
  std::size_t begin = 0, bytes = 0;
};

void store(std::byte* window, const ConstTensorView& from, int row, Piece p) {
  if (p.bytes == 0) return;
  copy(window, Device::cpu, from.rows(row, 1).data + p.begin, from.device, p.bytes);
}

void load(const TensorView& to, int row, Piece p, const std::byte* window) {
  if (p.bytes == 0) return;
  copy(to.rows(row, 1).data + p.begin, to.device, window, Device::cpu, p.bytes);
}

void copy_own(const TensorView& to, int to_row, Piece p, const ConstTensorView& from, int row) {
  if (p.bytes == 0) return;
  copy(to.rows(to_row, 1).data + p.begin, to.device, from.rows(row, 1).data + p.begin, from.device,
       p.bytes);
}

}  // namespace

class HostRanks::Member : public Communicator {
 public:
  Member(HostRanks& ranks, Line* lines, std::string_view group, int rank, int size)
      : ranks_(ranks),
        memory_(ranks.memory_),
        lines_(lines),
        group_(group),
        rank_(rank),
        size_(size) {}
  ~Member() override { leave(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_gather(const ConstTensorView& mine, const TensorView& all, Stream) override {
    const std::size_t bytes = bytes_of_row(mine, 1), expected = bytes_of_row(all, size_);
    check(bytes == expected, "all_gather of {} bytes into rows of {}", bytes, expected);
    exchange(
        {Operation::all_gather, bytes, kWindow},
        [&](Piece p, std::byte* window) { store(window, mine, 0, p); },
        [&](int r, Piece p, const std::byte* window) {
          if (r == rank_) return copy_own(all, r, p, mine, 0);
          load(all, r, p, window);
        });
  }

  // A window holds a part for each rank.
  void all_to_all(const ConstTensorView& to, const TensorView& from, Stream) override {
    const std::size_t bytes = bytes_of_row(to, size_), expected = bytes_of_row(from, size_);
    check(bytes == expected, "all_to_all of rows of {} bytes into rows of {}", bytes, expected);
    const std::size_t part = kWindow / to_size(size_) / 64 * 64;
    exchange(
        {Operation::all_to_all, bytes, part},
        [&](Piece p, std::byte* window) {
          for (int r = 0; r < size_; ++r) {
            if (r != rank_) store(window + to_size(r) * part, to, r, p);
          }
        },
        [&](int r, Piece p, const std::byte* window) {
          if (r == rank_) return copy_own(from, r, p, to, r);
          load(from, r, p, window + to_size(rank_) * part);
        });
  }

  void broadcast(int root, const TensorView& b, Stream) override {
    check(root >= 0 && root < size_, "rank {} of {} broadcasts", root, size_);
    exchange(
        {Operation::broadcast, bytes_of_row(b, 1), kWindow, root},
        [&](Piece p, std::byte* window) {
          if (rank_ == root) store(window, b, 0, p);
        },
        [&](int r, Piece p, const std::byte* window) {
          if (r == root && r != rank_) load(b, 0, p, window);
        });
  }

  void barrier(Stream) override {
    exchange(
        {Operation::barrier, 0, kWindow}, [](Piece, std::byte*) {},
        [](int, Piece, const std::byte*) {});
  }

  void abort() noexcept override {
    memory_.lose({.rank = ranks_.rank_, .cause = RankLoss::Cause::failed});
  }

 private:
  enum class Operation : std::uint32_t { barrier, all_gather, all_to_all, broadcast };
  static constexpr std::size_t kWindow = HostMemory::kWindow;

  struct Exchange {
    Operation operation;
    std::size_t bytes;  // of a row
    std::size_t most;   // of a row in one piece
    int root = 0;

    std::uint64_t pieces() const { return std::max<std::uint64_t>(1, (bytes + most - 1) / most); }
    Piece piece(std::uint64_t i) const {
      return {to_size(i) * most, std::min(most, bytes - to_size(i) * most)};
    }
  };

  // Counters count pieces since the group began, also pieces of nothing: each exchange has at least
  // one. A rank reads piece i of the others when they have published it, and writes piece i + 2
  // into the window of piece i when all have consumed that. At the end all have consumed all, so
  // the windows are free for an exchange of another group, and nobody reads an older offer.
  template <class Write, class Read>
  void exchange(const Exchange& e, const Write& write, const Read& read) {
    check(!ranks_.exchanging_.exchange(true), "two exchanges of rank {} at once", ranks_.rank_);
    operation_ = e.operation;
    const std::uint64_t end = done_ + e.pieces();
    try {
      offer(e);
      for (std::uint64_t i = 0; i < e.pieces(); ++i) {
        if (i == 0) {
          fail_if_lost([] { return false; });
          publish(e, 0, write);
          await_all(&Line::published, done_ + 1);
          check_alike();
        }
        if (i + 1 < e.pieces()) {
          await_all(&Line::consumed, done_ + i);
          publish(e, i + 1, write);
        }
        for (int k = 0; k < size_; ++k) {  // each rank begins with another one
          const int r = (rank_ + k) % size_;
          await(&Line::published, r, done_ + i + 1);
          read(r, e.piece(i), memory_.window(owner(r), i));
        }
        advance(&Line::consumed, done_ + i + 1);
      }
      await_all(&Line::consumed, end);
    } catch (...) {
      leave();
      ranks_.exchanging_ = false;
      throw;
    }
    done_ = end;
    ranks_.exchanging_ = false;
  }

  void offer(const Exchange& e) {
    Line& mine = lines_[rank_];
    mine.operation = static_cast<std::uint32_t>(e.operation);
    mine.bytes = e.bytes;
    mine.root = static_cast<std::uint32_t>(e.root);
  }

  template <class Write>
  void publish(const Exchange& e, std::uint64_t i, const Write& write) {
    write(e.piece(i), memory_.window(ranks_.rank_, i));
    advance(&Line::published, done_ + i + 1);
  }

  void advance(std::atomic<std::uint64_t> Line::*counter, std::uint64_t to) {
    (lines_[rank_].*counter).store(to, std::memory_order_release);
    lines_[rank_].ring();
  }

  // All ranks see the same offers and fail alike.
  void check_alike() const {
    const Line& first = lines_[0];
    for (int r = 1; r < size_; ++r) {
      const Line& other = lines_[r];
      check(other.operation == first.operation && other.bytes == first.bytes,
            "group {}: rank 0 is at {} of {} bytes, rank {} at {} of {} bytes", group_,
            name_of(first.operation), first.bytes.load(), r, name_of(other.operation),
            other.bytes.load());
      check(other.root == first.root,
            "group {}: rank 0 is at {} from rank {}, rank {} from rank {}", group_,
            name_of(first.operation), first.root.load(), r, other.root.load());
    }
  }

  void await_all(std::atomic<std::uint64_t> Line::*counter, std::uint64_t least) {
    for (int k = 1; k < size_; ++k) await(counter, (rank_ + k) % size_, least);
  }

  void await(std::atomic<std::uint64_t> Line::*counter, int r, std::uint64_t least) {
    if (r == rank_) return;
    Line& line = lines_[r];
    const auto there = [&] { return (line.*counter).load(std::memory_order_acquire) >= least; };
    if (there()) return;
    const auto end = steady_clock::now() + kLook;
    while (steady_clock::now() < end) {
      if (there()) return;
      std::this_thread::yield();
    }
    for (;;) {
      const std::uint32_t number = line.bell;
      if (there()) return;
      fail_if_lost(there);
      if (line.sleep(number, kLookForProcesses)) memory_.lose_vanished_ranks();
    }
  }

  // Who is gone may have done its part before: `there` is asked once more. Who leaves in order has
  // seen that all are done.
  template <class There>
  void fail_if_lost(const There& there) const {
    const std::string_view name = name_of(static_cast<std::uint32_t>(operation_));
    if (const auto loss = memory_.loss(); loss && !there()) {
      fail(ErrorCode::lost,
           fmt::format("{}: {} of group {} cannot finish", describe(*loss), name, group_));
    }
    check(lines_[rank_].left == 0, "{} of group {}, which rank {} has left", name, group_, rank_);
    for (int r = 0; r < size_; ++r) {
      if (r == rank_ || !is_gone(r) || there()) continue;
      fail(ErrorCode::lost,
           fmt::format("rank {} of group {} left the run: {} cannot finish", r, group_, name));
    }
  }

  bool is_gone(int r) const {
    if (lines_[r].left != 0) return true;
    if (lines_[r].owner != 0) return memory_.ended(owner(r));
    // Nobody yet. It may be any rank that runs and is not in this group.
    for (int j = 0; j < memory_.ranks(); ++j) {
      if (!memory_.ended(j) && !is_member(j)) return false;
    }
    return lines_[r].owner == 0;  // else it joined meanwhile
  }

  bool is_member(int rank_of_job) const {
    for (int r = 0; r < size_; ++r) {
      if (lines_[r].owner != 0 && owner(r) == rank_of_job) return true;
    }
    return false;
  }

  // Rank r of the group, in the job.
  int owner(int r) const {
    const std::uint32_t number = lines_[r].owner;
    check(number > 0 && number <= static_cast<std::uint32_t>(memory_.ranks()),
          "rank {} of group {} is number {} of the job", r, group_, number);
    return static_cast<int>(number) - 1;
  }

  void leave() noexcept {
    lines_[rank_].left = 1;
    for (int r = 0; r < size_; ++r) lines_[r].ring();
  }

  HostRanks& ranks_;
  HostMemory& memory_;
  Line* lines_;
  std::string group_;
  int rank_, size_;
  std::uint64_t done_ = 0;  // pieces of earlier exchanges
  Operation operation_ = Operation::barrier;
};

HostRanks::HostRanks(int memory_fd, std::string_view token, int rank, int ranks)
    : memory_(memory_fd, token, ranks), rank_(rank) {
  check(rank >= 0 && rank < ranks, "rank {} of {} ranks", rank, ranks);
  if (!memory_.attach(rank)) {
    fail(ErrorCode::input, fmt::format("rank {} of this job runs already", rank));
  }
}

HostRanks::~HostRanks() { memory_.set_ended(rank_); }

std::unique_ptr<Communicator> HostRanks::join(std::string_view group, int rank, int size) {
  check(rank >= 0 && rank < size, "rank {} of {} joins group {}", rank, size, group);
  Line* const lines = memory_.group(group, size);
  check(lines != nullptr, "group {} is one too many: at most {}", group, HostMemory::kMaxGroups);
  std::uint32_t nobody = 0;
  check(lines[rank].owner.compare_exchange_strong(nobody, static_cast<std::uint32_t>(rank_) + 1),
        "rank {} of {} joins group {} twice", rank, size, group);
  return std::make_unique<Member>(*this, lines, group, rank, size);
}

}  // namespace ballast
