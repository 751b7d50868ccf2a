#include "plan/runner.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <numeric>

#include "core/to_size.h"
#include "memory/disk_file.h"
#include "plan/program_builder.h"
#include "tests/plan/random_program.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/let_others_run.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using testing::Contains;

constexpr std::array<Lane, kLaneCount> kLanes = {Lane::compute, Lane::upload, Lane::download,
                                                 Lane::disk,    Lane::host,   Lane::network};

// Two instructions meet here only when they run at the same time.
class Rendezvous {
 public:
  bool meet() {
    std::unique_lock lock(mutex_);
    ++here_;
    both_.notify_all();
    return both_.wait_for(lock, std::chrono::seconds(20), [this] { return here_ == 2; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable both_;
  int here_ = 0;
};

TEST(Runner, RunsEveryOtherLaneBesideCompute) {
  for (const Lane lane : kLanes) {
    if (lane == Lane::compute) continue;
    ProgramSet set;
    ProgramBuilder pb(set, "p");
    const Buffer x = pb.persistent("x", {1}, DType::f32, Role::input);
    const Buffer y = pb.persistent("y", {1}, DType::f32, Role::input);
    Rendezvous point;
    bool met[2] = {false, false};
    pb.emit("copy", {.writes = {x}, .lane = lane}, [&](const Bindings&) { met[0] = point.meet(); });
    pb.emit("compute", {.writes = {y}}, [&](const Bindings&) { met[1] = point.meet(); });
    const MemoryPlan plan = plan_memory(set);
    Runner runner(set, plan);
    runner.run("p");
    EXPECT_TRUE(met[0] && met[1]) << name_of(lane);
  }
}

// So that the disk's queue does not run empty between two reads.
TEST(Runner, ReadsFromDiskSideBySide) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  Rendezvous point;
  bool met[2] = {false, false};
  for (int i = 0; i < 2; ++i) {
    const Buffer x = pb.persistent(fmt::format("x{}", i), {1}, DType::f32, Role::input);
    pb.emit("read", {.writes = {x}, .lane = Lane::disk},
            [&met, &point, i](const Bindings&) { met[i] = point.meet(); });
  }
  const MemoryPlan plan = plan_memory(set);
  Runner(set, plan).run("p");
  EXPECT_TRUE(met[0] && met[1]);
}

// A large read is one instruction, whose last part is awaited.
TEST(Runner, PartsOfAReadRunSideBySideAndCountAsOne) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.persistent("x", {2}, DType::f32, Role::input);
  const Buffer y = pb.persistent("y", {1}, DType::f32, Role::input);
  Rendezvous point;
  bool met[2] = {false, false};
  pb.emit("read", {.writes = {x}, .lane = Lane::disk, .splits = 2},
          [&met, &point, x](const Bindings& b) {
            met[b.part()] = point.meet();
            if (b.part() == 0) support::let_others_run();
            b.out(x).as<float>()[b.part()] = 5;
          });
  pb.emit("use", {.reads = {x}, .writes = {y}}, [x, y](const Bindings& b) {
    *b.out(y).as<float>() = b.in(x).as<float>()[0] + b.in(x).as<float>()[1];
  });
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  std::fill_n(runner.view(x).as<float>(), 2, 0.0f);
  runner.run("p");
  EXPECT_TRUE(met[0] && met[1]);
  EXPECT_EQ(*runner.view(y).as<float>(), 10);
}

// One that lasts keeps the others back no further than the ring does.
TEST(Runner, ReadsOnFromDiskWhileOneReadLasts) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  constexpr int kReads = 10;
  Rendezvous point;
  bool met[kReads] = {};
  std::vector<Buffer> to;
  for (int i = 0; i < kReads; ++i) {
    to.push_back(pb.persistent(fmt::format("x{}", i), {1}, DType::f32, Role::input));
    const bool meets = i == 0 || i == kReads - 1;
    pb.emit("read", {.writes = {to.back()}, .lane = Lane::disk},
            [&met, &point, i, meets](const Bindings&) { met[i] = !meets || point.meet(); });
  }
  const MemoryPlan plan = plan_memory(set);
  Runner(set, plan).run("p");
  EXPECT_THAT(met, testing::Each(true));
}

// Further ahead than the lane keeps account of: the workers wait for the part, and are woken by it.
TEST(Runner, ManyPartsGoOnBehindOneThatLasts) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  constexpr std::uint32_t kParts = 300;
  const Buffer x = pb.persistent("x", {1}, DType::f32, Role::input);
  std::array<std::atomic<int>, kParts> runs = {};
  bool fails = false;
  pb.emit("read", {.writes = {x}, .lane = Lane::disk, .splits = kParts}, [&](const Bindings& b) {
    if (b.part() == 7) support::let_others_run();
    if (b.part() == 7 && fails) fail(ErrorCode::io, "the disk is gone");
    ++runs[b.part()];
  });
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run("p");
  runner.run("p");
  for (const auto& n : runs) EXPECT_EQ(n, 2);
  fails = true;
  EXPECT_FAILS(runner.run("p"), ErrorCode::io, "the disk is gone");
}

TEST(Runner, ReadsFromDiskInOrderWhereBytesAreShared) {
  for (const int between : {0, 1, 2, 5}) {
    ProgramSet set;
    ProgramBuilder pb(set, "p");
    const Buffer x = pb.persistent("x", {2}, DType::f32, Role::input);
    const Buffer y = pb.persistent("y", {1}, DType::f32, Role::input);
    pb.emit("slow", {.writes = {x}, .lane = Lane::disk}, [x](const Bindings& b) {
      support::let_others_run();
      b.out(x).as<float>()[1] = 5;
    });
    for (int i = 0; i < between; ++i) {
      const Buffer other = pb.persistent(fmt::format("z{}", i), {1}, DType::f32, Role::input);
      pb.emit("other", {.writes = {other}, .lane = Lane::disk}, [](const Bindings&) {});
    }
    const Buffer half = pb.rows(x, 1, 1);
    pb.emit("use", {.reads = {half}, .writes = {y}, .lane = Lane::disk},
            [half, y](const Bindings& b) { *b.out(y).as<float>() = *b.in(half).as<float>() + 1; });
    const MemoryPlan plan = plan_memory(set);
    Runner runner(set, plan);
    runner.view(x).as<float>()[1] = 0;
    runner.run("p");
    EXPECT_EQ(*runner.view(y).as<float>(), 6) << between << " between them";
  }
}

// Others that are read sooner do not count for it.
TEST(Runner, WaitsForTheReadThatLasts) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.persistent("x", {1}, DType::f32, Role::input);
  const Buffer y = pb.persistent("y", {1}, DType::f32, Role::input);
  pb.emit("slow", {.writes = {x}, .lane = Lane::disk}, [x](const Bindings& b) {
    support::let_others_run();
    *b.out(x).as<float>() = 5;
  });
  for (int i = 0; i < 6; ++i) {
    const Buffer other = pb.persistent(fmt::format("z{}", i), {1}, DType::f32, Role::input);
    pb.emit("fast", {.writes = {other}, .lane = Lane::disk}, [](const Bindings&) {});
  }
  pb.emit("use", {.reads = {x}, .writes = {y}},
          [x, y](const Bindings& b) { *b.out(y).as<float>() = *b.in(x).as<float>() + 1; });
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  *runner.view(x).as<float>() = 0;
  runner.run("p");
  EXPECT_EQ(*runner.view(y).as<float>(), 6);
}

// A clock that stands until somebody moves it, and sees the lane of compute, which is the thread
// that calls run(), begin to wait.
class FakeClock {
 public:
  FakeClock() { state() = {.compute = std::this_thread::get_id()}; }

  static std::chrono::steady_clock::time_point now() {
    State& s = state();
    const std::lock_guard lock(mutex());
    if (std::this_thread::get_id() == s.compute) s.compute_asked = true;
    asked().notify_all();
    return s.now;
  }
  // Once compute waits.
  static bool move(std::chrono::milliseconds by) {
    State& s = state();
    std::unique_lock lock(mutex());
    if (!asked().wait_for(lock, std::chrono::seconds(20), [&] { return s.compute_asked; })) {
      return false;
    }
    s.now += by;
    return true;
  }

 private:
  struct State {
    std::thread::id compute = {};
    std::chrono::steady_clock::time_point now = {};
    bool compute_asked = false;
  };
  static State& state() {
    static State s;
    return s;
  }
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::condition_variable& asked() {
    static std::condition_variable c;
    return c;
  }
};

TEST(Runner, WaitsWhereBytesAreShared) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.persistent("x", {1}, DType::f32, Role::input);
  const Buffer y = pb.persistent("y", {1}, DType::f32, Role::input);
  bool waited = false;
  pb.emit("slow", {.writes = {x}, .lane = Lane::disk}, [x, &waited](const Bindings& b) {
    waited = FakeClock::move(std::chrono::milliseconds(300));
    support::let_others_run();
    *b.out(x).as<float>() = 5;
  });
  pb.emit("use", {.reads = {x}, .writes = {y}},
          [x, y](const Bindings& b) { *b.out(y).as<float>() = *b.in(x).as<float>() + 1; });
  const MemoryPlan plan = plan_memory(set);
  const FakeClock clock;
  Runner runner(set, plan, {.disk_readers = 1, .now = FakeClock::now});
  runner.run("p");
  EXPECT_TRUE(waited);
  EXPECT_EQ(*runner.view(y).as<float>(), 6);
  const auto& times = runner.lane_times();
  EXPECT_DOUBLE_EQ(times[to_size(Lane::disk)].busy, 0.3);
  EXPECT_DOUBLE_EQ(times[to_size(Lane::compute)].waiting, 0.3);
  EXPECT_EQ(times[to_size(Lane::compute)].busy, 0);
}

// A relay through all lanes, round and round, in which one lane fails at its second turn: the
// others have work before it, work that waits for it, and work that does not.
class RunnerFailure : public testing::TestWithParam<std::tuple<Lane, Order>> {};

TEST_P(RunnerFailure, EndsTheRunWithTheNameAndLeavesTheRunnerUsable) {
  const auto [failing, order] = GetParam();
  ProgramSet set;
  ProgramBuilder pb(set, "relay");
  const Buffer x = pb.persistent("x", {1}, DType::f32, Role::input);
  bool broken = true;
  for (int round = 0; round < 4; ++round) {
    for (const Lane lane : kLanes) {
      const auto scope = pb.scope(fmt::format("round{}", round));
      const bool fails = lane == failing && round == 1;
      pb.emit(name_of(lane), {.reads = {x}, .writes = {x}, .lane = lane},
              [x, fails, &broken](const Bindings& b) {
                if (fails && broken) fail(ErrorCode::io, "the disk is gone");
                *b.out(x).as<float>() += 1;
              });
      const Buffer own = pb.temp("own", {1}, DType::f32);
      pb.emit("aside", {.writes = {own}, .lane = lane}, [](const Bindings&) {});
    }
  }
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan, {.disk_readers = 2, .debug = {.order = order}});
  for (int attempt = 0; attempt < 3; ++attempt) {
    broken = true;
    *runner.view(x).as<float>() = 0;
    const auto error = test::error_of([&] { runner.run("relay"); });
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::io);
    EXPECT_STREQ(error->what(), "the disk is gone");
    EXPECT_THAT(error->trail(),
                Contains(fmt::format("running round1.{} of program relay", name_of(failing))));
    const auto before = static_cast<float>(kLaneCount + static_cast<int>(failing));
    EXPECT_EQ(*runner.view(x).as<float>(), before);  // nothing behind the failure has run

    broken = false;
    *runner.view(x).as<float>() = 0;
    runner.run("relay");
    EXPECT_EQ(*runner.view(x).as<float>(), 4 * kLaneCount);
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, RunnerFailure,
                         testing::Combine(testing::ValuesIn(kLanes),
                                          testing::Values(Order::concurrent, Order::recorded)),
                         [](const auto& of) {
                           return std::string(name_of(std::get<0>(of.param))) +
                                  (std::get<1>(of.param) == Order::concurrent ? "Concurrent"
                                                                              : "Recorded");
                         });

TEST(Runner, NamesTheInstructionThatReachesForUndeclaredMemory) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.persistent("x", {1}, DType::f32, Role::input);
  pb.emit("thief", {.lane = Lane::upload}, [x](const Bindings& b) { b.in(x); });
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  EXPECT_FAILS(runner.run(0), ErrorCode::internal, "thief reads x without declaring it");
}

TEST(Runner, HandsOutExactlyThePlannedBytes) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    for (const Order order : {Order::recorded, Order::concurrent}) {
      RandomProgram program(seed);
      // So that the top of each arena is touched whatever was drawn.
      ProgramBuilder pb(program.set, "all");
      pb.emit("all", {.reads = program.results}, [all = program.results](const Bindings& b) {
        for (const Buffer x : all) b.in(x);
      });
      const MemoryPlan plan = plan_memory(program.set);
      Runner runner(program.set, plan, {.disk_readers = 1, .debug = {.order = order}});
      runner.run("random");
      runner.run("all");
      for (const Tier t : {Tier::device, Tier::host}) {
        EXPECT_EQ(runner.high_water(t), plan.peak_of(t)) << "seed " << seed;
      }
    }
  }
}

TEST(Runner, KeepsPersistentValuesBetweenRunsAndPrograms) {
  ProgramSet set;
  ProgramBuilder load(set, "load");
  const Buffer w = load.persistent("w", {3}, DType::f32, Role::weights);
  const Buffer sum = load.persistent("sum", {1}, DType::f32, Role::output);
  load.emit("load", {.writes = {w}, .lane = Lane::upload}, [w](const Bindings& b) {
    for (int i = 0; i < 3; ++i) b.out(w).as<float>()[i] = static_cast<float>(i + 1);
  });
  ProgramBuilder step(set, "step");
  const Buffer t = step.temp("t", {1000}, DType::f32);  // would lie on w if w were not kept
  step.emit("scratch", {.writes = {t}},
            [t](const Bindings& b) { std::fill_n(b.out(t).as<float>(), 1000, -1.0f); });
  step.emit("add", {.reads = {w, sum, t}, .writes = {sum}}, [=](const Bindings& b) {
    const float* v = b.in(w).as<float>();
    *b.out(sum).as<float>() += (v[0] + v[1] + v[2]) * static_cast<float>(b.step().step);
  });
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run("load");
  for (int i = 1; i <= 3; ++i) runner.run("step", {.step = i});
  EXPECT_EQ(*runner.view(sum).as<float>(), 6 * (1 + 2 + 3));
}

TEST(Runner, ShowsPersistentBuffersOnly) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer w = pb.persistent("w", {4, 4}, DType::f32, Role::weights);
  const Buffer t = pb.temp("passing", {4}, DType::f32);
  pb.emit("i", {.writes = {t}}, [](const Bindings&) {});
  const Buffer part = pb.columns(w, 1, 2);
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  EXPECT_FAILS(runner.view(t), ErrorCode::internal, "passing is a temporary");
  EXPECT_EQ(runner.view(part).data, runner.view(w).data + 4);
  EXPECT_EQ(runner.view(part).strides, Shape({4, 1}));
}

TEST(Runner, CopiesBuffersWholeAndInParts) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer w = pb.persistent("w", {2, 4}, DType::u8, Role::weights);
  const Buffer part = pb.view(w, 2, DType::u8, {4});
  pb.emit("i", {}, [](const Bindings&) {});
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  const auto bytes = [](const std::vector<int>& values) {
    std::vector<std::byte> b;
    for (const int v : values) b.push_back(static_cast<std::byte>(v));
    return b;
  };
  runner.write(w, bytes({1, 2, 3, 4, 5, 6, 7, 8}));
  runner.write_part(w, 6, bytes({9, 10}));
  runner.write_part(part, 1, bytes({0}));
  std::vector<std::byte> all(8), some(3);
  runner.read(w, all);
  EXPECT_EQ(all, bytes({1, 2, 3, 0, 5, 6, 9, 10}));
  runner.read_part(w, 5, some);
  EXPECT_EQ(some, bytes({6, 9, 10}));
  EXPECT_FAILS(runner.read_part(w, 6, some), ErrorCode::internal, "3 bytes from 6 on");
  EXPECT_FAILS(runner.write(w, some), ErrorCode::internal, "3 bytes for w");
}

TEST(Runner, WorksInMemoryThatWasOpenedBeforeItsProgramsWereRecorded) {
  RunMemory memory = Runner::open_memory(Device::cpu, {256}, {512});
  const std::byte* const device = memory.base(Tier::device);
  const std::byte* const host = memory.base(Tier::host);
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.persistent("x", {64}, DType::f32, Role::input);
  const Buffer y = pb.persistent("y", {128}, DType::f32, Role::input, Tier::host);
  pb.emit("add", {.reads = {y}, .writes = {x}},
          [=](const Bindings& b) { b.out(x).as<float>()[63] = b.in(y).as<float>()[127] + 1; });
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan, {}, std::move(memory));
  EXPECT_EQ(runner.view(x).data, device);
  EXPECT_EQ(runner.view(y).data, host);
  runner.view(y).as<float>()[127] = 2;
  runner.run("p");
  EXPECT_EQ(runner.view(x).as<float>()[63], 3);

  ProgramBuilder more(set, "more");
  more.persistent("z", {1 << 16}, DType::f32, Role::input);
  const MemoryPlan larger = plan_memory(set);
  EXPECT_FAILS(Runner(set, larger, {}, Runner::open_memory(Device::cpu, {256}, {512})),
               ErrorCode::internal, "of RAM (compute share, --gpu) for a plan of");
}

TEST(Runner, RunsAProgramWhileSomethingElseIsDone) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.persistent("x", {1}, DType::f32, Role::input);
  const Buffer y = pb.persistent("y", {1}, DType::f32, Role::input);
  Rendezvous point;
  bool met = false;
  pb.emit("load", {.writes = {x}}, [&](const Bindings& b) {
    met = point.meet();
    *b.out(x).as<float>() = 1;
  });
  ProgramBuilder alone(set, "alone");
  alone.emit("set", {.writes = {x}}, [=](const Bindings& b) { *b.out(x).as<float>() = 3; });
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run_beside("p", [&] {
    point.meet();
    const float two = 2;
    runner.write(y, std::as_bytes(std::span(&two, 1)));
  });
  EXPECT_TRUE(met);
  EXPECT_EQ(*runner.view(x).as<float>(), 1);
  EXPECT_EQ(*runner.view(y).as<float>(), 2);
  EXPECT_FAILS(runner.run_beside("alone", [] { fail(ErrorCode::input, "no adapter there"); }),
               ErrorCode::input, "no adapter there");
  EXPECT_EQ(*runner.view(x).as<float>(), 3);
}

TEST(Runner, RefusesWhatWasRecordedForPlanning) {
  ProgramSet set;
  set.executable = false;
  ProgramBuilder pb(set, "p");
  pb.emit("i", {}, [](const Bindings&) {});
  const MemoryPlan plan = plan_memory(set);
  EXPECT_FAILS(Runner(set, plan), ErrorCode::internal, "recorded for planning");
}

TEST(Runner, AllocatesNothingDuringAStep) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const test::TempDir dir;
  const std::string path = dir.write("weights", std::string(8 * kDiskAlignment, '\x01'));
  const DiskFile file = DiskFile::open(path);
  ProgramSet set;
  set.backend.threads = 2;
  ProgramBuilder pb(set, "step");
  const auto n = static_cast<std::int64_t>(8 * kDiskAlignment);
  const Buffer ring =
      pb.persistent("ring", {n}, DType::u8, Role::staging, Tier::host, kDiskAlignment);
  const Buffer total = pb.persistent("total", {8}, DType::i64, Role::output, Tier::host);
  const auto copy = [&](std::string_view name, Buffer from, Buffer to, Lane lane) {
    pb.emit(name, {.reads = {from}, .writes = {to}, .lane = lane}, [from, to](const Bindings& b) {
      std::copy_n(b.in(from).data, b.in(from).bytes(), b.out(to).data);
    });
  };
  for (int block = 0; block < 20; ++block) {
    pb.emit("read", {.writes = {ring}, .lane = Lane::disk}, [ring, &file](const Bindings& b) {
      const TensorView to = b.out(ring);
      b.stream().pool->parallel(8, [&](std::int64_t i, int) {
        const auto at = static_cast<std::uint64_t>(i) * kDiskAlignment;
        file.read_aligned(at, {to.data + at, kDiskAlignment});
      });
    });
    const Buffer slot = pb.temp("slot", {n}, DType::u8), work = pb.temp("work", {n}, DType::u8);
    const Buffer back = pb.temp("back", {n}, DType::u8, Role::output, Tier::host);
    copy("upload", ring, slot, Lane::upload);
    pb.emit("double", {.reads = {slot}, .writes = {work}}, [=](const Bindings& b) {
      const auto* from = b.in(slot).as<std::uint8_t>();
      auto* to = b.out(work).as<std::uint8_t>();
      b.stream().pool->parallel(8, [&](std::int64_t i, int) {
        for (std::int64_t k = i * n / 8; k < (i + 1) * n / 8; ++k) {
          to[k] = static_cast<std::uint8_t>(2 * from[k]);
        }
      });
    });
    copy("download", work, back, Lane::download);
    const Buffer came = pb.temp("came", {n}, DType::u8, Role::output, Tier::host);
    copy("exchange", back, came, Lane::network);
    pb.emit("sum", {.reads = {came, total}, .writes = {total}, .lane = Lane::host},
            [=](const Bindings& b) {
              const auto* v = b.in(came).as<std::uint8_t>();
              *b.out(total).as<std::int64_t>() += std::accumulate(v, v + n, std::int64_t{0});
            });
  }
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run(0);
  allocation_hook::arm();
  for (int step = 1; step <= 5; ++step) runner.run("step", {.step = step});
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
  EXPECT_EQ(seen.frees, 0);
  EXPECT_EQ(*runner.view(total).as<std::int64_t>(), 6 * 20 * 2 * n);
  for (const LaneTime& t : runner.lane_times()) EXPECT_GT(t.busy, 0);  // all were at work
}

}  // namespace
}  // namespace ballast
