#include "report/watch/event_stream.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/report/watch/watched_run.h"

namespace ballast::watch_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class WatchEvents : public ::testing::Test {
 protected:
  EventStream open(std::uint64_t from) {
    return EventStream(WatchedFolder::open(run_.folder()), from, now_);
  }
  // All that there is to send now.
  std::string taken(EventStream& stream) {
    std::string all;
    while (stream.poll(now_, 1'700'000'200.0)) {
      std::string piece(100, '\0');
      piece.resize(stream.take(piece.data(), piece.size()));
      all += piece;
    }
    return all;
  }
  static std::size_t count(std::string_view text, std::string_view what) {
    std::size_t n = 0;
    for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
    return n;
  }
  std::uint64_t size() const { return std::filesystem::file_size(run_.log_path()); }

  WatchedRun run_;
  double now_ = 1000;
};

TEST_F(WatchEvents, EachLineComesOnceWithTheByteBehindIt) {
  run_.log_steps(2);
  EventStream stream = open(0);
  const std::string first = taken(stream);
  EXPECT_THAT(first, HasSubstr("retry: 2000\n\n"));
  EXPECT_EQ(count(first, "event: record\n"), 3u);  // the run and two steps
  EXPECT_THAT(first,
              HasSubstr(fmt::format("id: {}\nevent: record\ndata: {{\"kind\":\"step\"", size())));
  EXPECT_THAT(taken(stream), IsEmpty());
  RunLog(run_.log_path(), 2).step(step_of(3));
  const std::string second = taken(stream);
  EXPECT_EQ(count(second, "event: record\n"), 1u);
  EXPECT_THAT(second, HasSubstr("\"step\":3"));
}

TEST_F(WatchEvents, GoOnWhereTheReaderWas) {
  run_.log_steps(2);
  const std::uint64_t known = size();
  RunLog(run_.log_path(), 2).step(step_of(3));
  EventStream stream = open(known);
  const std::string text = taken(stream);
  EXPECT_EQ(count(text, "event: record\n"), 1u);
  EXPECT_THAT(text, HasSubstr(fmt::format("id: {}\n", size())));
  EXPECT_THAT(text, Not(HasSubstr("event: reset")));
}

TEST_F(WatchEvents, PlaceThatIsNoLinesEndIsReset) {
  run_.log_steps(2);
  for (const std::uint64_t from : {std::uint64_t{5}, size() + 1, std::uint64_t{1} << 62}) {
    EventStream stream = open(from);
    const std::string text = taken(stream);
    EXPECT_THAT(text, HasSubstr("event: reset\n")) << from;
    EXPECT_THAT(text, Not(HasSubstr("event: record"))) << from;
  }
}

TEST_F(WatchEvents, ShorterLogIsResetAndItsNewLinesFollow) {
  run_.log_steps(9);
  EventStream stream = open(size());
  EXPECT_THAT(taken(stream), Not(HasSubstr("event: record")));
  {
    RunLog log(run_.log_path(), 3);
    log.step(step_of(4));
  }
  EXPECT_THAT(taken(stream), HasSubstr("event: reset\n"));
  RunLog(run_.log_path(), 4).step(step_of(5));
  const std::string after = taken(stream);
  EXPECT_EQ(count(after, "event: record\n"), 1u);
  EXPECT_THAT(after, HasSubstr(fmt::format("id: {}\n", size())));
}

TEST_F(WatchEvents, LogThatWasShortenedAndIsLongerByNowIsReset) {
  run_.log_steps(3);
  EventStream stream = open(0);
  taken(stream);
  const std::uint64_t before = size();
  {
    RunLog log(run_.log_path(), 1);
    log.run(info_of("resumed"), 1);
    for (std::int64_t s = 2; s <= 9; ++s) log.step(step_of(s));
  }
  ASSERT_GT(size(), before);
  EXPECT_THAT(taken(stream), HasSubstr("event: reset\n"));
}

TEST_F(WatchEvents, LineIsSentWhenItIsWhole) {
  run_.log_steps(1);
  EventStream stream = open(size());
  taken(stream);
  std::ofstream(run_.log_path(), std::ios::app) << "{\"kind\":\"event\",\"step\":1,";
  EXPECT_THAT(taken(stream), IsEmpty());
  std::ofstream(run_.log_path(), std::ios::app) << "\"event\":\"save\"}\n";
  EXPECT_THAT(taken(stream), HasSubstr("\"event\":\"save\"}\n\n"));
}

TEST_F(WatchEvents, LineCannotMakeFieldsOfItsOwn) {
  run_.log_steps(1);
  EventStream stream = open(size());
  taken(stream);
  std::ofstream(run_.log_path(), std::ios::app) << "{}\revent: state\rdata: x\r\r\n{}\n";
  const std::string text = taken(stream);
  EXPECT_EQ(count(text, "event: "), 1u);
  EXPECT_THAT(text, Not(HasSubstr("\r")));
}

TEST_F(WatchEvents, StateComesWhenItChangesAtMostFourTimesASecond) {
  FlightRecorder record(run_.path(std::string(kFlightFile)), run_.start());
  record.update(state_of(Phase::load, 0));
  EventStream stream = open(0);
  EXPECT_THAT(taken(stream), HasSubstr("event: state\ndata: {\"state\":\"loading\""));
  now_ += 0.3;
  EXPECT_THAT(taken(stream), IsEmpty());
  record.update(state_of(Phase::step, 1));
  now_ += 0.3;
  EXPECT_THAT(taken(stream), HasSubstr("\"state\":\"training\""));
  record.update(state_of(Phase::step, 2));
  now_ += 0.1;
  EXPECT_THAT(taken(stream), IsEmpty());
  now_ += 0.2;
  EXPECT_THAT(taken(stream), HasSubstr("\"step\":2"));
}

TEST_F(WatchEvents, QuietStreamSaysThatItLives) {
  run_.log_steps(1);
  EventStream stream = open(size());
  taken(stream);
  now_ += 14;
  EXPECT_THAT(taken(stream), IsEmpty());
  now_ += 2;
  EXPECT_EQ(taken(stream), ": still here\n\n");
}

TEST_F(WatchEvents, ReaderThatDoesNotReadIsTooSlow) {
  run_.log_steps(1);
  EventStream stream = open(size());
  taken(stream);
  const std::string line =
      "{\"kind\":\"event\",\"step\":1,\"text\":\"" + std::string(1000, 'x') + "\"}\n";
  std::ofstream log(run_.log_path(), std::ios::app);
  for (int i = 0; i < 900; ++i) log << line;
  log.flush();
  EXPECT_TRUE(stream.poll(now_, 0));
  EXPECT_FALSE(stream.is_too_slow());
  for (int i = 0; i < 300; ++i) log << line;
  log.flush();
  EXPECT_TRUE(stream.poll(now_, 0));
  EXPECT_TRUE(stream.is_too_slow());
}

TEST_F(WatchEvents, LineThatIsTooLongIsLeftOut) {
  run_.log_steps(1);
  EventStream stream = open(size());
  taken(stream);
  {
    std::ofstream log(run_.log_path(), std::ios::app);
    log << std::string((16 << 20) + 100, 'x');
  }
  EXPECT_FALSE(stream.poll(now_, 0));
  std::ofstream(run_.log_path(), std::ios::app) << "\n{\"kind\":\"event\",\"step\":1}\n";
  EXPECT_EQ(count(taken(stream), "event: record\n"), 1u);
}

}  // namespace
}  // namespace ballast::watch_test
