#include "train/run/run_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/allocation_hook.h"
#include "tests/support/child_process.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast::train {
namespace {

using ballast::test::ChildProcess;
using ballast::test::read_whole;
using ballast::test::TempDir;

constexpr std::time_t kNewYear = 1'767'225'599;  // 2025-12-31 23:59:59 UTC

TEST(RunFolder, IsNamedAfterTheSecondInUtc) {
  const TempDir out;
  const RunFolder a = RunFolder::create(out.path("deep/er"), kNewYear);
  EXPECT_EQ(a.path(), out.path("deep/er/20251231_23-59-59"));
  const RunFolder b = RunFolder::create(out.path("deep/er"), kNewYear);
  const RunFolder c = RunFolder::create(out.path("deep/er"), kNewYear + 1);
  EXPECT_EQ(b.path(), out.path("deep/er/20251231_23-59-59-01"));
  EXPECT_EQ(
      runs_in(out.path("deep/er")),
      (std::vector<std::string>{"20251231_23-59-59", "20251231_23-59-59-01", "20260101_00-00-00"}));
}

TEST(RunFolder, NewestIsTheLastByName) {
  const TempDir out;
  { RunFolder::create(out.path(), kNewYear); }
  { RunFolder::create(out.path(), kNewYear); }
  { RunFolder::create(out.path(), kNewYear - 5); }
  out.write("zzz/file", "not a run");
  out.write("20990101_00-00-00", "a file of that name");
  EXPECT_EQ(RunFolder::open(out.path()).path(), out.path("20251231_23-59-59-01"));
  EXPECT_EQ(RunFolder::open(out.path(), "20251231_23-59-54").path(), out.path("20251231_23-59-54"));
  EXPECT_EQ(RunFolder::open("elsewhere", out.path("20251231_23-59-54/")).path(),
            out.path("20251231_23-59-54"));
}

TEST(RunFolder, MayBeNamedByItsPathFromHere) {
  const TempDir out;
  const std::filesystem::path here = std::filesystem::relative(out.path());
  std::filesystem::create_directory(out.path("20260101_00-00-00"));
  const std::string named = (here / "20260101_00-00-00").string();
  EXPECT_EQ(RunFolder::open(here.string(), named).path(), named);
}

TEST(RunFolder, SaysWhichRunsThereAre) {
  const TempDir out;
  EXPECT_FAILS(RunFolder::open(out.path()), ErrorCode::input, "no run to resume");
  EXPECT_FAILS(RunFolder::open(out.path("none")), ErrorCode::input, "no run to resume");
  { RunFolder::create(out.path(), kNewYear); }
  EXPECT_FAILS(RunFolder::open(out.path(), "20200101_00-00-00"), ErrorCode::input,
               "1 are there, the newest is 20251231_23-59-59");
}

TEST(RunFolder, BelongsToOneProcess) {
  const TempDir out;
  {
    const RunFolder held = RunFolder::create(out.path(), kNewYear);
    const auto error = ballast::test::error_of([&] { RunFolder::open(out.path()); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::io);
    EXPECT_THAT(error->what(), testing::HasSubstr(fmt::format("process {} is", ::getpid())));
  }
  RunFolder::open(out.path());  // given back
  // Given back also by a process that is killed.
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  ChildProcess child([&] {
    const RunFolder theirs = RunFolder::open(out.path());
    if (::write(ready[1], "x", 1) != 1) return 1;
    ::pause();
    return 0;
  });
  char x = 0;
  ASSERT_EQ(::read(ready[0], &x, 1), 1);
  EXPECT_FAILS(RunFolder::open(out.path()), ErrorCode::io, fmt::format("{}", child.pid()));
  child.send(SIGKILL);
  child.wait();
  RunFolder::open(out.path());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(RunFolder, CannotBeMadeInAFile) {
  const TempDir out;
  EXPECT_FAILS(RunFolder::create(out.write("file", ""), kNewYear), ErrorCode::io, "file");
}

TEST(RunFolder, KeepsTheConfigsAsTheyAre) {
  const TempDir out;
  const RunFolder run = RunFolder::create(out.path("out"), kNewYear);
  const std::string main = out.write("a/config.toml", "epochs = 1\r\n");
  const std::string dataset = out.write("b/config.toml", std::string("x\0y", 3));
  ASSERT_EQ(::chmod(dataset.c_str(), 0600), 0);
  EXPECT_EQ(run.copy_config(main), run.path() + "/config.toml");
  EXPECT_EQ(run.copy_config(dataset), run.path() + "/config-2.toml");
  EXPECT_EQ(run.copy_config(main), run.path() + "/config.toml");  // the same again: no copy
  EXPECT_EQ(read_whole(run.path() + "/config.toml"), "epochs = 1\r\n");
  EXPECT_EQ(read_whole(run.path() + "/config-2.toml"), std::string("x\0y", 3));
  struct stat copy {};
  ASSERT_EQ(::stat((run.path() + "/config-2.toml").c_str(), &copy), 0);
  EXPECT_EQ(copy.st_mode & 0777, 0600u);
  EXPECT_FAILS(run.copy_config(out.path("gone.toml")), ErrorCode::io, "gone.toml");
}

TEST(RunFolder, HidesKeysOfWebServicesInTheCopy) {
  const TempDir out;
  const RunFolder run = RunFolder::create(out.path("out"), kNewYear);
  const std::string main =
      out.write("run.toml", "epochs = 1\n[monitoring]\nwandb_api_key = 'hunter2'  # mine\n");
  const std::string copy = run.copy_config(main);
  EXPECT_EQ(read_whole(copy), "epochs = 1\n[monitoring]\nwandb_api_key = \"(hidden)\"  # mine\n");
  EXPECT_EQ(run.copy_config(main), copy);  // the same again: no second copy
}

TEST(RunFolder, ShowsSavedModelsOnlyWhenWhole) {
  const TempDir out;
  const RunFolder run = RunFolder::create(out.path(), kNewYear);
  const std::string path = run.path() + "/epoch3";
  const auto put = [&](const std::string& text, bool commit) {
    AtomicFolder folder = run.saved_model({SavePoint::Kind::epoch, 3});
    std::ofstream(folder.file("adapter_model.safetensors")) << text;
    if (commit) folder.commit();
  };
  put("half", false);
  EXPECT_FALSE(std::filesystem::exists(path));
  put("one", true);
  put("half", false);
  EXPECT_EQ(read_whole(path + "/adapter_model.safetensors"), "one");
  put("two", true);
  EXPECT_EQ(read_whole(path + "/adapter_model.safetensors"), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run.path()), {}), 2);  // and the lock
}

TEST(RunFolder, DoesNotReplaceAFileOfTheUser) {
  const TempDir out;
  const RunFolder run = RunFolder::create(out.path(), kNewYear);
  std::ofstream(run.path() + "/step7") << "mine";
  AtomicFolder folder = run.saved_model({SavePoint::Kind::step, 7});
  EXPECT_FAILS(folder.commit(), ErrorCode::io, "Not a directory");
  EXPECT_EQ(read_whole(run.path() + "/step7"), "mine");
}

TEST(RunFolder, RemovesWhatAKilledRunLeft) {
  const TempDir out;
  std::string path;
  { path = RunFolder::create(out.path(), kNewYear).path(); }
  ChildProcess child([&] {
    const RunFolder run = RunFolder::open(out.path());
    AtomicFolder folder = run.saved_model({SavePoint::Kind::step, 7});
    ::kill(::getpid(), SIGKILL);
    return 0;
  });
  EXPECT_EQ(child.wait(), -SIGKILL);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 2);
  RunFolder::open(out.path());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 1);
}

TEST(RunFolder, TakesRequestsFromFiles) {
  const TempDir out;
  const RunFolder run = RunFolder::create(out.path(), kNewYear);
  EXPECT_EQ(run.take_request(), FileRequest::none);
  std::ofstream(run.path() + "/save");
  EXPECT_EQ(run.take_request(), FileRequest::save);
  EXPECT_EQ(run.take_request(), FileRequest::none);
  std::ofstream(run.path() + "/save");
  std::ofstream(run.path() + "/save_quit");
  EXPECT_EQ(run.take_request(), FileRequest::save_quit);
  EXPECT_EQ(run.take_request(), FileRequest::none);
  std::filesystem::create_directory(run.path() + "/save_quit");  // cannot be removed as a file
  EXPECT_EQ(run.take_request(), FileRequest::none);
}

TEST(RunFolder, LooksForRequestsWithoutAllocating) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const TempDir out;
  const RunFolder run = RunFolder::create(out.path(), kNewYear);
  allocation_hook::arm();
  run.take_request();
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
}

TEST(SavedModelNames, AreThoseThatUsersKnow) {
  using Kind = SavePoint::Kind;
  EXPECT_EQ(folder_name({Kind::epoch, 12}), "epoch12");
  EXPECT_EQ(folder_name({Kind::step, 2000}), "step2000");
  EXPECT_EQ(model_file_name("cat", {Kind::epoch, 12}), "cat-000012.safetensors");
  EXPECT_EQ(model_file_name("cat", {Kind::step, 2000}), "cat-step00002000.safetensors");
  EXPECT_EQ(last_model_file_name("cat"), "cat.safetensors");
  for (const char* bad : {"", "..", "a/b", "/etc/passwd"}) {
    EXPECT_FAILS(last_model_file_name(bad), ErrorCode::input, "output_name");
  }
}

}  // namespace
}  // namespace ballast::train
