// Checkpoints while the process is killed, the disk is full, or the folder cannot be written.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/errors.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_dir.h"
#include "tests/train/sample_run.h"

namespace ballast::train {
namespace {

using ballast::test::ChildProcess;
using ballast::test::SmallDisk;
using ballast::test::TempDir;
using sample::names_in;
using sample::quick_disk;
using sample::SampleRun;

void expect_whole(const std::string& run, std::int64_t at_least) {
  const CheckpointSearch search = find_checkpoint(run);
  ASSERT_TRUE(search.found);
  // Not even bad ones: what has its name is whole.
  EXPECT_EQ(search.notes, std::vector<std::string>{});
  EXPECT_GE(search.found->state.step, at_least);
  SampleRun back(0, 20'000);
  back.state = search.found->state;
  load_checkpoint(search.found->folder, back.loaded());
  EXPECT_TRUE(back == SampleRun(search.found->state.step, 20'000));
}

TEST(CheckpointFailure, KilledAtAnyTimeAWholeOneIsThere) {
  const TempDir run(quick_disk());
  SampleRun sample(1, 20'000);
  sample.save(run.path());
  std::mt19937 random(1);
  std::int64_t step = 1;
  int leftovers = 0;
  // A busy machine lets a child do little before its end: then it takes more of them.
  const auto enough = [&] { return step > 120 && leftovers > 5; };
  for (int kill = 0; kill < 120 || (!enough() && kill < 5000); ++kill) {
    ChildProcess child([&] {
      for (std::int64_t s = step + 1;; ++s) {
        sample.set(s);
        sample.save(run.path());
        if (s % 4 == 0) sample.save(run.path());  // replaced by its equal
        rotate_checkpoints(run.path(), 2);
      }
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % 20'000));
    child.send(SIGKILL);
    EXPECT_EQ(child.wait(), -SIGKILL);
    for (const std::string& name : names_in(run.path("checkpoints"))) {
      leftovers += name.find(".tmp-") != std::string::npos;
    }
    expect_whole(run.path(), step);
    step = find_checkpoint(run.path()).found->state.step;
  }
  EXPECT_GT(step, 120);     // checkpoints were made
  EXPECT_GT(leftovers, 5);  // and interrupted
  sample.set(step + 1);
  sample.save(run.path());
  rotate_checkpoints(run.path(), 1);
  // Nothing of the dead is left.
  EXPECT_EQ(names_in(run.path("checkpoints")),
            (std::set<std::string>{"latest", fmt::format("step-{:08}", step + 1)}));
}

TEST(CheckpointFailure, TemporaryFoldersOfTheLivingStay) {
  const TempDir run(quick_disk());
  SampleRun(1).save(run.path());
  const std::string theirs = fmt::format("step-00000009.tmp-{}-0badcafe", ::getppid());
  const std::string ours = fmt::format("step-00000009.tmp-{}-0badcafe", ::getpid());
  run.write("checkpoints/" + theirs + "/state.safetensors", "x");
  run.write("checkpoints/" + ours + "/state.safetensors", "x");
  run.write("checkpoints/step-00000008.deleting/state.safetensors", "x");
  run.write("checkpoints/notes.tmp-1-mine", "a file of the user");
  run.write(fmt::format("checkpoints/.latest.{}-0.tmp", ::getpid()), "x");
  const std::string their_file = fmt::format(".latest.{}-0.tmp", ::getppid());
  run.write("checkpoints/" + their_file, "x");
  SampleRun(2).save(run.path());
  EXPECT_EQ(names_in(run.path("checkpoints")),
            (std::set<std::string>{"latest", "step-00000001", "step-00000002", theirs, their_file,
                                   "notes.tmp-1-mine"}));
}

TEST(CheckpointFailure, SaysHowMuchSpaceIsMissingBeforeItWrites) {
  const TempDir folder;
  const SmallDisk disk(folder.path(), "size=1m");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a small disk here";
  SampleRun(1).save(disk.path());
  SampleRun large(2, 400'000);  // 2 MB
  const auto error = ballast::test::error_of([&] { large.save(disk.path()); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::io);
  EXPECT_THAT(error->what(), testing::HasSubstr("the next checkpoint needs 2.0"));
  EXPECT_THAT(error->what(), testing::HasSubstr("missing"));
  EXPECT_THAT(error->advice().at(0).change, testing::HasSubstr("free 1.0"));
  EXPECT_EQ(names_in(disk.path() + "/checkpoints"),
            (std::set<std::string>{"latest", "step-00000001"}));
  EXPECT_EQ(find_checkpoint(disk.path()).found->state.step, 1);
}

TEST(CheckpointFailure, ADiskThatFillsUpMeanwhileLeavesTheEarlierOne) {
  const TempDir folder;
  const SmallDisk disk(folder.path(), "size=1m");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a small disk here";
  SampleRun(1).save(disk.path());
  const std::vector<std::byte> bytes(300'000);
  bool greedy = true;
  const SavedTensor tensor{.name = "t",
                           .dtype = DType::u8,
                           .shape = {static_cast<std::int64_t>(bytes.size())},
                           .source = [&](const ByteSink& sink) {
                             if (greedy) {  // somebody else
                               std::ofstream(disk.path() + "/greedy")
                                   << std::string(2'000'000, 'x');
                             }
                             sink(bytes);
                           }};
  TrainerState state;
  state.step = 2;
  EXPECT_FAILS(save_checkpoint(disk.path(), state, {&tensor, 1}), ErrorCode::io,
               "No space left on device");
  EXPECT_EQ(names_in(disk.path() + "/checkpoints"),
            (std::set<std::string>{"latest", "step-00000001"}));
  EXPECT_EQ(find_checkpoint(disk.path()).found->state.step, 1);
  std::filesystem::remove(disk.path() + "/greedy");
  greedy = false;
  save_checkpoint(disk.path(), state, {&tensor, 1});
  EXPECT_EQ(find_checkpoint(disk.path()).found->state.step, 2);
}

TEST(CheckpointFailure, AFailedWriteLeavesNothingOfItsOwn) {
  const TempDir run(quick_disk());
  SampleRun(1).save(run.path());
  ChildProcess child([&] {  // in a process of its own: the limit is for good
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10'000, 10'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    SampleRun sample(2, 10'000);
    const auto error = ballast::test::error_of([&] { sample.save(run.path()); });
    return error && error->code() == ErrorCode::io && !error->trail().empty() &&
                   error->trail()[0] == "saving the checkpoint step-00000002"
               ? 0
               : 2;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(names_in(run.path("checkpoints")), (std::set<std::string>{"latest", "step-00000001"}));
  EXPECT_EQ(find_checkpoint(run.path()).found->state.step, 1);
}

TEST(CheckpointFailure, AReadOnlyDiskIsNamed) {
  const TempDir folder;
  const SmallDisk disk(folder.path(), "size=4m");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a small disk here";
  SampleRun(1).save(disk.path());
  if (!disk.make_read_only()) GTEST_SKIP() << "no right to make it read-only";
  EXPECT_FAILS(SampleRun(2).save(disk.path()), ErrorCode::io, "Read-only file system");
  EXPECT_EQ(find_checkpoint(disk.path()).found->state.step, 1);
}

TEST(CheckpointFailure, AFileInPlaceOfTheFolderIsNamed) {
  const TempDir run(quick_disk());
  run.write("checkpoints", "a file");
  EXPECT_FAILS(SampleRun(2).save(run.path()), ErrorCode::io, run.path("checkpoints"));
  EXPECT_EQ(ballast::test::read_whole(run.path("checkpoints")), "a file");
}

}  // namespace
}  // namespace ballast::train
