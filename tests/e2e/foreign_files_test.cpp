// Files that are no regular ones, that cannot be read, or that never end.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "io/atomic_file.h"
#include "report/run_log.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/child_process.h"
#include "tests/support/tiny_text_model.h"

namespace ballast::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Who hangs is killed after 60 s: exit code 137.
Finished run_with(const std::string& environment, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"-c", environment + " exec timeout -s KILL 60 \"$0\" \"$@\"",
                                  BALLAST_BINARY};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_program("/bin/bash", all);
}

class ForeignFiles : public ::testing::Test {
 protected:
  Finished generate(const std::string& prompts, const std::string& environment = "") const {
    return run_with(environment, {"generate", "--device", "cpu", "--max-new-tokens", "2", "--model",
                                  model_, "--prompt-file", prompts});
  }
  std::string fifo(const std::string& name) const {
    const std::string path = dir_.path(name);
    if (::mkfifo(path.c_str(), 0600) != 0) throw std::runtime_error("mkfifo");
    return path;
  }

  const TempDir dir_;
  const std::string model_ = support::write_text_model(dir_, "model");
};

TEST_F(ForeignFiles, AReadErrorIsNotTheEndOfTheirPrompts) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "say red and blue and then count again from one\n";
  const std::string prompts = dir_.write("prompts.txt", text);
  const Finished f = generate(
      prompts, fmt::format("LD_PRELOAD={} BALLAST_FAULT=read:EIO:2+ BALLAST_FAULT_PATH=prompts.txt",
                           BALLAST_CALL_FAULT));
  EXPECT_EQ(f.exit_code, 6) << f.err;
  EXPECT_EQ(f.out, "");
  EXPECT_THAT(f.err, AllOf(HasSubstr(prompts), HasSubstr("Input/output error")));
}

TEST_F(ForeignFiles, PromptsAreARegularFile) {
  const std::pair<std::string, const char*> cases[] = {
      {fifo("fifo"), "is a FIFO, not a regular file"},
      {"/dev/zero", "is a character device, not a regular file"},
      {dir_.path(), "Is a directory"}};
  for (const auto& [path, reason] : cases) {
    const Finished f = generate(path);
    EXPECT_EQ(f.exit_code, 6) << f.err;
    EXPECT_THAT(f.err, AllOf(HasSubstr(path), HasSubstr(reason)));
  }
  const Finished endless = generate("-", "exec < /dev/zero;");
  EXPECT_EQ(endless.exit_code, 4) << endless.err;
  EXPECT_THAT(endless.err, HasSubstr("standard input, line 1: more than 1048576 bytes"));
}

TEST_F(ForeignFiles, LogsAndRecordsAreRegularFiles) {
  const std::string log = fifo(std::string(kRunLogFile));
  const Finished report = run_with("", {"report", log});
  EXPECT_EQ(report.exit_code, 6) << report.err;
  EXPECT_THAT(report.err, AllOf(HasSubstr(log), HasSubstr("is a FIFO, not a regular file")));
  std::filesystem::create_directories(dir_.path("state/ballast"));
  const std::string last = fifo("state/ballast/last_run");
  const Finished doctor = run_with("XDG_STATE_HOME=" + dir_.path("state"), {"doctor"});
  EXPECT_EQ(doctor.exit_code, 6) << doctor.err;
  EXPECT_THAT(doctor.err, AllOf(HasSubstr(last), HasSubstr("is a FIFO, not a regular file")));
}

// Each is named with the system's reason; none is an internal error or an absent file.
TEST_F(ForeignFiles, CirclesOfLinksAreNamed) {
  const std::string loop = dir_.path("loop");
  std::filesystem::create_symlink("loop", loop);
  const std::vector<std::string> commands[] = {
      {"generate", "--model", loop, "hello"},
      {"sample", "--model", loop, "--prompt", "x"},
      {"report", loop},
      {"doctor", loop},
      {"doctor", "--disk", loop},
      {"plan", loop},
      {"train", "--pretrained-model", loop, "--train-file", loop, "--model-output", "o"}};
  for (const auto& command : commands) {
    const Finished f = run_with("", command);
    EXPECT_EQ(f.exit_code, 6) << command[0] << ": " << f.err;
    EXPECT_THAT(f.err, AllOf(HasSubstr(loop), HasSubstr("Too many levels of symbolic links")))
        << command[0];
  }
}

TEST_F(ForeignFiles, AFolderThatIsGoneIsNamed) {
  const Finished f = run_with(fmt::format("mkdir {0} && cd {0} && rmdir {0};", dir_.path("gone")),
                              {"doctor", "--no-disk-trial", "--disk", "x"});
  EXPECT_EQ(f.exit_code, 6) << f.err;
  EXPECT_THAT(f.err, HasSubstr("x: No such file or directory"));
}

// Temporary files of AtomicFile beside `path`, as SIGKILL leaves them.
// Of one process: a second one would remove what the first has left.
void leave_temporary_files(const std::string& one, const std::string& other) {
  ChildProcess killed([&] {
    AtomicFile files[] = {AtomicFile(one), AtomicFile(other)};
    for (AtomicFile& file : files) file.write(std::string(2'000'000, 'x'));
    ::raise(SIGKILL);
    return 0;
  });
  ASSERT_EQ(killed.wait(), -SIGKILL);
}

std::int64_t entries(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST_F(ForeignFiles, TheNextCommandRemovesWhatAKilledOneLeft) {
  std::filesystem::create_directories(dir_.path("out"));
  const std::string output = dir_.path("out/texts");
  leave_temporary_files(output, dir_.path("out/another"));
  ASSERT_EQ(entries(dir_.path("out")), 2);
  const std::vector<std::string> generate = {"generate", "--device", "cpu",    "--max-new-tokens",
                                             "2",        "--output", output,   "--model",
                                             model_,     "--prompt", "say red"};
  const Finished f = run_ballast(generate);
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, HasSubstr("out: removed 2 temporary files and folders (4.000 MB) that a "
                               "killed process left"));
  EXPECT_EQ(entries(dir_.path("out")), 1);
  // One that is being written stays.
  AtomicFile ours(dir_.path("out/ours"));
  const Finished again = run_ballast(generate);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.err.find("removed"), std::string::npos) << again.err;
  ours.commit();
  EXPECT_EQ(entries(dir_.path("out")), 2);
}

}  // namespace
}  // namespace ballast::test
