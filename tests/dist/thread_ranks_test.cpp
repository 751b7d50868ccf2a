#include "dist/thread_ranks.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <random>
#include <thread>

#include "plan/program_builder.h"
#include "plan/runner.h"
#include "tests/dist/run_ranks.h"
#include "tests/support/errors.h"

namespace ballast::thread_ranks_test {
namespace {

using test::run_ranks;
using test::texts_of;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;

// [rows, columns] of bytes at the beginning of longer rows, which nobody may touch.
class Rows {
 public:
  Rows(std::int64_t rows, std::int64_t columns, int gap)
      : rows_(rows),
        columns_(columns),
        step_(columns + gap),
        bytes_(to_size(rows * step_), std::byte{0xee}) {}

  std::byte& at(std::int64_t r, std::int64_t c) { return bytes_[to_size(r * step_ + c)]; }
  TensorView view() {
    return TensorView(bytes_.data(), DType::u8, Shape{rows_, columns_}, Shape{step_, 1});
  }
  bool gaps_untouched() {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = columns_; c < step_; ++c) {
        if (at(r, c) != std::byte{0xee}) return false;
      }
    }
    return true;
  }

 private:
  std::int64_t rows_, columns_, step_;
  std::vector<std::byte> bytes_;
};

std::byte sent(int rank, std::int64_t row, std::int64_t column, int round) {
  return static_cast<std::byte>(37 * rank + 11 * row + 3 * column + 101 * round + 1);
}

void fill(Rows& rows, int rank, std::int64_t count, std::int64_t columns, int round) {
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) rows.at(r, c) = sent(rank, r, c, round);
  }
}

// One exchange of a random kind, the same on all ranks; how many bytes are wrong.
int exchange_once(Communicator& group, int round) {
  std::mt19937 random(static_cast<unsigned>(round));
  const auto columns = static_cast<std::int64_t>(random() % 40);
  const int kind = static_cast<int>(random() % 4), root = static_cast<int>(random()) & 0xffff;
  const int gap = static_cast<int>(random() % 3), n = group.size(), me = group.rank();
  Rows to(n, columns, gap), from(n, columns, gap), one(1, columns, 0);
  fill(to, me, n, columns, round);
  fill(one, me, 1, columns, round);
  int wrong = 0;
  const auto expect = [&](std::byte got, std::byte want) { wrong += got != want; };
  if (kind == 0) group.barrier({});
  if (kind == 1) group.all_gather(one.view(), from.view(), {});
  if (kind == 2) group.all_to_all(to.view(), from.view(), {});
  if (kind == 3) group.broadcast(root % n, one.view(), {});
  for (std::int64_t c = 0; c < columns; ++c) {
    for (int r = 0; r < n; ++r) {
      if (kind == 1) expect(from.at(r, c), sent(r, 0, c, round));
      if (kind == 2) expect(from.at(r, c), sent(r, me, c, round));
    }
    if (kind == 3) expect(one.at(0, c), sent(root % n, 0, c, round));
  }
  // What was sent may be overwritten at once.
  fill(to, 200, n, columns, round);
  fill(one, 200, 1, columns, round);
  return wrong + !from.gaps_untouched();
}

class ThreadRanksOfSize : public testing::TestWithParam<int> {};

TEST_P(ThreadRanksOfSize, ExchangeWhatAPlainReferenceSays) {
  const int ranks = GetParam(), rounds = ranks > 16 ? 30 : 200;
  ThreadRanks transport;
  std::atomic<int> wrong = 0;
  const auto errors = run_ranks(ranks, [&](int rank) {
    const auto all = transport.join("all", rank, ranks);
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int round = 0; round < rounds; ++round) {
      for (unsigned i = random() % 4; i-- > 0;) std::this_thread::yield();
      wrong += exchange_once(*all, round);
    }
  });
  EXPECT_THAT(texts_of(errors), IsEmpty());
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadRanksOfSize, testing::Values(1, 2, 3, 8, 64));

TEST(ThreadRanks, GatherInPlace) {
  ThreadRanks transport;
  std::atomic<int> wrong = 0;
  run_ranks(3, [&](int rank) {
    const auto all = transport.join("all", rank, 3);
    std::vector<std::byte> bytes(3, std::byte{0});
    bytes[to_size(rank)] = static_cast<std::byte>(rank + 1);
    const TensorView view(bytes.data(), DType::u8, Shape{3, 1});
    all->all_gather(view.rows(rank, 1), view, {});
    for (int r = 0; r < 3; ++r) wrong += bytes[to_size(r)] != static_cast<std::byte>(r + 1);
  });
  EXPECT_EQ(wrong, 0);
}

TEST(ThreadRanks, SayWhoIsAtAnotherExchange) {
  ThreadRanks transport;
  const auto errors = run_ranks(3, [&](int rank) {
    const auto all = transport.join("all", rank, 3);
    std::vector<std::byte> bytes(4);
    const TensorView view(bytes.data(), DType::u8, Shape{1, 4});
    if (rank == 2) {
      all->broadcast(0, view, {});
    } else {
      all->barrier({});
    }
  });
  for (const auto& e : errors) {
    ASSERT_TRUE(e.has_value());
    EXPECT_EQ(e->code(), ErrorCode::internal);
    EXPECT_THAT(e->what(), HasSubstr("rank 0 is at barrier of 0 bytes, rank 2 at broadcast"));
  }
}

// Rank 0 waits for rank 1 in one group while rank 2, of another one, gives up.
TEST(ThreadRanks, AnAbortReachesEveryGroup) {
  ThreadRanks transport;
  const auto errors = run_ranks(3, [&](int rank) {
    if (rank == 2) {
      transport.join("b", 1, 2)->abort();
      return;
    }
    const auto a = transport.join("a", rank, 2);
    if (rank == 0) return a->barrier({});
    const auto b = transport.join("b", 0, 2);
    b->barrier({});
  });
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(errors[to_size(rank)].has_value());
    EXPECT_EQ(errors[to_size(rank)]->code(), ErrorCode::lost);
  }
  EXPECT_FALSE(errors[2].has_value());
}

// A rank that has done its part may go, others finish what it took part in.
TEST(ThreadRanks, LeavingAfterTheLastExchangeHarmsNobody) {
  for (int round = 0; round < 50; ++round) {
    ThreadRanks transport;
    const auto errors =
        run_ranks(4, [&](int rank) { transport.join("all", rank, 4)->barrier({}); });
    EXPECT_THAT(texts_of(errors), IsEmpty());
  }
}

// A program of one rank: kRounds times it makes a row of numbers, gathers those of all ranks and
// adds them up; then every rank tells every other one its sum.
constexpr int kRounds = 3;
constexpr int kExchanges = kRounds + 2;

struct RankProgram {
  // fails_at: the exchange in which this rank fails, or the compute instruction before it.
  RankProgram(int rank, int ranks, int width = 5, int fails_at = -1, bool while_computing = false) {
    set.groups.push_back({.name = "all", .size = ranks, .mine = rank});
    ProgramBuilder pb(set, "step");
    sum = pb.persistent("sum", {width}, DType::f32, Role::output);
    sums = pb.persistent("sums", {ranks, width}, DType::f32, Role::output);
    int number = 0;
    const auto exchange = [&](std::string_view name, Access access, auto run) {
      const bool fails = number++ == fails_at;
      const auto broken = [] { fail(ErrorCode::io, "a broken rank"); };
      pb.emit("before", {.reads = {sum}, .writes = {sum}}, [=, b = sum](const Bindings& at) {
        at.out(b);
        if (fails && while_computing) broken();
      });
      access.lane = Lane::network;
      access.cost = {.work = Work::network, .bytes = 4.0 * width, .group = 0};
      pb.emit(name, access, [=](const Bindings& b) {
        if (fails && !while_computing) broken();
        run(b);
      });
    };
    pb.emit("zero", {.writes = {sum}}, [b = sum](const Bindings& at) {
      const TensorView v = at.out(b);
      std::fill_n(v.as<float>(), v.elements(), 0.0f);
    });
    for (int round = 0; round < kRounds; ++round) {
      const Buffer mine = pb.temp("mine", {1, width}, DType::f32);
      const Buffer all = pb.temp("all", {ranks, width}, DType::f32);
      pb.emit("make", {.writes = {mine}}, [=](const Bindings& b) {
        for (int i = 0; i < width; ++i) {
          b.out(mine).as<float>()[i] = static_cast<float>(100 * round + 10 * rank + i);
        }
      });
      exchange("gather", {.reads = {mine}, .writes = {all}}, [=](const Bindings& b) {
        b.group(0).all_gather(b.in(mine), b.out(all), b.stream());
      });
      pb.emit("add", {.reads = {all, sum}, .writes = {sum}}, [=, to = sum](const Bindings& b) {
        for (std::int64_t i = 0; i < ranks * width; ++i) {
          b.out(to).as<float>()[i % width] += b.in(all).as<float>()[i];
        }
      });
    }
    exchange("barrier", {.reads = {sum}, .writes = {sum}},
             [](const Bindings& b) { b.group(0).barrier(b.stream()); });
    const Buffer row = pb.reshape(sum, {1, width});
    exchange("tell", {.reads = {row}, .writes = {sums}}, [row, to = sums](const Bindings& b) {
      b.group(0).all_gather(b.in(row), b.out(to), b.stream());
    });
    plan = plan_memory(set);
  }

  static float expected(int ranks, int i) {
    float sum = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (int r = 0; r < ranks; ++r) sum += static_cast<float>(100 * round + 10 * r + i);
    }
    return sum;
  }

  ProgramSet set;
  MemoryPlan plan;
  Buffer sum, sums;
};

TEST(ThreadRanksProgram, SixtyFourRanksRunOneProgram) {
  for (const int ranks : {1, 2, 5, 64}) {
    for (const Order order : {Order::concurrent, Order::recorded, Order::random}) {
      ThreadRanks transport;
      std::atomic<int> wrong = 0;
      const auto errors = run_ranks(ranks, [&](int rank) {
        const auto all = transport.join("all", rank, ranks);
        const RankProgram p(rank, ranks);
        RunnerOptions options = {.communicators = {all.get()}};
        options.debug.order = order;
        Runner runner(p.set, p.plan, options);
        for (int step = 0; step < 2; ++step) {
          runner.run("step");
          const float* const sums = runner.view(p.sums).as<float>();
          for (int i = 0; i < 5 * ranks; ++i) {
            wrong += sums[i] != RankProgram::expected(ranks, i % 5);
          }
        }
      });
      EXPECT_THAT(texts_of(errors), IsEmpty());
      EXPECT_EQ(wrong, 0) << ranks;
    }
  }
}

// At every exchange, in it or while it is computed for: no rank waits for ever, everybody has an
// error with a type, and that of the broken rank is the cause.
TEST(ThreadRanksProgram, ARankThatFailsAtAnyExchangeLeavesNobodyWaiting) {
  constexpr int kRanks = 4;
  for (const Order order : {Order::concurrent, Order::recorded}) {
    for (int broken = 0; broken < kRanks; ++broken) {
      for (int at = 0; at < 2 * kExchanges; ++at) {
        ThreadRanks transport;
        const auto errors = run_ranks(kRanks, [&](int rank) {
          const auto all = transport.join("all", rank, kRanks);
          const RankProgram p(rank, kRanks, 5, rank == broken ? at / 2 : -1, at % 2 == 1);
          RunnerOptions options = {.communicators = {all.get()}};
          options.debug.order = order;
          Runner(p.set, p.plan, options).run("step");
        });
        for (int rank = 0; rank < kRanks; ++rank) {
          const auto& e = errors[to_size(rank)];
          ASSERT_TRUE(e.has_value()) << "rank " << rank << ", exchange " << at;
          EXPECT_EQ(e->code(), rank == broken ? ErrorCode::io : ErrorCode::lost) << e->what();
          if (rank == broken) continue;
          // Who is blamed is the broken rank, or one that stopped because of it.
          EXPECT_THAT(e->what(), AnyOf(HasSubstr("cannot go on"), HasSubstr("left the run")));
          EXPECT_THAT(e->trail(), testing::Contains(HasSubstr("of program step")));
        }
      }
    }
  }
}

// The network lane waits for a rank that is far behind; another lane fails meanwhile.
TEST(ThreadRanksProgram, AFailureEndsTheOwnExchangeAtOnce) {
  ThreadRanks transport;
  std::promise<void> failed;
  std::atomic<bool> entered = false, in_time = false;
  const auto errors = run_ranks(2, [&](int rank) {
    const auto all = transport.join("all", rank, 2);
    ProgramSet set;
    set.groups = {{.name = "all", .size = 2, .mine = rank}};
    ProgramBuilder pb(set, "step");
    const Buffer x = pb.persistent("x", {1}, DType::f32, Role::output);
    pb.emit("barrier",
            {.lane = Lane::network, .cost = {.work = Work::network, .bytes = 0, .group = 0}},
            [&](const Bindings& b) {
              entered = true;
              b.group(0).barrier(b.stream());
            });
    pb.emit("compute", {.writes = {x}}, [&, rank](const Bindings&) {
      while (!entered) std::this_thread::yield();
      if (rank == 0) fail(ErrorCode::io, "a broken rank");
    });
    const MemoryPlan plan = plan_memory(set);
    Runner runner(set, plan, {.communicators = {all.get()}});
    if (rank == 1) {
      in_time = failed.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
      return runner.run("step");
    }
    const auto error = test::error_of([&] { runner.run("step"); });
    failed.set_value();
    if (error) throw *error;
  });
  EXPECT_TRUE(in_time);
  ASSERT_TRUE(errors[0] && errors[1]);
  EXPECT_EQ(errors[0]->code(), ErrorCode::io);
  EXPECT_EQ(errors[1]->code(), ErrorCode::lost);
}

// Without an error: its thread ends between two runs.
TEST(ThreadRanksProgram, ARankThatLeavesBetweenRunsLeavesNobodyWaiting) {
  constexpr int kRanks = 3;
  ThreadRanks transport;
  const auto errors = run_ranks(kRanks, [&](int rank) {
    const auto all = transport.join("all", rank, kRanks);
    const RankProgram p(rank, kRanks);
    Runner runner(p.set, p.plan, {.communicators = {all.get()}});
    for (int step = 0; step < 4; ++step) {
      if (rank == 1 && step == 2) return;
      runner.run("step");
    }
  });
  EXPECT_FALSE(errors[1].has_value());
  for (const std::size_t rank : {0, 2}) {
    ASSERT_TRUE(errors[rank].has_value());
    EXPECT_EQ(errors[rank]->code(), ErrorCode::lost);
  }
}

TEST(ThreadRanksProgram, ARecordingThatDiffersIsFoundBeforeARun) {
  constexpr int kRanks = 3;
  ThreadRanks transport;
  std::atomic<int> made = 0;
  const auto errors = run_ranks(kRanks, [&](int rank) {
    const auto all = transport.join("all", rank, kRanks);
    const RankProgram p(rank, kRanks, rank == 2 ? 6 : 5);
    const Runner runner(p.set, p.plan, {.communicators = {all.get()}});
    ++made;
  });
  EXPECT_EQ(made, 0);
  for (const auto& e : errors) {
    ASSERT_TRUE(e.has_value());
    EXPECT_EQ(e->code(), ErrorCode::input);
    EXPECT_STREQ(e->what(), "rank 2 of group all exchanges other data in program step than rank 0");
  }
}

// A transport that finds other ranks' buffers by their offsets.
class ByOffset : public Communicator {
 public:
  explicit ByOffset(Communicator& of) : of_(of) {}
  int rank() const override { return of_.rank(); }
  int size() const override { return of_.size(); }
  bool by_offset() const override { return true; }
  void all_gather(const ConstTensorView& mine, const TensorView& all, Stream s) override {
    of_.all_gather(mine, all, s);
  }
  void all_to_all(const ConstTensorView& to, const TensorView& from, Stream s) override {
    of_.all_to_all(to, from, s);
  }
  void broadcast(int root, const TensorView& b, Stream s) override { of_.broadcast(root, b, s); }
  void barrier(Stream s) override { of_.barrier(s); }
  void abort() noexcept override { of_.abort(); }

 private:
  Communicator& of_;
};

TEST(ThreadRanksProgram, ProgramsThatAreMissingOrPlannedOtherwiseAreFoundBeforeARun) {
  const auto error_of_ranks = [](bool missing) {
    ThreadRanks transport;
    const auto errors = run_ranks(2, [&](int rank) {
      const auto all = transport.join("all", rank, 2);
      RankProgram p(rank, 2);
      if (rank == 1) {
        ProgramBuilder pb(p.set, "more");
        if (!missing) pb.persistent("more", {99}, DType::f32, Role::weights);
        if (!missing) p.set.programs.pop_back();
        p.plan = plan_memory(p.set);
      }
      ByOffset by_offset(*all);
      const Runner runner(p.set, p.plan, {.communicators = {&by_offset}});
    });
    EXPECT_TRUE(errors[0] && errors[1]);
    return std::string(errors[0]->what());
  };
  EXPECT_THAT(error_of_ranks(true), HasSubstr("rank 1 of group all records more or fewer"));
  EXPECT_THAT(error_of_ranks(false), HasSubstr("has another plan in program step"));
}

TEST(ThreadRanksProgram, GroupsNeedTheirCommunicators) {
  const RankProgram p(0, 1);
  EXPECT_FAILS(Runner(p.set, p.plan), ErrorCode::internal, "0 communicators for 1 groups");
  ThreadRanks transport;
  const auto other = transport.join("other", 1, 2);
  EXPECT_FAILS(Runner(p.set, p.plan, {.communicators = {other.get()}}), ErrorCode::internal,
               "rank 1 of 2 for group all, recorded for rank 0 of 1");
}

}  // namespace
}  // namespace ballast::thread_ranks_test
