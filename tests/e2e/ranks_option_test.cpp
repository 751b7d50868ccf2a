// ballast train --ranks N: which process does what, before a run begins.

#include <gmock/gmock.h>

#include <utility>

#include "memory/file_descriptor.h"
#include "tests/e2e/ballast_process.h"

namespace ballast::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Environment = std::vector<std::pair<std::string, std::string>>;

Finished train_with(std::vector<std::string> arguments, const Environment& environment = {}) {
  arguments.insert(arguments.begin(), "train");
  return run_program(BALLAST_BINARY, arguments, Stdout::captured, [&] {
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  });
}

int occurrences(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST(RanksOption, StandsAnywhereAndRanksFailInOneVoice) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--ranks", "3", "missing.toml"},
                                             {"missing.toml", "--ranks", "3"},
                                             {"missing.toml", "--ranks=3"}}) {
    const Finished f = train_with(arguments);
    EXPECT_EQ(f.exit_code, 6) << f.err;
    EXPECT_EQ(occurrences(f.err, "missing.toml: cannot open"), 1) << f.err;
    EXPECT_THAT(f.err, Not(HasSubstr("ended with exit code")));
  }
}

TEST(RanksOption, OfOneRankStartsNone) {
  const Finished f = train_with({"missing.toml", "--ranks", "1"});
  EXPECT_EQ(f.exit_code, 6);
  EXPECT_THAT(f.err, HasSubstr("ballast: missing.toml: cannot open"));
}

TEST(RanksOption, ThatIsNoNumberOfRanksIsRefused) {
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& text) {
    const Finished f = train_with(arguments);
    EXPECT_EQ(f.exit_code, 2);
    EXPECT_THAT(f.err, HasSubstr(text));
  };
  refused({"--ranks", "0", "x.toml"}, "--ranks 0: expected a number from 1 to 256");
  refused({"--ranks=257", "x.toml"}, "--ranks 257: expected a number from 1 to 256");
  refused({"--ranks", "two", "x.toml"}, "--ranks two: expected a number from 1 to 256");
  refused({"x.toml", "--ranks"}, "--ranks without a value: expected a number from 1 to 256");
  refused({"--ranks", "auto", "x.toml"}, "ranks compute on the CPU so far: expected a number");
  refused({"--ranks", "2", "--ranks", "3", "x.toml"}, "--ranks 2 and --ranks 3: expected one");
}

TEST(RanksOption, AgreesWithTheJobOfARank) {
  const FileDescriptor nothing(::open("/dev/null", O_RDWR));
  const Environment rank = {{"BALLAST_RANK", "1"},
                            {"BALLAST_RANKS", "2"},
                            {"BALLAST_LOCAL_RANK", "1"},
                            {"BALLAST_LOCAL_RANKS", "2"},
                            {"BALLAST_RANK_MEMORY", std::to_string(nothing.get())},
                            {"BALLAST_JOB_TOKEN", "0123456789abcdef0123456789abcdef"}};
  const Finished other = train_with({"--ranks", "3", "missing.toml"}, rank);
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("--ranks 3 in a job of 2 ranks (BALLAST_RANKS=2)"));
  const Finished same = train_with({"--ranks", "2", "missing.toml"}, rank);
  EXPECT_EQ(same.exit_code, 4);
  EXPECT_THAT(same.err, AllOf(HasSubstr("ballast[1]: file descriptor"),
                              HasSubstr("is not the memory that the ranks of this job share")));
  const Finished half = train_with({"missing.toml"}, {{"BALLAST_RANK", "1"}});
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_THAT(half.err,
              AllOf(HasSubstr("some variables are missing"), HasSubstr("BALLAST_RANKS not set")));
}

// As without --ranks: the other processes of a foreign launcher end, notes are printed once.
TEST(RanksOption, BehindALauncherIsForItsFirstProcess) {
  const Finished second =
      train_with({"--ranks", "2", "missing.toml"}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_THAT(second.err, HasSubstr("ended without doing anything"));
  const Finished first =
      train_with({"torchrun", "--nproc_per_node", "2", "train.py", "--ranks", "2", "missing.toml"},
                 {{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(first.exit_code, 6) << first.err;
  EXPECT_EQ(occurrences(first.err, "one GPU is used (WORLD_SIZE=2)"), 1) << first.err;
  EXPECT_LE(occurrences(first.err, "one GPU is used (--nproc_per_node 2)"), 1) << first.err;
}

}  // namespace
}  // namespace ballast::test
