#include "memory/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::TempDir;

std::vector<std::string> all_lines(LineReader reader) {
  std::vector<std::string> lines;
  for (FileLine line; reader.next(line);) lines.emplace_back(line.text);
  return lines;
}

TEST(TextFile, IsReadWholeUpToItsLimit) {
  const TempDir dir;
  const std::string path = dir.write("a.json", "{}\n\0x");
  EXPECT_EQ(read_text_file(path, 3, "a config.json"), "{}\n");
  EXPECT_FAILS(read_text_file(path, 2, "a config.json"), ErrorCode::input,
               "a config.json has at most 2 bytes, this file has 3");
  EXPECT_FAILS(read_text_file(dir.path("none"), 2, "x"), ErrorCode::io, "No such file");
  EXPECT_EQ(read_text_file_if_there(path, 3, "x"), "{}\n");
  EXPECT_EQ(read_text_file_if_there(dir.path("none"), 3, "x"), std::nullopt);
  EXPECT_EQ(read_text_file_if_there(path + "/below", 3, "x"), std::nullopt);
}

// Opened in one place, so both readers refuse the same things, and neither waits.
TEST(TextFile, IsARegularFile) {
  const TempDir dir;
  const std::string fifo = dir.path("fifo"), loop = dir.path("loop");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink("loop", loop);
  const std::pair<std::string, const char*> cases[] = {
      {fifo, "is a FIFO, not a regular file"},
      {"/dev/zero", "is a character device, not a regular file"},
      {dir.path(), "Is a directory"},
      {loop, "Too many levels of symbolic links"}};
  for (const auto& [path, reason] : cases) {
    EXPECT_FAILS(read_text_file(path, 100, "x"), ErrorCode::io, reason);
    EXPECT_FAILS(read_text_file(path, 100, "x"), ErrorCode::io, path);
    EXPECT_FAILS(read_text_file_if_there(path, 100, "x"), ErrorCode::io, reason);
    EXPECT_FAILS(LineReader::open(path, {}), ErrorCode::io, reason);
  }
}

TEST(LineReader, KnowsWhereItsLinesAre) {
  const TempDir dir;
  LineReader reader = LineReader::open(dir.write("a", "one\r\n\nthree"), {});
  FileLine line;
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line.text, "one\r");
  EXPECT_EQ(line.number, 1u);
  EXPECT_EQ(line.end, 5u);
  EXPECT_TRUE(line.complete);
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line.text, "");
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line.text, "three");
  EXPECT_EQ(line.number, 3u);
  EXPECT_EQ(line.begin, 6u);
  EXPECT_EQ(line.end, 11u);
  EXPECT_FALSE(line.complete);
  EXPECT_FALSE(reader.next(line));
  EXPECT_FALSE(reader.next(line));
  EXPECT_TRUE(all_lines(LineReader::open(dir.write("empty", ""), {})).empty());
  // Longer than a read.
  const std::string text = std::string(100'000, 'a') + "\n" + std::string(70'000, 'b') + "\nc\n";
  EXPECT_EQ(all_lines(LineReader::open(dir.write("long", text), {})),
            (std::vector<std::string>{std::string(100'000, 'a'), std::string(70'000, 'b'), "c"}));
}

TEST(LineReader, HoldsItsLimits) {
  const TempDir dir;
  const std::string path = dir.write("a", "ab\nabcd\nx\n");
  EXPECT_FAILS(all_lines(LineReader::open(path, {.line_bytes = 3})), ErrorCode::input,
               "line 2: more than 3 bytes");
  EXPECT_FAILS(all_lines(LineReader::open(path, {.file_bytes = 9})), ErrorCode::input,
               "more than 9 bytes");
  LineReader reader = LineReader::open(
      path, {.line_bytes = 3, .file_bytes = 10, .long_line = LineLimits::LongLine::skip});
  FileLine line;
  ASSERT_TRUE(reader.next(line));
  ASSERT_TRUE(reader.next(line));
  EXPECT_TRUE(line.too_long);
  EXPECT_EQ(line.text, "");
  EXPECT_EQ(line.end, 8u);
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line.text, "x");
  EXPECT_FALSE(line.too_long);
  // A sparse file of 10 GB is one line without an end: refused before it is read.
  const std::string huge = dir.write("huge", "");
  std::filesystem::resize_file(huge, 10'000'000'000);
  EXPECT_FAILS(all_lines(LineReader::open(huge, {})), ErrorCode::input,
               "line 1: more than 1048576 bytes");
}

// Page 0 of a process is not mapped: the kernel answers EIO.
TEST(LineReader, TellsAFailedReadFromTheEnd) {
  EXPECT_FAILS(all_lines(LineReader::open("/proc/self/mem", {})), ErrorCode::io,
               "/proc/self/mem: cannot read at offset 0: Input/output error");
}

class StandardInput : public ::testing::Test {
 protected:
  StandardInput() : saved_(::dup(STDIN_FILENO)) {}
  ~StandardInput() override {
    ::dup2(saved_, STDIN_FILENO);
    ::close(saved_);
  }
  static void use(int fd) {
    ::dup2(fd, STDIN_FILENO);
    ::close(fd);
  }

 private:
  int saved_;
};

TEST_F(StandardInput, MayBeAPipeButNoFolderOrEndlessLine) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_NONBLOCK), 0);
  use(ends[0]);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::write(ends[1], "a\nb\n", 4) == 4 ? 0 : 1);
  ::close(ends[1]);
  EXPECT_EQ(all_lines(LineReader::standard_input({})), (std::vector<std::string>{"a", "b"}));
  ::waitpid(child, nullptr, 0);
  use(::open("/", O_RDONLY));
  EXPECT_FAILS(all_lines(LineReader::standard_input({})), ErrorCode::io,
               "standard input: cannot read at offset 0: Is a directory");
  use(::open("/dev/zero", O_RDONLY));
  EXPECT_FAILS(all_lines(LineReader::standard_input({})), ErrorCode::input,
               "standard input, line 1: more than 1048576 bytes");
}

}  // namespace
}  // namespace ballast
