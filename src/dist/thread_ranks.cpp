#include "dist/thread_ranks.h"

#include <cstring>
#include <exception>

#include "core/error.h"
#include "core/to_size.h"
#include "memory/gpu.h"

namespace ballast {
namespace {

std::size_t row_bytes(const ConstTensorView& v) {
  check(v.shape.rank() == 2 && (v.shape[1] <= 1 || v.strides[1] == 1),
        "ranks exchange rows, not {} with strides {}", v.shape, v.strides);
  return to_size(v.shape[1]) * size_of(v.dtype);
}

void copy_row(const ConstTensorView& from, std::int64_t row, const TensorView& to,
              std::int64_t to_row) {
  const std::byte* const source = from.rows(row, 1).data;
  std::byte* const target = to.rows(to_row, 1).data;
  const std::size_t bytes = row_bytes(from);
  if (source == target || bytes == 0) return;
  if (from.device == Device::cuda || to.device == Device::cuda) {
    gpu_copy(target, source, {bytes});
  } else {
    std::memcpy(target, source, bytes);
  }
}

}  // namespace

class ThreadRanks::Member : public Communicator {
 public:
  Member(ThreadRanks& ranks, Group& group, int rank) : ranks_(ranks), group_(group), rank_(rank) {}
  ~Member() override {
    const std::lock_guard lock(ranks_.mutex_);
    group_.lose({.group = &group_, .rank = rank_});
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.offers.size()); }

  void all_gather(const ConstTensorView& mine, const TensorView& all, Stream) override {
    check_rows(mine, 1);
    check_rows(all, size());
    exchange("all_gather", mine, row_bytes(all), [&] {
      for (int r = 0; r < size(); ++r) copy_row(offered(r), 0, all, r);
    });
  }

  void all_to_all(const ConstTensorView& to, const TensorView& from, Stream) override {
    check_rows(to, size());
    check_rows(from, size());
    exchange("all_to_all", to, row_bytes(from), [&] {
      for (int r = 0; r < size(); ++r) copy_row(offered(r), rank_, from, r);
    });
  }

  void broadcast(int root, const TensorView& b, Stream) override {
    check(root >= 0 && root < size(), "rank {} of {} broadcasts", root, size());
    check_rows(b, 1);
    exchange("broadcast", b, row_bytes(b), [&] { copy_row(offered(root), 0, b, 0); });
  }

  void barrier(Stream) override {
    exchange("barrier", {}, 0, [] {});
  }

  void abort() noexcept override {
    const std::lock_guard lock(ranks_.mutex_);
    if (!ranks_.aborted_) ranks_.aborted_ = {.group = &group_, .rank = rank_, .aborted = true};
    for (auto& [name, group] : ranks_.groups_) group->lose(ranks_.aborted_);
  }

 private:
  const ConstTensorView& offered(int rank) const { return group_.offers[to_size(rank)].rows; }

  static void check_rows(const ConstTensorView& v, int rows) {
    row_bytes(v);
    check(v.shape[0] == rows, "{} rows for {} ranks", v.shape[0], rows);
  }

  // While anybody copies, the memory and offers of all ranks stay as they are, and are read without
  // the lock: whoever fails meanwhile waits for the others' copies before its memory may go.
  template <class Copy>
  void exchange(std::string_view operation, const ConstTensorView& mine, std::size_t bytes,
                const Copy& copy) {
    std::unique_lock lock(ranks_.mutex_);
    group_.offers[to_size(rank_)] = {operation, bytes, mine};
    ranks_.await_all(lock, group_, operation);
    lock.unlock();
    std::exception_ptr error;
    try {
      check_alike();
      copy();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (--group_.copying == 0) group_.next.notify_all();
    if (error) {
      group_.await_copies(lock);
      std::rethrow_exception(error);
    }
    ranks_.await_all(lock, group_, operation);
  }

  // All ranks see the same offers and fail alike.
  void check_alike() const {
    const Offer& first = group_.offers[0];
    for (std::size_t r = 1; r < group_.offers.size(); ++r) {
      const Offer& other = group_.offers[r];
      check(other.operation == first.operation && other.bytes == first.bytes,
            "group {}: rank 0 is at {} of {} bytes, rank {} at {} of {} bytes", group_.name,
            first.operation, first.bytes, r, other.operation, other.bytes);
    }
  }

  ThreadRanks& ranks_;
  Group& group_;
  int rank_;
};

std::unique_ptr<Communicator> ThreadRanks::join(std::string_view group, int rank, int size) {
  check(rank >= 0 && rank < size, "rank {} of {} joins group {}", rank, size, group);
  const std::lock_guard lock(mutex_);
  auto& there = groups_[std::string(group)];
  if (!there) {
    there = std::make_unique<Group>();
    there->name = group;
    there->offers.resize(to_size(size));
    there->joined.resize(to_size(size));
    there->loss = aborted_;
  }
  check(there->offers.size() == to_size(size) && !there->joined[to_size(rank)],
        "rank {} of {} joins group {} of {} twice, or with another size", rank, size, group,
        there->offers.size());
  auto member = std::make_unique<Member>(*this, *there, rank);
  there->joined[to_size(rank)] = true;
  return member;
}

// Where all have come it succeeds, though one of them may be gone already: it came here before.
void ThreadRanks::await_all(std::unique_lock<std::mutex>& lock, Group& group,
                            std::string_view operation) {
  const std::uint64_t mine = group.phase;
  const int size = static_cast<int>(group.offers.size());
  if (!group.loss && ++group.arrived == size) {
    group.arrived = 0;
    if (mine % 2 == 0) group.copying = size;
    ++group.phase;
    group.next.notify_all();
    return;
  }
  group.next.wait(lock, [&] { return group.phase != mine || group.loss; });
  if (group.phase == mine) {
    group.await_copies(lock);
    const Loss& loss = group.loss;
    fail(ErrorCode::lost,
         fmt::format("rank {} of group {} {}: {} cannot finish", loss.rank, loss.group->name,
                     loss.aborted ? "cannot go on" : "left the run", operation));
  }
}

void ThreadRanks::Group::await_copies(std::unique_lock<std::mutex>& lock) {
  next.wait(lock, [this] { return copying == 0; });
}

void ThreadRanks::Group::lose(const Loss& by) noexcept {
  if (!loss) loss = by;
  next.notify_all();
}

}  // namespace ballast
