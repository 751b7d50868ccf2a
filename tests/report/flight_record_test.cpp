#include "report/flight_record.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "report/process_start.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::read_whole;
using test::TempDir;

constexpr std::size_t kSlotAt = 4096, kSlotStride = 512;

FlightStart sample_start() {
  return {.command = "ballast train run.toml",
          .folder = "/runs/one",
          .total_steps = 100,
          .planned = {{10}, {20}, {30}, {40}},
          .allowed = {{11}, {21}, {31}, {41}}};
}

FlightState sample_state(std::int64_t step) {
  return {.phase = Phase::update,
          .step = step,
          .epoch = 3,
          .loss = 0.125,
          .measured = {{1}, {2}, {3}, {4}},
          .most = {{5}, {6}, {7}, {8}}};
}

// Of a file made anew: truncating one that is there makes some file systems write it to disk.
FlightRecord read_bytes(const TempDir& dir, const std::string& bytes) {
  std::filesystem::remove(dir.path("bytes"));
  return read_flight_record(dir.write("bytes", bytes));
}

TEST(FlightRecord, ReadsBackWhatWasWritten) {
  const TempDir dir;
  const std::string path = dir.path("flight_record");
  FlightRecorder recorder(path, sample_start());
  recorder.update(sample_state(7), "wrote checkpoint 5");
  const FlightRecord r = read_flight_record(path);
  EXPECT_EQ(r.pid, ::getpid());
  EXPECT_EQ(r.start_ticks, process_start_ticks(::getpid()));
  EXPECT_EQ(r.boot_id, boot_id());
  EXPECT_EQ(r.start.command, "ballast train run.toml");
  EXPECT_EQ(r.start.folder, "/runs/one");
  EXPECT_EQ(r.start.total_steps, 100);
  EXPECT_EQ(r.start.planned, sample_start().planned);
  EXPECT_EQ(r.start.allowed, sample_start().allowed);
  EXPECT_EQ(r.state.phase, Phase::update);
  EXPECT_EQ(r.state.step, 7);
  EXPECT_EQ(r.state.epoch, 3);
  EXPECT_EQ(r.state.loss, 0.125);
  EXPECT_EQ(r.state.measured, sample_state(7).measured);
  EXPECT_EQ(r.state.most, sample_state(7).most);
  EXPECT_EQ(r.note, "wrote checkpoint 5");
  EXPECT_GT(r.available.value().count, 0u);
  EXPECT_FALSE(r.torn);
  EXPECT_TRUE(r.locked);

  recorder.phase(Phase::save);  // the rest stays, the note too
  const FlightRecord later = read_flight_record(path);
  EXPECT_EQ(later.state.phase, Phase::save);
  EXPECT_EQ(later.state.step, 7);
  EXPECT_EQ(later.note, "wrote checkpoint 5");
  EXPECT_EQ(std::filesystem::file_size(path), 8192u);
}

TEST(FlightRecord, LockIsGoneWithItsWriter) {
  const TempDir dir;
  { FlightRecorder recorder(dir.path("flight_record"), {}); }
  EXPECT_FALSE(read_flight_record(dir.path("flight_record")).locked);
}

// Whatever byte of the newest slot an unfinished update left behind, the state before is read.
TEST(FlightRecord, TornUpdateIsRecognisedAtEveryByte) {
  const TempDir dir;
  const std::string path = dir.path("flight_record");
  std::string before, after;
  {
    FlightRecorder recorder(path, sample_start());  // slot 1: its first state
    recorder.update(sample_state(6), "six");        // slot 0
    recorder.update(sample_state(7), "seven");      // slot 1
    before = read_whole(path);
    auto next = sample_state(8);
    next.phase = Phase::step;
    next.loss = 0.5;
    next.measured = {{100}, {200}, {300}, {400}};
    recorder.update(next, "eight");  // slot 0
    after = read_whole(path);
  }
  std::size_t last_changed = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (before[i] != after[i]) last_changed = i;
  }
  ASSERT_GE(last_changed, kSlotAt);
  ASSERT_LT(last_changed, kSlotAt + kSlotStride);
  int torn = 0;
  for (std::size_t cut = kSlotAt + 1; cut <= last_changed; ++cut) {
    const FlightRecord r = read_bytes(dir, after.substr(0, cut) + before.substr(cut));
    ASSERT_EQ(r.state.step, 7) << cut;
    ASSERT_EQ(r.note, "seven") << cut;
    torn += r.torn ? 1 : 0;
  }
  EXPECT_GT(torn, 100);
  EXPECT_EQ(read_bytes(dir, after).state.step, 8);
}

TEST(FlightRecord, AnyDamageOfTheHeaderIsAnInputError) {
  const TempDir dir;
  { FlightRecorder recorder(dir.path("flight_record"), sample_start()); }
  const std::string whole = read_whole(dir.path("flight_record"));
  EXPECT_FAILS(read_bytes(dir, ""), ErrorCode::input, "no flight record");
  EXPECT_FAILS(read_flight_record("/nowhere"), ErrorCode::io, "/nowhere");
  EXPECT_FAILS(read_bytes(dir, whole.substr(0, 8191)), ErrorCode::input, "8191 bytes");
  for (std::size_t i = 0; i < 200; ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_FAILS(read_bytes(dir, damaged), ErrorCode::input, "bytes");
  }
  std::string no_slot = whole;
  no_slot[kSlotAt + kSlotStride + 8] ^= 1;
  EXPECT_FAILS(read_bytes(dir, no_slot), ErrorCode::input, "neither");
}

TEST(FlightRecord, LongTextsAreCutNotSpilled) {
  const TempDir dir;
  FlightStart start = sample_start();
  start.command.assign(5000, 'c');
  FlightRecorder recorder(dir.path("flight_record"), start);
  recorder.update(sample_state(1), std::string(5000, 'n'));
  const FlightRecord r = read_flight_record(dir.path("flight_record"));
  EXPECT_EQ(r.start.command, std::string(1024, 'c'));
  EXPECT_EQ(r.note, std::string(240, 'n'));
  EXPECT_EQ(r.start.folder, "/runs/one");
}

TEST(FlightRecord, SurvivesKillMinusNine) {
  const TempDir dir;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    FlightRecorder recorder(dir.path("flight_record"), sample_start());
    for (std::int64_t step = 1;; ++step) {
      recorder.update(sample_state(step));
      [[maybe_unused]] const auto told = ::write(ends[1], &step, sizeof step);
    }
  }
  std::int64_t told = 0;
  while (told < 300) ASSERT_EQ(::read(ends[0], &told, sizeof told), sizeof told);
  EXPECT_TRUE(read_flight_record(dir.path("flight_record")).locked);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[1]);
  for (std::int64_t next; ::read(ends[0], &next, sizeof next) == sizeof next;) told = next;
  ::close(ends[0]);
  const FlightRecord r = read_flight_record(dir.path("flight_record"));
  EXPECT_GE(r.state.step, told);
  EXPECT_EQ(r.pid, child);
  EXPECT_FALSE(r.locked);
}

TEST(FlightRecord, FolderThatIsNotThereIsAnIoError) {
  EXPECT_FAILS(FlightRecorder("/nonexistent/flight_record", {}), ErrorCode::io, "/nonexistent");
}

TEST(FlightRecord, UpdateAllocatesNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const TempDir dir;
  FlightRecorder recorder(dir.path("flight_record"), {}, "/", test::FakeClock::now);
  test::FakeClock::advance(std::chrono::seconds(1));  // so that it also asks for the memory left
  allocation_hook::arm();
  for (int i = 0; i < 1000; ++i) recorder.update(sample_state(i), "note");
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
}

}  // namespace
}  // namespace ballast
