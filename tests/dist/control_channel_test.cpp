#include "dist/control_channel.h"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/checksum.h"
#include "core/to_size.h"
#include "dist/control_socket.h"
#include "tests/dist/run_ranks.h"
#include "tests/support/errors.h"
#include "tests/support/wait_until.h"

namespace ballast::control_channel_test {
namespace {

using std::chrono::milliseconds;
using test::wait_until;
using testing::AllOf;
using testing::HasSubstr;

// The ranks of a job as threads of this process, each with its channel. They end by being noted.
class ControlChannels : public testing::Test {
 protected:
  ControlChannels() {
    static std::atomic<int> jobs{0};
    const std::string name = fmt::format("{} {}", ::getpid(), jobs.fetch_add(1));
    token_ = checksum_text(name) + checksum_text(name + " once more");
  }

  void start(int ranks, milliseconds hang = std::chrono::minutes(10)) {
    rank_.resize(to_size(ranks));
    for (int r = 0; r < ranks; ++r) {
      Rank& rank = *(rank_[to_size(r)] = std::make_unique<Rank>());
      ControlOptions options = {.rank = r, .ranks = ranks, .token = token_};
      options.heartbeat = milliseconds(20);
      options.hang = hang;
      options.progress = [&rank] { return rank.progress.load(); };
      options.on_report = [&rank](const ControlReport& report) {
        const std::lock_guard lock(rank.mutex);
        rank.report = report;
      };
      options.end = [&rank](int code) { rank.code = code; };
      rank.channel = std::make_unique<ControlChannel>(std::move(options));
    }
    for (int r = 0; r < ranks; ++r) say(r, "step", 3);
  }
  // All channels have met: facts go from each to the coordinator and back.
  void meet() {
    const auto errors = test::run_ranks(static_cast<int>(rank_.size()), [&](int r) {
      channel(r).require_same({{"version", "1"}});
    });
    EXPECT_TRUE(test::texts_of(errors).empty());
  }
  ControlChannel& channel(int r) { return *rank_[to_size(r)]->channel; }
  void say(int r, std::string_view phase, std::int64_t step) {
    ControlHeartbeat state;
    put_text(state.phase, phase);
    state.step = step;
    state.total_steps = 10;
    state.checkpoint = r == 0 ? 2 : -1;
    put_text(state.memory[0].name, "RAM");
    state.memory[0].planned = 100'000'000;
    state.memory[0].measured = 90'000'000 + static_cast<std::uint64_t>(r) * 1'000'000;
    channel(r).set_state(state);
  }
  // As a process does that is killed: nothing is said.
  void lose(int r) { rank_[to_size(r)]->channel.reset(); }

  std::optional<ControlReport> report(int r) {
    const std::lock_guard lock(rank_[to_size(r)]->mutex);
    return rank_[to_size(r)]->report;
  }
  // That all of these ranks have, with one text.
  ControlReport report_of(const std::vector<int>& ranks) {
    EXPECT_TRUE(wait_until(
        [&] { return std::ranges::all_of(ranks, [&](int r) { return report(r).has_value(); }); }));
    const ControlReport first = report(ranks[0]).value_or(ControlReport());
    int whole = 0;
    for (const int r : ranks) {
      EXPECT_EQ(report(r)->text, first.text);
      EXPECT_EQ(report(r)->code, first.code);
      EXPECT_EQ(report(r)->rank, first.rank);
      whole += report(r)->whole ? 1 : 0;
    }
    EXPECT_EQ(whole, 1) << "they share standard error";
    return first;
  }

  struct Rank {
    std::mutex mutex;
    std::optional<ControlReport> report;
    std::atomic<std::uint64_t> progress{0};
    std::atomic<int> code{-1};
    std::unique_ptr<ControlChannel> channel;  // last: its thread uses the others
  };
  std::string token_;
  std::vector<std::unique_ptr<Rank>> rank_;
};

TEST_F(ControlChannels, AnErrorOfOneRankIsTheReportOfAll) {
  start(3);
  meet();
  Error error(ErrorCode::io, "disk.bin: no space left", {{"a larger disk", "holds it"}});
  error.add_trail("saving the model");
  channel(1).tell(error);
  channel(2).tell(Error(ErrorCode::lost, "rank 1 cannot go on"));
  const ControlReport all = report_of({0, 1, 2});
  EXPECT_EQ(all.code, ErrorCode::io);
  EXPECT_EQ(all.rank, 1u);
  EXPECT_THAT(
      all.text,
      AllOf(HasSubstr("ballast: rank 1 failed in step 4 of 10, phase step"),
            HasSubstr("cause    disk.bin: no space left"), HasSubstr("while saving the model"),
            HasSubstr("newest whole checkpoint: step 2"), HasSubstr("1. a larger disk: holds it"),
            HasSubstr("--resume: continues after step 2")));
  EXPECT_THAT(all.text, HasSubstr("90.00 MB to 92.00 MB"));
  for (const auto& rank : rank_) {
    EXPECT_TRUE(wait_until([&] { return rank->code == static_cast<int>(ErrorCode::io); }));
  }
}

TEST_F(ControlChannels, AClosedConnectionIsALostRank) {
  start(4);
  meet();
  lose(2);
  const ControlReport all = report_of({0, 1, 3});
  EXPECT_EQ(all.code, ErrorCode::lost);
  EXPECT_EQ(all.rank, 2u);
  EXPECT_THAT(all.text,
              AllOf(HasSubstr("ballast: rank 2 was lost in step 4 of 10"),
                    HasSubstr("its process ended without a word"), HasSubstr("3 ranks stopped")));
}

TEST_F(ControlChannels, TheStandbyCoordinatorReportsWhenTheCoordinatorIsLost) {
  start(4);
  meet();
  lose(0);
  const ControlReport all = report_of({1, 2, 3});
  EXPECT_EQ(all.rank, 0u);
  EXPECT_THAT(all.text, HasSubstr("rank 0 was lost"));
}

TEST_F(ControlChannels, WithoutBothCoordinatorsEachRankReports) {
  start(3);
  meet();
  lose(0);
  lose(1);
  EXPECT_THAT(report_of({2}).text, HasSubstr("was lost"));
}

// What a rank throws because another one is gone is no cause.
TEST_F(ControlChannels, TheEarliestTrueCauseWins) {
  start(3);
  meet();
  channel(0).tell(Error(ErrorCode::lost, "the process of rank 2 is gone"));
  lose(2);
  EXPECT_EQ(report_of({0, 1}).rank, 2u);
}

TEST_F(ControlChannels, AnErrorThatWasToldComesBeforeTheEndOfItsRank) {
  start(2);
  meet();
  channel(1).tell(Error(ErrorCode::input, "damaged"));
  std::this_thread::yield();
  lose(1);
  const ControlReport all = report_of({0});
  // Its end may be seen before the frame is sent: then it is a lost rank, but never another's
  // fault.
  EXPECT_EQ(all.rank, 1u);
}

TEST_F(ControlChannels, AnErrorOfAllRanksIsSaidOnceAsThatOfARun) {
  start(3);
  meet();
  const Error error(ErrorCode::refused, "does not fit", {{"--ram 8GB", "fits"}});
  for (int r = 0; r < 3; ++r) channel(r).tell(error);
  const ControlReport all = report_of({0, 1, 2});
  EXPECT_EQ(all.code, ErrorCode::refused);
  EXPECT_EQ(all.text, "ballast: does not fit\nwhat would help:\n  1. --ram 8GB: fits\n");
  EXPECT_EQ(all.line, "");
}

TEST_F(ControlChannels, WhoHasFinishedIsNotLost) {
  start(3);
  meet();
  for (int r = 2; r >= 0; --r) {
    channel(r).finish();
    lose(r);
  }
  for (int r = 0; r < 3; ++r) {
    EXPECT_FALSE(report(r).has_value());
    EXPECT_EQ(rank_[to_size(r)]->code, -1);
  }
}

TEST_F(ControlChannels, FactsThatDifferEndAllWithATable) {
  start(3);
  const auto errors = test::run_ranks(3, [&](int r) {
    channel(r).require_same({{"model file", r == 1 ? "ffff" : "0000"}, {"columns", "3"}});
  });
  for (const auto& e : errors) {
    ASSERT_TRUE(e.has_value());
    EXPECT_EQ(e->code(), ErrorCode::input);
    EXPECT_THAT(e->what(), AllOf(HasSubstr("model file"), HasSubstr("ranks 0, 2   0000"),
                                 HasSubstr("rank 1       ffff")));
    EXPECT_THAT(e->what(), testing::Not(HasSubstr("columns")));
  }
  meet();  // and once more, with others
}

TEST_F(ControlChannels, FactsOfALostRankAreNotAwaited) {
  start(3);
  lose(2);
  const auto errors = test::run_ranks(2, [&](int r) { channel(r).require_same({{"a", "b"}}); });
  for (const auto& e : errors) {
    ASSERT_TRUE(e.has_value());
    EXPECT_EQ(e->code(), ErrorCode::lost);
  }
}

TEST_F(ControlChannels, RanksThatDoNotAdvanceHang) {
  start(3, milliseconds(400));
  meet();
  const ControlReport all = report_of({0, 1, 2});
  EXPECT_EQ(all.code, ErrorCode::lost);
  EXPECT_THAT(all.text, AllOf(HasSubstr("hangs in step 4"), HasSubstr("no rank has advanced for")));
}

TEST_F(ControlChannels, ARankThatAdvancesOrSavesKeepsAllAlive) {
  start(2, std::chrono::seconds(2));
  meet();
  EXPECT_FALSE(wait_until(
      [&] {
        ++rank_[1]->progress;
        return report(0) || report(1);
      },
      milliseconds(2600)));
  say(0, "save", 4);
  EXPECT_FALSE(wait_until([&] { return report(0) || report(1); }, milliseconds(2600)));
}

TEST_F(ControlChannels, ALongInstructionIsNoHang) {
  start(2, milliseconds(200));
  channel(0).set_longest(3600);
  meet();
  EXPECT_FALSE(wait_until([&] { return report(0) || report(1); }, milliseconds(700)));
}

void send_bytes(const FileDescriptor& to, std::span<const std::byte> bytes) {
  ASSERT_EQ(::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

// Until the other side closes.
std::string all_of(const FileDescriptor& from) {
  std::string all;
  std::array<char, 512> part{};
  EXPECT_TRUE(wait_until([&] {
    const ssize_t got = ::recv(from.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (got > 0) all.append(part.data(), to_size(got));
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
  }));
  return all;
}

TEST_F(ControlChannels, StrangersAreRefusedAndDisturbNobody) {
  start(2);
  meet();
  auto buffer = std::make_unique<ControlBuffer>();
  for (const ControlHello& hello : {ControlHello{.token = "another", .rank = 1, .ranks = 2},
                                    ControlHello{.token = token_, .rank = 7, .ranks = 2},
                                    ControlHello{.token = token_, .rank = 1, .ranks = 2}}) {
    const FileDescriptor stranger = connect_to_rank(token_, 0);
    ASSERT_TRUE(stranger);
    send_bytes(stranger, encode(hello, *buffer));
    const std::string answer = all_of(stranger);
    EXPECT_GT(answer.size(), kControlHeader + 2) << "a reason";
  }
  const FileDescriptor noise = connect_to_rank(token_, 0);
  send_bytes(noise, std::as_bytes(std::span("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")));
  all_of(noise);
  meet();
  EXPECT_FALSE(report(0).has_value());
}

}  // namespace
}  // namespace ballast::control_channel_test
