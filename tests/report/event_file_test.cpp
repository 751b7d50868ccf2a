#include "report/event_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "tests/report/event_reader.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::read_events;
using test::read_whole;
using test::TempDir;

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char b : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(b));
  return text;
}

// The vectors of the format's specification, which TensorBoard's own loader has read.
TEST(EventRecord, FirstRecordIsThePublishedOne) {
  std::string out;
  event_record::file_version(out, 1700000000.25);
  EXPECT_EQ(hex(out),
            "2300000000000000b09f77430900001040fc54d9411a0d627261696e2e4576656e743a32"
            "52090a0762616c6c61737499db6647");
}

TEST(EventRecord, ScalarIsThePublishedOne) {
  std::string out;
  const Scalar loss = {"train/loss", 0.125f};
  event_record::scalars(out, 1700000000.25, 7, {&loss, 1});
  EXPECT_EQ(
      hex(out),
      "200000000000000029eda9500900001040fc54d94110072a130a110a0a747261696e2f6c6f7373150000003e"
      "ed471935");
}

TEST(EventRecord, TheTestsOwnChecksumIsThePublishedOne) {
  EXPECT_EQ(test::masked("\x1A\x11"
                         "CRC test, one two"),
            0x5794d08au);
}

TEST(EventFile, ReadsBackWhatWasWritten) {
  const TempDir dir;
  const std::string long_text(70000, 'x');  // three bytes of length
  {
    EventFile file(dir.path("logs"));
    file.scalar(0, "train/loss", 0.5);
    const Scalar two[] = {{"perf/step_time_s", 1.5f}, {"mem/host_rss_bytes", 3e9f}};
    file.scalars(300, two);
    file.text(1, "config", long_text);
    file.image(2, "samples/0", {.width = 300, .height = 2, .bytes = std::string("\x89PNG\0x", 6)});
    file.scalar(INT64_MAX, "train/loss", NAN);
  }
  std::vector<std::string> names;
  for (const auto& e : std::filesystem::directory_iterator(dir.path("logs"))) {
    names.push_back(e.path().filename().string());
  }
  ASSERT_EQ(names.size(), 1u);
  EXPECT_THAT(names[0], ::testing::MatchesRegex(
                            "events\\.out\\.tfevents\\.[0-9]{10}\\..+\\.[0-9]+\\.[0-9]+"));

  const auto events = read_events(read_whole(dir.path("logs/" + names[0])));
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[0].writer, "ballast");
  EXPECT_NEAR(events[0].wall_time, static_cast<double>(std::time(nullptr)), 60);
  EXPECT_EQ(events[1].step, 0);
  EXPECT_EQ(events[1].values.at(0).tag, "train/loss");
  EXPECT_EQ(events[1].values.at(0).scalar, 0.5f);
  EXPECT_EQ(events[2].step, 300);
  ASSERT_EQ(events[2].values.size(), 2u);
  EXPECT_EQ(events[2].values[1].tag, "mem/host_rss_bytes");
  EXPECT_EQ(events[2].values[1].scalar, 3e9f);
  EXPECT_EQ(events[3].values.at(0).tag, "config/text_summary");
  EXPECT_EQ(events[3].values.at(0).plugin, "text");
  EXPECT_EQ(events[3].values.at(0).text, long_text);
  EXPECT_EQ(events[4].step, 2);
  EXPECT_EQ(events[4].values.at(0).tag, "samples/0");
  EXPECT_EQ(events[4].values.at(0).width, 300u);
  EXPECT_EQ(events[4].values.at(0).height, 2u);
  EXPECT_EQ(events[4].values.at(0).channels, 3u);
  EXPECT_EQ(events[4].values.at(0).image, std::string("\x89PNG\0x", 6));
  EXPECT_EQ(events[5].step, INT64_MAX);
  EXPECT_TRUE(std::isnan(events[5].values.at(0).scalar.value()));
}

TEST(EventFile, ResumedRunOpensAFileThatSortsBehindAndSaysWhereItGoesOn) {
  const TempDir dir;
  std::vector<std::string> paths;
  for (int i = 0; i < 12; ++i) {  // all within a second, more than one digit of counter
    EventFile file(dir.path(), i == 0 ? std::nullopt : std::optional<std::int64_t>(10 * i));
    file.scalar(10 * i, "train/loss", i);
    paths.push_back(file.path());
  }
  EXPECT_TRUE(std::ranges::is_sorted(paths));
  const auto first = read_events(read_whole(paths.front()));
  EXPECT_FALSE(first.at(1).restart);
  const auto last = read_events(read_whole(paths.back()));
  EXPECT_TRUE(last.at(1).restart);
  EXPECT_EQ(last.at(1).step, 110);
  EXPECT_EQ(last.at(2).step, 110);
}

TEST(EventFile, KilledRunLosesAtMostTheRecordItWasWriting) {
  const TempDir dir;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    EventFile file(dir.path());
    for (std::int64_t step = 1;; ++step) {
      file.scalar(step, "train/loss", 1);
      [[maybe_unused]] const auto told = ::write(ends[1], &step, sizeof step);
    }
  }
  std::int64_t told = 0;
  while (told < 200) ASSERT_EQ(::read(ends[0], &told, sizeof told), sizeof told);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[1]);
  for (std::int64_t next; ::read(ends[0], &next, sizeof next) == sizeof next;) told = next;
  ::close(ends[0]);

  const std::filesystem::path path = std::filesystem::directory_iterator(dir.path())->path();
  const auto events = read_events(read_whole(path.string()));
  EXPECT_GE(events.back().step, told);  // every record that was finished is there
}

TEST(EventFile, StepAllocatesNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const TempDir dir;
  EventFile file(dir.path());
  const Scalar values[] = {{"train/loss", 1}, {"train/lr", 2}, {"train/grad_norm", 3}};
  file.scalars(1, values);
  allocation_hook::arm();
  file.scalars(1 << 20, values);
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
}

TEST(EventFile, FolderThatCannotBeMadeIsAnIoErrorWithItsName) {
  const TempDir dir;
  dir.write("file", "x");
  EXPECT_FAILS(EventFile(dir.path("file/logs")), ErrorCode::io, "file/logs");
}

}  // namespace
}  // namespace ballast
