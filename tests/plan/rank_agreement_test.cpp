#include "plan/rank_agreement.h"

#include <gmock/gmock.h>

#include <ctime>
#include <functional>
#include <set>

#include "plan/process_lines.h"
#include "plan/program_builder.h"

namespace ballast::rank_agreement_test {
namespace {

constexpr auto kNothing = [](const Bindings&) {};

struct Variant {
  int rank = 0, ranks = 4, width = 16;
  std::string group = "dp", name = "gradients";
  double bytes = 64;
  bool swapped = false, more_local_work = false;
};

// Two blocks, each computed and exchanged; a rank works on its own rows of what all ranks have.
ProgramSet recorded(const Variant& v, int blocks = 2) {
  ProgramSet set;
  set.executable = false;
  set.groups = {{.name = v.group, .size = v.ranks, .mine = v.rank}};
  ProgramBuilder pb(set, "step");
  const Buffer x = pb.persistent("x", {v.ranks, v.width}, DType::f32, Role::gradient);
  const auto exchange = [&](std::string_view name) {
    pb.emit(name,
            {.reads = {pb.rows(x, v.rank, 1)},
             .writes = {x},
             .lane = Lane::network,
             .cost = {.work = Work::network, .bytes = v.bytes, .group = 0}},
            kNothing);
  };
  for (int b = 0; b < blocks; ++b) {
    const auto scope = pb.scope(fmt::format("blocks.{}", b));
    if (v.swapped) exchange(v.name);
    const Buffer t = pb.temp("t", {v.width}, DType::f32);
    pb.emit("make", {.writes = {t}}, kNothing);
    if (v.more_local_work) pb.emit("again", {.reads = {t}, .writes = {t}}, kNothing);
    pb.emit("add", {.reads = {t}, .writes = {pb.rows(x, v.rank, 1)}}, kNothing);
    if (!v.swapped) exchange(v.name);
  }
  return set;
}

std::uint64_t network_of(const Variant& v) { return network_hash(recorded(v), 0); }
std::uint64_t plan_of(const Variant& v) {
  const ProgramSet set = recorded(v);
  return plan_hash(set, plan_memory(set), 0);
}

TEST(RankAgreement, HashesAreEqualOnAllRanks) {
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(network_of({.rank = rank}), network_of({}));
    EXPECT_EQ(plan_of({.rank = rank}), plan_of({}));
  }
}

TEST(RankAgreement, TheNetworkHashTellsExchangesApart) {
  const std::set<std::uint64_t> all = {network_of({}), network_of({.group = "all"}),
                                       network_of({.name = "weights"}), network_of({.bytes = 65}),
                                       network_of({.ranks = 5})};
  EXPECT_EQ(all.size(), 5u);
  // What a rank does between two exchanges keeps nobody waiting for ever.
  EXPECT_EQ(network_of({.more_local_work = true}), network_of({}));
}

TEST(RankAgreement, ThePlanHashTellsPlansApart) {
  const std::set<std::uint64_t> all = {plan_of({}), plan_of({.width = 100}),
                                       plan_of({.more_local_work = true}),
                                       plan_of({.swapped = true}), plan_of({.name = "weights"})};
  EXPECT_EQ(all.size(), 5u);
}

TEST(RankAgreement, OneRankHasNothingToAgreeOn) {
  ProgramSet set;
  ProgramBuilder pb(set, "step");
  check_ranks_agree(set, plan_memory(set), {});
}

TEST(RankAgreement, AThousandRanksArePlannedInSeconds) {
  const std::clock_t begin = std::clock();
  std::set<std::uint64_t> hashes;
  for (int rank = 0; rank < 1024; ++rank) {
    const ProgramSet set = recorded({.rank = rank, .ranks = 1024}, 40);
    hashes.insert(network_hash(set, 0));
    hashes.insert(plan_hash(set, plan_memory(set), 0));
  }
  EXPECT_EQ(hashes.size(), 2u);
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 10);
}

// The stack of the network lane's thread.
TEST(RankAgreement, OneRankPlansNoMemoryForTheNetwork) {
  const auto bytes = [](const ProgramSet& set) {
    return sum_lines(process_lines(set, {}), Tier::host).count;
  };
  ProgramSet alone, with_others;
  with_others.groups = {{.name = "all", .size = 2}};
  EXPECT_GT(bytes(with_others), bytes(alone));
}

}  // namespace
}  // namespace ballast::rank_agreement_test
