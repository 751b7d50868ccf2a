#include "plan/ring_allocator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "core/to_size.h"
#include "plan/program_builder.h"
#include "plan/runner.h"
#include "tests/support/errors.h"
#include "tests/support/let_others_run.h"

namespace ballast {
namespace {

constexpr std::uint64_t kBytes = 256;
const auto nothing = [](const Bindings&) {};

// A ring through which the disk lane gives so many fills to the upload lane.
struct RingProgram {
  RingProgram(int buffers, int fills) {
    ProgramBuilder pb(set, "p");
    for (int i = 0; i < buffers; ++i) ring.push_back(buffer(pb, i));
    pb.add_ring(ring);
    for (int i = 0; i < fills; ++i) {
      const Buffer b = ring[to_size(i) % ring.size()];
      pb.emit("read", {.writes = {b}, .lane = Lane::disk}, nothing);
      pb.emit("copy_out", {.reads = {b}, .writes = {b}, .lane = Lane::upload}, nothing);
    }
    plan = plan_memory(set);
  }

  static Buffer buffer(ProgramBuilder& pb, int i) {
    return pb.persistent(fmt::format("staging.{}", i), {kBytes}, DType::u8, Role::staging,
                         Tier::host);
  }
  std::uint64_t place(const RingAllocator& places, Buffer b) const {
    return places.offset(b, plan.offset[b.id]);
  }
  std::set<std::uint64_t> all_places(const RingAllocator& places) const {
    std::set<std::uint64_t> all;
    for (const Buffer b : ring) all.insert(place(places, b));
    return all;
  }

  ProgramSet set;
  std::vector<Buffer> ring;
  MemoryPlan plan;
};

std::uint32_t read_of(int fill) { return 2 * static_cast<std::uint32_t>(fill); }

TEST(RingAllocator, FillsOfWhatIsEmptyWhatWasFilledLast) {
  RingProgram p(4, 10);
  RingAllocator places(p.set, p.plan);
  places.begin(0);
  std::uint32_t emptied = 0;  // copies that are done
  const auto passed = [&](const Wait& w) {
    EXPECT_EQ(w.lane, Lane::upload);
    return w.count <= emptied;
  };
  std::vector<std::uint64_t> filled;
  const auto fill = [&] {
    const int n = static_cast<int>(filled.size());
    places.before(0, read_of(n), passed);
    filled.push_back(p.place(places, p.ring[to_size(n % 4)]));
    return filled.back();
  };
  const auto expect_fill_at = [&](std::size_t earlier) {
    const std::uint64_t place = filled[earlier];  // before another is noted
    EXPECT_EQ(fill(), place);
  };
  for (const Buffer b : p.ring) {  // all of them once, though the others are empty
    emptied = static_cast<std::uint32_t>(filled.size());
    EXPECT_EQ(fill(), p.plan.offset[b.id]);
  }
  expect_fill_at(2);  // the last one is not empty yet
  emptied = 5;
  expect_fill_at(4);
  expect_fill_at(3);
  expect_fill_at(1);
  expect_fill_at(0);  // it is the only one
  emptied = 8;        // the last of all has not been emptied, but those before
  expect_fill_at(7);
}

// Asking a GPU takes a microsecond, and a large ring is full for much of a step.
TEST(RingAllocator, AskOnceWhereNothingMoreWasEmptied) {
  constexpr int kBuffers = 100;
  RingProgram p(kBuffers, 3 * kBuffers);
  RingAllocator places(p.set, p.plan);
  places.begin(0);
  std::uint32_t emptied = 0;
  int asked = 0;
  for (int n = 0; n < 3 * kBuffers; ++n) {
    if (n >= kBuffers) emptied = static_cast<std::uint32_t>(n - kBuffers + 1);  // as planned
    asked = 0;
    places.before(0, read_of(n), [&](const Wait& w) { return ++asked, w.count <= emptied; });
    EXPECT_LE(asked, n < kBuffers ? 0 : 1) << n;
  }
}

TEST(RingAllocator, ABufferKeepsItsPlaceUntilItIsEmptied) {
  constexpr int kFills = 2000, kBuffers = 5;
  RingProgram p(kBuffers, kFills);
  RingAllocator places(p.set, p.plan);
  std::mt19937 random(7);
  for (int run = 0; run < 3; ++run) {
    places.begin(0);
    std::uint32_t emptied = 0;
    std::vector<std::uint64_t> at;  // by fill
    for (int n = 0; n < kFills; ++n) {
      const auto least = static_cast<std::uint32_t>(std::max(0, n + 1 - kBuffers));  // as planned
      emptied = std::max(emptied, least);
      emptied +=
          static_cast<std::uint32_t>(random() % (static_cast<std::uint32_t>(n) - emptied + 1));
      places.before(0, read_of(n), [&](const Wait& w) { return w.count <= emptied; });
      at.push_back(p.place(places, p.ring[to_size(n % kBuffers)]));
      for (auto other = static_cast<int>(emptied); other < n; ++other) {
        const auto o = to_size(other);
        ASSERT_NE(at.back(), at[o]) << "fill " << n << " over fill " << other;
        ASSERT_EQ(at[o], p.place(places, p.ring[o % kBuffers])) << other << " moved at " << n;
      }
      ASSERT_EQ(p.all_places(places).size(), std::size_t{kBuffers});
    }
  }
}

// Programs in which a buffer is not filled whole by the disk lane and then emptied once: by what is
// recorded after `ring` was filled and emptied as usual.
TEST(RingAllocator, StayWherePlannedWhereARingIsUsedInAnotherWay) {
  using Ring = std::vector<Buffer>;
  const auto read = [](ProgramBuilder& pb, Buffer b) {
    pb.emit("read", {.writes = {b}, .lane = Lane::disk}, nothing);
  };
  const auto copy_out = [](ProgramBuilder& pb, Buffer b, Lane lane = Lane::upload) {
    pb.emit("copy_out", {.reads = {b}, .lane = lane}, nothing);
  };
  const auto half = [](ProgramBuilder& pb, Buffer b, std::uint64_t at) {
    return pb.view(b, at * kBytes / 2, DType::u8, {kBytes / 2});
  };
  const std::vector<std::function<void(ProgramBuilder&, const Ring&)>> ways = {
      [&](ProgramBuilder& pb, const Ring& r) {  // another lane fills one
        pb.emit("copy", {.writes = {r[0]}, .lane = Lane::download}, nothing);
        copy_out(pb, r[0], Lane::disk);
      },
      [&](ProgramBuilder& pb, const Ring& r) {  // by halves
        read(pb, half(pb, r[0], 0));
        read(pb, half(pb, r[0], 1));
        copy_out(pb, r[0]);
      },
      [&](ProgramBuilder& pb, const Ring& r) {  // the other half, while one may be in use
        read(pb, half(pb, r[0], 1));
        copy_out(pb, half(pb, r[0], 1));
      },
      [&](ProgramBuilder& pb, const Ring& r) {  // twice, and emptied once
        read(pb, r[0]);
        read(pb, half(pb, r[0], 0));
        copy_out(pb, r[0]);
      },
      [&](ProgramBuilder& pb, const Ring& r) {  // once, and emptied twice
        read(pb, r[0]);
        copy_out(pb, r[0]);
        copy_out(pb, r[0], Lane::host);
      }};
  for (std::size_t way = 0; way <= ways.size(); ++way) {  // the last: as usual
    ProgramSet set;
    ProgramBuilder pb(set, "p");
    const Ring ring = {RingProgram::buffer(pb, 0), RingProgram::buffer(pb, 1)};
    pb.add_ring(ring);
    const Buffer other = RingProgram::buffer(pb, 2);  // in no ring
    for (const Buffer b : ring) {
      read(pb, b);
      copy_out(pb, b);
    }
    read(pb, other);
    if (way < ways.size()) ways[way](pb, ring);
    const MemoryPlan plan = plan_memory(set);
    RingAllocator places(set, plan);
    bool moved = false;
    for (int run = 0; run < 2; ++run) {
      places.begin(0);
      for (std::uint32_t i = 0; i < set.programs[0].instructions.size(); ++i) {
        if (set.programs[0].instructions[i].lane != Lane::disk) continue;
        places.before(0, i, [](const Wait&) { return true; });
        for (const Buffer b : ring) {
          moved |= places.offset(b, plan.offset[b.id]) != plan.offset[b.id];
        }
        EXPECT_EQ(places.offset(other, plan.offset[other.id]), plan.offset[other.id]);
      }
    }
    EXPECT_EQ(moved, way == ways.size()) << way;
  }
}

TEST(RingAllocator, TakeBuffersOfOneSizeOnly) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer large = pb.persistent("large", {2 * kBytes}, DType::u8, Role::staging, Tier::host);
  pb.add_ring({RingProgram::buffer(pb, 0), large});
  const MemoryPlan plan = plan_memory(set);
  EXPECT_FAILS(RingAllocator(set, plan), ErrorCode::internal, "large [512] is no buffer of a ring");
}

// Reads in parts by several workers, copies that take their time now and then: what is copied out
// is what was read, from wherever.
TEST(RingAllocator, ARunDeliversWhatItRead) {
  constexpr int kFills = 400;
  constexpr std::uint32_t kParts = 4;
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  std::vector<Buffer> ring;
  for (int i = 0; i < 6; ++i) ring.push_back(RingProgram::buffer(pb, i));
  pb.add_ring(ring);
  const Buffer out =
      pb.persistent("out", {kFills, static_cast<std::int64_t>(kBytes)}, DType::u8, Role::output);
  std::atomic<int> moved = 0;  // fills at another place than planned
  MemoryPlan plan;
  const std::byte* base = nullptr;
  for (int n = 0; n < kFills; ++n) {
    const Buffer b = ring[to_size(n) % ring.size()];
    pb.emit("read", {.writes = {b}, .lane = Lane::disk, .splits = kParts},
            [&, b, n](const Bindings& at) {
              const TensorView to = at.out(b);
              if (at.part() == 0 && base && to.data != base + plan.offset[b.id]) ++moved;
              constexpr std::uint64_t kPart = kBytes / kParts;
              std::memset(to.data + at.part() * kPart, (n * 7 + static_cast<int>(at.part())) % 251,
                          kPart);
            });
    const Buffer row = pb.rows(out, n, 1);
    pb.emit("copy_out", {.reads = {b}, .writes = {row}, .lane = Lane::upload},
            [b, row, n](const Bindings& at) {
              if (n % 37 == 0) support::let_others_run();
              std::memcpy(at.out(row).data, at.in(b).data, kBytes);
            });
  }
  plan = plan_memory(set);
  Runner runner(set, plan, {.disk_readers = 3});
  base = runner.view(ring[0]).data - plan.offset[ring[0].id];
  for (int run = 0; run < 2; ++run) {
    const TensorView rows = runner.view(out);
    std::memset(rows.data, 255, kFills * kBytes);
    runner.run("p");
    for (std::size_t i = 0; i < kFills * kBytes; ++i) {
      const std::size_t n = i / kBytes, part = i % kBytes / (kBytes / kParts);
      ASSERT_EQ(std::to_integer<std::size_t>(rows.data[i]), (n * 7 + part) % 251) << n;
    }
  }
  EXPECT_GT(moved, 0);
}

}  // namespace
}  // namespace ballast
