#include "report/rank_records.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"

namespace ballast::rank_records_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class RankRecords : public testing::Test {
 protected:
  std::string folder() const { return dir_.path(""); }
  static FlightState at(std::int64_t step) {
    FlightState state;
    state.phase = Phase::step;
    state.step = step;
    return state;
  }
  // What a rank's process leaves that has ended with an error.
  void leave(int rank, int ranks, std::int64_t step, std::string_view note) {
    FlightRecorder recorder(flight_record_path(folder(), rank), {.command = "ballast train x.toml",
                                                                 .folder = folder(),
                                                                 .total_steps = 10,
                                                                 .planned = {},
                                                                 .allowed = {},
                                                                 .rank = rank,
                                                                 .ranks = ranks});
    recorder.update(at(step));
    recorder.phase(Phase::failed, note);
    recorder.update(at(step + 1), "too late");
  }
  std::vector<RankRecord> read() const {
    const std::string path = flight_record_path(folder(), 0);
    return read_rank_records(path, read_flight_record(path), 1.8e9);
  }

  test::TempDir dir_;
};

TEST_F(RankRecords, AreShownForAllRanks) {
  leave(0, 3, 4, "rank 1 was killed");
  leave(1, 3, 5, "disk full");
  const auto ranks = read();
  ASSERT_EQ(ranks.size(), 3u);
  EXPECT_EQ(ranks.back().rank, 2) << "without a record";
  EXPECT_FALSE(ranks.back().record.has_value());
  EXPECT_THAT(describe(ranks), AllOf(HasSubstr("failed, step 4, phase failed"),
                                     HasSubstr("failed, step 5, phase failed"),
                                     HasSubstr("disk full"), HasSubstr("flight_record.2")));
}

TEST_F(RankRecords, AFailureStays) {
  leave(0, 1, 4, "the cause");
  const FlightRecord record = read_flight_record(flight_record_path(folder(), 0));
  EXPECT_EQ(record.state.phase, Phase::failed);
  EXPECT_EQ(record.state.step, 4);
  EXPECT_EQ(record.note, "the cause");
}

TEST_F(RankRecords, OfARunWithOneRankAreNone) {
  leave(0, 1, 4, "x");
  EXPECT_TRUE(read().empty());
  EXPECT_EQ(describe(read()), "");
}

TEST_F(RankRecords, OfAnEarlierStartAreRemoved) {
  leave(0, 3, 4, "x");
  leave(2, 3, 4, "x");
  std::ofstream(folder() + "/ranks/other") << "somebody's";
  remove_rank_records(folder());
  EXPECT_FALSE(std::filesystem::exists(flight_record_path(folder(), 2)));
  EXPECT_TRUE(std::filesystem::exists(folder() + "/ranks/other"));
  EXPECT_TRUE(std::filesystem::exists(flight_record_path(folder(), 0)));
}

}  // namespace
}  // namespace ballast::rank_records_test
