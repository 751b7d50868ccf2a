#include "nn/prefetch_order.h"

#include <gmock/gmock.h>

#include "plan/program_builder.h"

namespace ballast {
namespace {

using testing::ElementsAre;

class BringOrder : public testing::Test {
 protected:
  void prefetch(const std::string& name, Buffer target) {
    const auto at = static_cast<std::uint32_t>(set.programs[0].instructions.size());
    pb.emit(name, {.writes = {target}, .lane = Lane::upload}, [](const Bindings&) {});
    prefetches.push_back({at, at + 1, target});
  }
  void use(const std::string& name, Buffer target) {
    pb.emit(name, {.reads = {target}}, [](const Bindings&) {});
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const Instruction& i : set.programs[0].instructions) all.emplace_back(i.name);
    return all;
  }

  ProgramSet set;
  ProgramBuilder pb{set, "step"};
  Buffer slot = pb.persistent("slot", {512}, DType::u8, Role::weight_slots);
  Buffer low = pb.view(slot, 0, DType::u8, {256}), high = pb.view(slot, 256, DType::u8, {256});
  std::vector<Prefetch> prefetches;
};

TEST_F(BringOrder, NextThingsComeInTheOrderInWhichPlacesBecomeFree) {
  use("input", pb.persistent("x", {1}, DType::f32, Role::input));
  prefetch("low1", low), prefetch("high1", high);
  use("use low1", low), use("use high1", high), use("again low1", low);
  prefetch("low2", low), prefetch("high2", high);
  use("use low2", low), use("use high2", high);
  prefetch_early(set, 0, prefetches);
  EXPECT_THAT(names(), ElementsAre("input", "low1", "high1", "use low1", "use high1", "high2",
                                   "again low1", "low2", "use low2", "use high2"));
}

TEST_F(BringOrder, AThingOfTwoPlacesWaitsForBoth) {
  prefetch("low1", low), prefetch("high1", high);
  use("use high1", high), use("use low1", low);
  prefetch("both", slot);
  use("use both", slot);
  prefetch_early(set, 0, prefetches);
  EXPECT_THAT(names(), ElementsAre("low1", "high1", "use high1", "use low1", "both", "use both"));
}

TEST_F(BringOrder, WhatNobodyUsedStillComesBeforeWhatTakesItsPlace) {
  prefetch("unused", low), prefetch("low2", low);
  use("use low2", low);
  prefetch_early(set, 0, prefetches);
  EXPECT_THAT(names(), ElementsAre("unused", "low2", "use low2"));
}

TEST_F(BringOrder, WhatPreparesAPlaceComesRightBeforeItsFirstUse) {
  const auto prepare = [&](const std::string& name, Buffer target) {
    pb.emit(name, {.writes = {target}}, [](const Bindings&) {});
    ++prefetches.back().prepared;
  };
  const auto nothing = static_cast<std::uint32_t>(set.programs[0].instructions.size());
  prefetches.push_back({nothing, nothing, high});  // it is there already
  prepare("prepare high0", high);
  use("input", pb.persistent("x", {1}, DType::f32, Role::input));
  prefetch("low1", low), prepare("prepare low1", low);
  use("use high0", high), use("use low1", low), use("again low1", low);
  prefetch("low2", low), prepare("prepare low2", low);
  prefetch("high2", high), prepare("never", high);
  use("use low2", low);
  prefetch_early(set, 0, prefetches);
  EXPECT_THAT(names(),
              ElementsAre("input", "low1", "prepare high0", "use high0", "prepare low1", "high2",
                          "use low1", "again low1", "low2", "prepare low2", "use low2"));
}

TEST_F(BringOrder, JustInTimeFollowsTheOrderOfFirstUses) {
  std::vector<Buffer> own;
  for (int i = 0; i < 4; ++i) own.push_back(pb.temp("own", {256}, DType::u8));
  for (std::size_t i = 0; i < 4; ++i) prefetch(std::to_string(i), own[i]);
  use("use 2", own[2]), use("use 0", own[0]), use("use 2 again", own[2]), use("use 3", own[3]);
  prefetch_just_in_time(set, 0, prefetches, 1);
  EXPECT_THAT(names(), ElementsAre("2", "0", "use 2", "3", "use 0", "use 2 again", "use 3"));
}

TEST_F(BringOrder, ACopyRunsBesideTheProductBeforeTheOneThatReadsIt) {
  const Buffer persistent = pb.persistent("home", {256}, DType::u8, Role::checkpoint, Tier::host);
  const auto product = [&](const std::string& name, Buffer to) {
    pb.emit(name, {.writes = {to}, .cost = {.work = Work::gemm}}, [](const Bindings&) {});
  };
  const auto copy = [&](const std::string& name, Buffer from, Buffer to, Lane lane) {
    pb.emit(name, {.reads = {from}, .writes = {to}, .lane = lane}, [](const Bindings&) {});
  };
  product("first", pb.temp("x", {256}, DType::u8));
  product("second", pb.temp("x", {256}, DType::u8));
  use("norm", low);
  copy("bring", persistent, high, Lane::upload);
  prefetch_beside(set, 0);
  EXPECT_THAT(names(), ElementsAre("first", "bring", "second", "norm"));
  copy("keep", high, persistent, Lane::download);
  copy("at once", persistent, high, Lane::upload);  // it has to wait for "keep" in any case
  prefetch_beside(set, 0);
  product("third", pb.temp("x", {256}, DType::u8));
  copy("again", persistent, low, Lane::upload);
  prefetch_beside(set, 0);
  EXPECT_THAT(names(),
              ElementsAre("first", "bring", "second", "norm", "keep", "at once", "again", "third"));
}

}  // namespace
}  // namespace ballast
