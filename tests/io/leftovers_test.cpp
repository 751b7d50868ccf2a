#include "io/leftovers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "core/log.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "tests/support/child_process.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast::leftovers_test {
namespace {

using test::ChildProcess;
using test::TempDir;

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

// Earlier versions had no locks.
TEST(Leftovers, WithoutALockAreThoseOfDeadProcessesAndOurOwn) {
  const TempDir parent;
  test::ChildProcess gone([] { return 0; });
  const pid_t dead = gone.pid();
  ASSERT_EQ(gone.wait(), 0);
  test::ChildProcess living([] { return ::pause(); });
  const auto write_all = [&](pid_t pid) {
    parent.write(fmt::format("a.tmp-{}-00ff/f", pid), "x");
    parent.write(fmt::format(".a.safetensors.{}-3.tmp", pid), "x");
  };
  write_all(dead);
  write_all(::getpid());
  write_all(living.pid());
  parent.write("b.deleting/f", "x");
  const std::set<std::string> others = {"a.tmp-file-of-someone", ".hidden.tmp", "c.deleting",
                                        "d.tmp--5-1", "1-1.tmp"};
  for (const std::string& name : others) parent.write(name, "x");
  EXPECT_EQ(clean_leftovers(parent.path()), 5);
  std::set<std::string> left = others;
  left.insert(fmt::format("a.tmp-{}-00ff", living.pid()));
  left.insert(fmt::format(".a.safetensors.{}-3.tmp", living.pid()));
  EXPECT_EQ(names_in(parent.path()), left);
  EXPECT_EQ(clean_leftovers(parent.path("no such")), 0);
}

// Leaves a file and a folder half written, and is killed when it is told to.
class Writer {
 public:
  explicit Writer(const std::string& folder) {
    if (::pipe(ends_) != 0) throw std::runtime_error("pipe");
    process_.emplace([&] {
      AtomicFile file(folder + "/model.safetensors");
      file.write("half");
      AtomicFolder half(folder + "/step");
      std::ofstream(half.file("state")) << "half";
      if (::write(ends_[1], "x", 1) != 1) return 1;
      return ::pause();
    });
    char ready = 0;
    if (::read(ends_[0], &ready, 1) != 1) throw std::runtime_error("writer");
  }
  ~Writer() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void kill() {
    process_->send(SIGKILL);
    process_->wait();
  }

 private:
  int ends_[2];
  std::optional<ChildProcess> process_;
};

TEST(Leftovers, AreThoseThatNobodyHasLocked) {
  const TempDir dir;
  Writer writer(dir.path());
  AtomicFile ours(dir.path("ours"));
  AtomicFolder our_folder(dir.path("our folder"));
  const std::set<std::string> all = names_in(dir.path());
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(clean_leftovers(dir.path()), 0);
  EXPECT_EQ(names_in(dir.path()), all);
  writer.kill();
  EXPECT_EQ(clean_leftovers(dir.path()), 2);
  EXPECT_EQ(names_in(dir.path()).size(), 2u);
  ours.commit();
  our_folder.commit();
  EXPECT_EQ(names_in(dir.path()), (std::set<std::string>{"ours", "our folder"}));
}

// In another container the process may have the id of one that lives here.
TEST(Leftovers, DoNotDependOnProcessIds) {
  const TempDir dir;
  dir.write(fmt::format(".a.ballast-{}-0.tmp", ::getppid()), "x");
  dir.write(fmt::format("a.tmp-ballast-{}-00ff/f", ::getppid()), "x");
  EXPECT_EQ(clean_leftovers(dir.path()), 2);
}

TEST(Leftovers, AreRemovedByTheNextThatWritesThere) {
  const TempDir dir, other;
  const auto leave = [](const TempDir& at) {
    at.write(".big.safetensors.ballast-1-0.tmp", std::string(3'000'000, 'x'));
    at.write("step.tmp-ballast-1-00ff/state", std::string(1'000'000, 'x'));
  };
  leave(dir);
  leave(other);
  // Not ours, or not surely: these stay where a user's files are.
  const std::set<std::string> theirs = {".a.1-0.tmp", "b.tmp-1-00ff", "mine.deleting", ".c.tmp",
                                        "ballast-1-0.tmp"};
  for (const std::string& name : theirs) dir.write(name + "/f", "x");
  std::FILE* const said = std::tmpfile();
  log::set_file(said);
  { const AtomicFile file(dir.path("x")); }
  { const AtomicFolder folder(other.path("x")); }
  log::set_file(stderr);
  EXPECT_EQ(names_in(dir.path()), theirs);
  EXPECT_TRUE(names_in(other.path()).empty());
  std::string text(1000, '\0');
  std::rewind(said);
  text.resize(std::fread(text.data(), 1, text.size(), said));
  std::fclose(said);
  EXPECT_EQ(text, fmt::format("ballast: {}: removed 2 temporary files and folders (4.000 MB) that "
                              "a killed process left\n"
                              "ballast: {}: removed 2 temporary files and folders (4.000 MB) that "
                              "a killed process left\n",
                              dir.path(), other.path()));
}

}  // namespace
}  // namespace ballast::leftovers_test
