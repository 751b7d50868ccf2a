#include "dist/host_ranks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "memory/process_memory.h"
#include "tests/dist/run_ranks.h"
#include "tests/support/child_process.h"
#include "tests/support/errors.h"
#include "tests/support/wait_until.h"

namespace ballast::host_ranks_test {
namespace {

using test::ChildProcess;
using test::run_ranks;
using test::texts_of;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kWrong = 77;  // of a child whose bytes are wrong

// [rows, columns] of bytes in longer rows that begin anywhere; what is between them stays.
class Rows {
 public:
  Rows(std::int64_t rows, std::int64_t columns, std::int64_t gap)
      : rows_(rows),
        columns_(columns),
        step_(columns + gap),
        bytes_(to_size(rows * step_ + gap), std::byte{0xee}),
        begin_(to_size(gap)) {}

  std::byte* row(std::int64_t r) { return bytes_.data() + begin_ + r * step_; }
  TensorView view() {
    return TensorView(bytes_.data() + begin_, DType::u8, Shape{rows_, columns_}, Shape{step_, 1});
  }
  bool gaps_untouched() {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = columns_; c < step_ && r + 1 < rows_; ++c) {
        if (row(r)[c] != std::byte{0xee}) return false;
      }
    }
    return true;
  }

 private:
  std::int64_t rows_, columns_, step_;
  std::vector<std::byte> bytes_;
  std::size_t begin_;
};

// Columns of the row that a rank sends: a part of one random row, by its rank, row and round.
class Sent {
 public:
  Sent(int rank, std::int64_t row, int round, std::int64_t columns)
      : begin_(random_bytes().data() + (37 * rank + 11 * row + 101 * round) % kOffsets),
        columns_(to_size(columns)) {}

  void copy_to(std::byte* to) const { std::memcpy(to, begin_, columns_); }
  bool is(const std::byte* found) const { return std::memcmp(found, begin_, columns_) == 0; }

 private:
  static constexpr std::int64_t kOffsets = 4096;
  static const std::vector<std::byte>& random_bytes() {
    static const std::vector<std::byte> bytes = [] {
      std::vector<std::byte> b(4 * HostMemory::kWindow);
      std::mt19937_64 random(3);
      for (std::size_t i = 0; i + 8 <= b.size(); i += 8) {
        const std::uint64_t next = random();
        std::memcpy(&b[i], &next, 8);
      }
      return b;
    }();
    return bytes;
  }

  const std::byte* begin_;
  std::size_t columns_;
};

void fill(Rows& rows, int rank, std::int64_t count, std::int64_t columns, int round) {
  for (std::int64_t r = 0; r < count; ++r) Sent(rank, r, round, columns).copy_to(rows.row(r));
}

enum class Kind { barrier, all_gather, all_to_all, broadcast };

// One exchange; whether all bytes are right, and may be overwritten at once.
bool exchange(Communicator& group, Kind kind, std::int64_t columns, std::int64_t gap, int root,
              int round) {
  const int n = group.size(), me = group.rank();
  Rows to(n, columns, gap), from(n, columns, gap), one(1, columns, gap);
  fill(to, me, n, columns, round);
  fill(one, me, 1, columns, round);
  if (kind == Kind::barrier) group.barrier({});
  if (kind == Kind::all_gather) group.all_gather(one.view(), from.view(), {});
  if (kind == Kind::all_to_all) group.all_to_all(to.view(), from.view(), {});
  if (kind == Kind::broadcast) group.broadcast(root, one.view(), {});
  bool right = from.gaps_untouched();
  for (int r = 0; r < n; ++r) {
    if (kind == Kind::all_gather) right &= Sent(r, 0, round, columns).is(from.row(r));
    if (kind == Kind::all_to_all) right &= Sent(r, me, round, columns).is(from.row(r));
  }
  if (kind == Kind::broadcast) right &= Sent(root, 0, round, columns).is(one.row(0));
  fill(to, 200, n, columns, round);
  fill(one, 200, 1, columns, round);
  return right;
}

// The same on all ranks.
bool random_exchange(Communicator& group, int round) {
  std::mt19937 random(static_cast<unsigned>(round));
  const auto kind = static_cast<Kind>(random() % 4);
  const auto columns = static_cast<std::int64_t>(random() % 300);
  const auto gap = static_cast<std::int64_t>(random() % 5);
  const int root = static_cast<int>(random() % static_cast<unsigned>(group.size()));
  return exchange(group, kind, columns, gap, root, round);
}

// body(transport, rank) of a process for each rank; it returns the exit code.
class Processes {
 public:
  template <class Body>
  Processes(int ranks, const Body& body) : memory(ranks) {
    const Sent made_once_for_all(0, 0, 0, 0);
    for (int r = 0; r < ranks; ++r) {
      processes.push_back(std::make_unique<ChildProcess>([&, r] {
        try {
          HostRanks transport(memory.fd(), memory.token(), r, ranks);
          return body(transport, r);
        } catch (const Error& e) {
          if (e.code() != ErrorCode::lost) std::fprintf(stderr, "rank %d: %s\n", r, e.what());
          return static_cast<int>(e.code());
        }
      }));
      memory.set_process(r, processes.back()->pid());
    }
  }

  // Exit codes, or minus the signals. That of `first` is collected first: until then its process
  // is there.
  std::vector<int> wait(int first = 0) {
    std::vector<int> codes(processes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const std::size_t r = (to_size(first) + i) % codes.size();
      codes[r] = processes[r]->wait();
    }
    return codes;
  }

  HostMemory memory;
  std::vector<std::unique_ptr<ChildProcess>> processes;
};

class HostRanksOfSize : public testing::TestWithParam<int> {};

TEST_P(HostRanksOfSize, ExchangeWhatAPlainReferenceSays) {
  const int ranks = GetParam();
  Processes all(ranks, [&](HostRanks& transport, int rank) {
    const auto group = transport.join("all", rank, ranks);
    for (int round = 0; round < 120; ++round) {
      if (!random_exchange(*group, round)) return kWrong;
    }
    return 0;
  });
  EXPECT_THAT(all.wait(), testing::Each(0));
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostRanksOfSize, testing::Values(1, 2, 3, 4, 5, 6, 7, 8));

// Rows of whole pieces, and of a few bytes more.
TEST(HostRanks, ExchangeRowsLargerThanWindows) {
  const auto window = static_cast<std::int64_t>(HostMemory::kWindow);
  const auto expect_right = [&](int ranks, std::int64_t columns) {
    Processes all(ranks, [&](HostRanks& transport, int rank) {
      const auto group = transport.join("all", rank, ranks);
      int round = 0;
      for (const Kind kind : {Kind::all_gather, Kind::all_to_all, Kind::broadcast}) {
        if (!exchange(*group, kind, columns, 3, ranks - 1, ++round)) return kWrong;
      }
      return 0;
    });
    EXPECT_THAT(all.wait(), testing::Each(0)) << ranks;
  };
  expect_right(2, window);
  expect_right(2, 2 * window + 17);
  expect_right(3, window + 1);
}

// Ranks are threads below, each with a mapping of its own: what each of them fails with can be
// seen.
template <class Body>
std::vector<std::optional<Error>> run_mapped(int ranks, const Body& body) {
  const HostMemory memory(ranks);
  return run_ranks(ranks, [&](int rank) {
    HostRanks transport(memory.fd(), memory.token(), rank, ranks);
    body(transport, rank);
  });
}

TEST(HostRanks, GatherInPlace) {
  std::atomic<int> wrong = 0;
  run_mapped(3, [&](HostRanks& transport, int rank) {
    const auto all = transport.join("all", rank, 3);
    std::vector<std::byte> bytes(3, std::byte{0});
    bytes[to_size(rank)] = static_cast<std::byte>(rank + 1);
    const TensorView view(bytes.data(), DType::u8, Shape{3, 1});
    all->all_gather(view.rows(rank, 1), view, {});
    for (int r = 0; r < 3; ++r) wrong += bytes[to_size(r)] != static_cast<std::byte>(r + 1);
  });
  EXPECT_EQ(wrong, 0);
}

// Groups share the windows of a rank; ranks have other numbers in them.
TEST(HostRanks, AreInSeveralGroups) {
  constexpr int kRanks = 4;
  std::atomic<int> wrong = 0;
  const auto errors = run_mapped(kRanks, [&](HostRanks& transport, int rank) {
    const auto all = transport.join("all", kRanks - 1 - rank, kRanks);
    const auto half = transport.join(rank < 2 ? "a" : "b", rank % 2, 2);
    for (int round = 0; round < 60; ++round) {
      wrong += !random_exchange(*half, 1000 * (rank / 2) + round);
      wrong += !random_exchange(*all, round);
    }
  });
  EXPECT_THAT(texts_of(errors), IsEmpty());
  EXPECT_EQ(wrong, 0);
}

TEST(HostRanks, SayWhoIsAtAnotherExchange) {
  const auto errors = run_mapped(3, [&](HostRanks& transport, int rank) {
    const auto all = transport.join("all", rank, 3);
    std::vector<std::byte> bytes(4);
    const TensorView view(bytes.data(), DType::u8, Shape{1, 4});
    if (rank == 2) return all->broadcast(0, view, {});
    all->barrier({});
  });
  for (const auto& e : errors) {
    ASSERT_TRUE(e.has_value());
    EXPECT_EQ(e->code(), ErrorCode::internal);
    EXPECT_THAT(e->what(), HasSubstr("group all: rank 0 is at barrier of 0 bytes, rank 2 at "
                                     "broadcast of 4 bytes"));
  }
}

TEST(HostRanks, SayWhoHasOtherSizesOrAnotherRoot) {
  const auto error_of_broadcasts = [](int last_root, std::int64_t last_bytes) {
    const auto errors = run_mapped(2, [&](HostRanks& transport, int rank) {
      const auto all = transport.join("all", rank, 2);
      // Larger than windows: pieces of the larger row never come.
      const auto size = rank == 0 ? static_cast<std::int64_t>(3 * HostMemory::kWindow) : last_bytes;
      Rows row(1, size, 0);
      all->broadcast(rank == 0 ? 0 : last_root, row.view(), {});
    });
    EXPECT_TRUE(errors[0] && errors[1]);
    EXPECT_STREQ(errors[0]->what(), errors[1]->what());
    return std::string(errors[0]->what());
  };
  EXPECT_THAT(error_of_broadcasts(0, 5),
              HasSubstr("rank 0 is at broadcast of 12582912 bytes, rank 1 at broadcast of 5"));
  EXPECT_THAT(error_of_broadcasts(1, static_cast<std::int64_t>(3 * HostMemory::kWindow)),
              HasSubstr("rank 0 is at broadcast from rank 0, rank 1 from rank 1"));
}

// Rank 0 waits for rank 1 in one group while rank 2, of another one, gives up.
TEST(HostRanks, AnAbortReachesEveryGroup) {
  const auto errors = run_mapped(3, [&](HostRanks& transport, int rank) {
    if (rank == 2) {
      const auto b = transport.join("b", 1, 2);
      b->abort();
      return b->barrier({});
    }
    const auto a = transport.join("a", rank, 2);
    if (rank == 0) return a->barrier({});
    const auto b = transport.join("b", 0, 2);
    b->barrier({});
  });
  for (const auto& e : errors) {
    ASSERT_TRUE(e.has_value());
    EXPECT_EQ(e->code(), ErrorCode::lost);
    EXPECT_THAT(e->what(), HasSubstr("rank 2 cannot go on: barrier of group "));
  }
}

// By another thread than the one that waits.
TEST(HostRanks, AnAbortEndsTheOwnExchange) {
  const HostMemory memory(2);
  HostRanks transport(memory.fd(), memory.token(), 0, 2);
  const auto all = transport.join("all", 0, 2);
  std::thread other([&] { all->abort(); });
  EXPECT_FAILS(all->barrier({}), ErrorCode::lost, "rank 0 cannot go on: barrier of group all");
  other.join();
  EXPECT_FAILS(all->barrier({}), ErrorCode::lost, "rank 0 cannot go on");
}

TEST(HostRanks, LeavingAfterTheLastExchangeHarmsNobody) {
  for (int round = 0; round < 30; ++round) {
    const auto errors = run_mapped(
        4, [&](HostRanks& transport, int rank) { transport.join("all", rank, 4)->barrier({}); });
    EXPECT_THAT(texts_of(errors), IsEmpty());
  }
}

TEST(HostRanks, WaitForNobodyWhoHasLeft) {
  const auto errors = run_mapped(3, [&](HostRanks& transport, int rank) {
    const auto all = transport.join("all", rank, 3);
    for (int round = 0; round < 4; ++round) {
      if (rank == 1 && round == 2) return;
      all->barrier({});
    }
  });
  EXPECT_FALSE(errors[1].has_value());
  for (const std::size_t rank : {0u, 2u}) {
    ASSERT_TRUE(errors[rank].has_value());
    EXPECT_EQ(errors[rank]->code(), ErrorCode::lost);
    EXPECT_THAT(errors[rank]->what(),
                HasSubstr("of group all left the run: barrier cannot finish"));
  }
}

// Its process runs.
TEST(HostRanks, WaitForNobodyWhoHasLeftTheGroup) {
  const HostMemory memory(2);
  HostRanks first(memory.fd(), memory.token(), 0, 2), second(memory.fd(), memory.token(), 1, 2);
  const auto all = first.join("all", 0, 2);
  second.join("all", 1, 2).reset();
  EXPECT_FAILS(all->barrier({}), ErrorCode::lost,
               "rank 1 of group all left the run: barrier cannot finish");
}

// One of them never joins: it has ended before.
TEST(HostRanks, WaitForNobodyWhoHasEnded) {
  const auto errors = run_mapped(3, [&](HostRanks& transport, int rank) {
    if (rank != 1) transport.join("all", rank, 3)->barrier({});
  });
  for (const std::size_t rank : {0u, 2u}) {
    ASSERT_TRUE(errors[rank].has_value());
    EXPECT_EQ(errors[rank]->code(), ErrorCode::lost);
  }
}

// Nobody is there to tell of it: the others look for its process.
TEST(HostRanks, ARankThatIsKilledAtAnyTimeLeavesNobodyWaiting) {
  constexpr int kRanks = 3;
  std::mt19937 random(5);
  for (int round = 0; round < 6; ++round) {
    Processes all(kRanks, [&](HostRanks& transport, int rank) {
      const auto group = transport.join("all", rank, kRanks);
      for (int i = 0;; ++i) {
        if (!random_exchange(*group, i)) return kWrong;
      }
    });
    const int victim = static_cast<int>(random() % kRanks);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    all.processes[to_size(victim)]->send(SIGKILL);
    std::vector<int> expected(kRanks, static_cast<int>(ErrorCode::lost));
    expected[to_size(victim)] = -SIGKILL;
    EXPECT_EQ(all.wait(victim), expected);
  }
}

TEST(HostRanks, LookForTheProcessesOfOthersWhileTheyWait) {
  const HostMemory memory(2);
  HostRanks transport(memory.fd(), memory.token(), 0, 2);
  const auto all = transport.join("all", 0, 2);
  ChildProcess other([&] {
    HostRanks theirs(memory.fd(), memory.token(), 1, 2);
    const auto group = theirs.join("all", 1, 2);
    group->barrier({});
    ::raise(SIGKILL);
    return 0;
  });
  all->barrier({});
  EXPECT_FAILS(all->barrier({}), ErrorCode::lost,
               "the process of rank 1 is gone: barrier of group all cannot finish");
  EXPECT_EQ(other.wait(), -SIGKILL);
}

TEST(HostRanks, SayWhatBecameOfARank) {
  const HostMemory memory(2);
  HostRanks transport(memory.fd(), memory.token(), 0, 2);
  const auto all = transport.join("all", 0, 2);
  HostMemory launcher(memory.fd(), memory.token(), 2, HostMemory::Part::control);
  EXPECT_FALSE(transport.lost());
  launcher.lose({.rank = 1, .cause = RankLoss::Cause::killed, .value = SIGSEGV});
  EXPECT_TRUE(transport.lost());
  launcher.lose({.rank = 0, .cause = RankLoss::Cause::ended, .value = 4});
  EXPECT_FAILS(all->barrier({}), ErrorCode::lost, "rank 1 was killed by SIGSEGV: barrier of group");
  EXPECT_EQ(describe({.rank = 2, .cause = RankLoss::Cause::ended, .value = 4}),
            "rank 2 ended with exit code 4");
}

TEST(HostRanks, RefuseWhatIsNotExchangedRowByRow) {
  const HostMemory memory(1);
  HostRanks transport(memory.fd(), memory.token(), 0, 1);
  const auto all = transport.join("all", 0, 1);
  std::vector<std::byte> bytes(16);
  const TensorView four(bytes.data(), DType::u8, Shape{1, 4});
  const TensorView apart(bytes.data(), DType::u8, Shape{1, 4}, Shape{8, 2});
  EXPECT_FAILS(all->broadcast(0, apart, {}), ErrorCode::internal, "ranks exchange rows");
  EXPECT_FAILS(all->all_gather(four, TensorView(bytes.data(), DType::u8, Shape{1, 5}), {}),
               ErrorCode::internal, "all_gather of 4 bytes into rows of 5");
  EXPECT_FAILS(all->broadcast(1, four, {}), ErrorCode::internal, "rank 1 of 1 broadcasts");
  all->broadcast(0, four, {});  // nothing was begun
}

TEST(HostRanks, JoinAGroupOnceAndWithOneSize) {
  const HostMemory memory(2);
  HostRanks first(memory.fd(), memory.token(), 0, 2), second(memory.fd(), memory.token(), 1, 2);
  const auto all = first.join("all", 0, 2);
  EXPECT_FAILS(second.join("all", 0, 2), ErrorCode::internal, "rank 0 of 2 joins group all twice");
  EXPECT_FAILS(second.join("all", 0, 1), ErrorCode::internal, "is joined as one of 1");
  EXPECT_FAILS(second.join("other", 2, 3), ErrorCode::internal, "group other of 3 in a job of 2");
  for (int i = 1; i < HostMemory::kMaxGroups; ++i) {
    second.join("group " + std::to_string(i), 0, 1)->barrier({});
  }
  EXPECT_FAILS(second.join("more", 0, 1), ErrorCode::internal, "group more is one too many");
  EXPECT_FAILS(HostRanks(memory.fd(), memory.token(), 1, 2), ErrorCode::input,
               "rank 1 of this job runs already");
}

TEST(HostMemory, OfAnotherJobOrKindIsRefused) {
  const HostMemory memory(2);
  const auto refused = [](int fd, std::string_view token, int ranks, std::string_view why) {
    EXPECT_FAILS(HostMemory(fd, token, ranks), ErrorCode::input, std::string(why));
  };
  const std::string& token = memory.token();
  refused(memory.fd(), std::string(32, '0'), 2, "the token of the job is another one");
  refused(memory.fd(), token, 3, "bytes, 3 ranks share");
  refused(-1, token, 2, "Bad file descriptor");
  const FileDescriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  refused(nothing.get(), token, 2, "it is another kind of file");
  const FileDescriptor unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  refused(unsealed.get(), token, 2, "it is another kind of file");
}

// Every word of the header in turn.
TEST(HostMemory, WithAGarbledHeaderIsRefused) {
  for (std::size_t byte = 0; byte < 64; byte += 4) {
    const HostMemory memory(2);
    const FileDescriptor copy(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
    char old = 0;
    ASSERT_EQ(::pread(copy.get(), &old, 1, static_cast<off_t>(byte)), 1);
    const char changed = static_cast<char>(old ^ 0x41);
    ASSERT_EQ(::pwrite(copy.get(), &changed, 1, static_cast<off_t>(byte)), 1);
    EXPECT_FAILS(HostMemory(copy.get(), memory.token(), 2), ErrorCode::input,
                 "is not the memory that the ranks of this job share");
  }
}

TEST(HostMemory, IsMappedAndInRamAsItSays) {
  const HostMemory launcher(2);
  const Bytes control = HostMemory::mapped_by_process();
  EXPECT_LT(control, 1_MiB);
  EXPECT_EQ(HostRanks::memory_for(2) - control, Bytes{4 * HostMemory::kWindow});
  const auto before = process_memory(Counting::quick);
  const HostMemory rank(launcher.fd(), launcher.token(), 2);
  EXPECT_EQ(HostRanks::mapped_by_process() - control, HostRanks::memory_for(2));
  const auto after = process_memory(Counting::quick);
  ASSERT_TRUE(before && after);
  // The kernel counts in batches of pages.
  EXPECT_GT(after->shared - before->shared, HostRanks::memory_for(2) - 2_MiB);
}

TEST(HostMemory, OneOfTheRanksPrintsWhatAllSay) {
  HostMemory first(2);
  HostMemory second(first.fd(), first.token(), 2, HostMemory::Part::control);
  EXPECT_TRUE(first.first_to_print("no file\n"));
  EXPECT_FALSE(second.first_to_print("no file\n"));
  EXPECT_TRUE(second.first_to_print("another thing\n"));
  EXPECT_FALSE(first.first_to_print("another thing\n"));
}

}  // namespace
}  // namespace ballast::host_ranks_test
