#include "nn/bring_order.h"

#include <gmock/gmock.h>

#include "plan/program_builder.h"

namespace ballast {
namespace {

using testing::ElementsAre;

class BringOrder : public testing::Test {
 protected:
  void bring(const std::string& name, Buffer place) {
    const auto at = static_cast<std::uint32_t>(set.programs[0].instructions.size());
    pb.emit(name, {.writes = {place}, .lane = Lane::upload}, [](const Bindings&) {});
    brings.push_back({at, at + 1, place});
  }
  void use(const std::string& name, Buffer place) {
    pb.emit(name, {.reads = {place}}, [](const Bindings&) {});
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
  std::vector<Bring> brings;
};

TEST_F(BringOrder, NextThingsComeInTheOrderInWhichPlacesBecomeFree) {
  use("input", pb.persistent("x", {1}, DType::f32, Role::input));
  bring("low1", low), bring("high1", high);
  use("use low1", low), use("use high1", high), use("again low1", low);
  bring("low2", low), bring("high2", high);
  use("use low2", low), use("use high2", high);
  bring_early(set, 0, brings);
  EXPECT_THAT(names(), ElementsAre("input", "low1", "high1", "use low1", "use high1", "high2",
                                   "again low1", "low2", "use low2", "use high2"));
}

TEST_F(BringOrder, AThingOfTwoPlacesWaitsForBoth) {
  bring("low1", low), bring("high1", high);
  use("use high1", high), use("use low1", low);
  bring("both", slot);
  use("use both", slot);
  bring_early(set, 0, brings);
  EXPECT_THAT(names(), ElementsAre("low1", "high1", "use high1", "use low1", "both", "use both"));
}

TEST_F(BringOrder, WhatNobodyUsedStillComesBeforeWhatTakesItsPlace) {
  bring("unused", low), bring("low2", low);
  use("use low2", low);
  bring_early(set, 0, brings);
  EXPECT_THAT(names(), ElementsAre("unused", "low2", "use low2"));
}

TEST_F(BringOrder, WhatPreparesAPlaceComesRightBeforeItsFirstUse) {
  const auto prepare = [&](const std::string& name, Buffer place) {
    pb.emit(name, {.writes = {place}}, [](const Bindings&) {});
    ++brings.back().prepared;
  };
  const auto nothing = static_cast<std::uint32_t>(set.programs[0].instructions.size());
  brings.push_back({nothing, nothing, high});  // it is there already
  prepare("prepare high0", high);
  use("input", pb.persistent("x", {1}, DType::f32, Role::input));
  bring("low1", low), prepare("prepare low1", low);
  use("use high0", high), use("use low1", low), use("again low1", low);
  bring("low2", low), prepare("prepare low2", low);
  bring("high2", high), prepare("never", high);
  use("use low2", low);
  bring_early(set, 0, brings);
  EXPECT_THAT(names(),
              ElementsAre("input", "low1", "prepare high0", "use high0", "prepare low1", "high2",
                          "use low1", "again low1", "low2", "prepare low2", "use low2"));
}

TEST_F(BringOrder, JustInTimeFollowsTheOrderOfFirstUses) {
  std::vector<Buffer> own;
  for (int i = 0; i < 4; ++i) own.push_back(pb.temp("own", {256}, DType::u8));
  for (std::size_t i = 0; i < 4; ++i) bring(std::to_string(i), own[i]);
  use("use 2", own[2]), use("use 0", own[0]), use("use 2 again", own[2]), use("use 3", own[3]);
  bring_just_in_time(set, 0, brings, 1);
  EXPECT_THAT(names(), ElementsAre("2", "0", "use 2", "3", "use 0", "use 2 again", "use 3"));
}

TEST_F(BringOrder, ACopyRunsBesideTheProductBeforeTheOneThatReadsIt) {
  const Buffer home = pb.persistent("home", {256}, DType::u8, Role::checkpoint, Tier::host);
  const auto product = [&](const std::string& name, Buffer to) {
    pb.emit(name, {.writes = {to}, .cost = {.work = Work::gemm}}, [](const Bindings&) {});
  };
  const auto copy = [&](const std::string& name, Buffer from, Buffer to, Lane lane) {
    pb.emit(name, {.reads = {from}, .writes = {to}, .lane = lane}, [](const Bindings&) {});
  };
  product("first", pb.temp("x", {256}, DType::u8));
  product("second", pb.temp("x", {256}, DType::u8));
  use("norm", low);
  copy("bring", home, high, Lane::upload);
  bring_beside(set, 0);
  EXPECT_THAT(names(), ElementsAre("first", "bring", "second", "norm"));
  copy("keep", high, home, Lane::download);
  copy("at once", home, high, Lane::upload);  // it has to wait for "keep" in any case
  bring_beside(set, 0);
  product("third", pb.temp("x", {256}, DType::u8));
  copy("again", home, low, Lane::upload);
  bring_beside(set, 0);
  EXPECT_THAT(names(),
              ElementsAre("first", "bring", "second", "norm", "keep", "at once", "again", "third"));
}

}  // namespace
}  // namespace ballast
