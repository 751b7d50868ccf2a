// `ballast init`: files that plan as they are.

#include <gmock/gmock.h>

#include <filesystem>

#include "io/media_reader.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/hub_tree.h"
#include "tests/support/test_clip.h"

namespace ballast::test::init_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kDemoModel = BALLAST_SOURCE_DIR "/examples/demo_model/model";

class InitCommand : public ::testing::Test {
 protected:
  // In folders as people have them.
  std::string at(const std::string& name) const {
    return dir_.path("my \"films\"/o'clock/日本/" + name);
  }
  std::string data() const {
    fs::create_directories(at("clips"));
    return at("clips");
  }
  Finished init(const std::string& model, const std::string& output,
                std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"init", "--model", model, "--data", data(), "--output", output};
    all.insert(all.end(), more.begin(), more.end());
    return run_ballast(all);
  }

  TempDir dir_;
  support::HubTree hub_;  // empty: nothing of this machine's cache is seen
};

TEST_F(InitCommand, WritesFilesThatPlanUnedited) {
  fs::create_directories(at("model"));
  fs::copy(kDemoModel, at("model"), fs::copy_options::recursive);
  const Finished f = init(at("model"), at("run"));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("train.toml"), HasSubstr("dataset.toml")));
  const std::string config = at("run/train.toml");
  EXPECT_THAT(read_whole(config), AllOf(HasSubstr("# Written by ballast init"),
                                        HasSubstr("type = 'wan'"), HasSubstr("日本")));
  const Finished plan = run_ballast({"plan", config});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
}

TEST_F(InitCommand, PlansAPresetBeforeItIsDownloaded) {
  const Finished f = init("wan2.1-t2v-1.3b", at("run"));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const Finished plan = run_ballast({"plan", at("run/train.toml")});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("wan2.1-t2v-1.3b"));
  const Finished train = run_ballast({"train", at("run/train.toml")});
  EXPECT_EQ(train.exit_code, 4);
  EXPECT_THAT(train.err, HasSubstr("hf download Wan-AI/Wan2.1-T2V-1.3B --local-dir "));
}

// No larger than the media, and no longer than the shortest video at the model's rate.
TEST_F(InitCommand, ChoosesSizesByTheMedia) {
  if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
  write_clip(data() + "/long.mp4", {.width = 96, .height = 96, .rate = {20, 1}}, 40);
  write_clip(data() + "/short.mp4", {.width = 64, .height = 64, .rate = {20, 1}}, 22);
  const Finished f = init(kDemoModel, at("run"));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  // 22 frames at 20 per second are 17 at 16.
  EXPECT_THAT(read_whole(at("run/dataset.toml")),
              AllOf(HasSubstr("resolutions = [96]"), HasSubstr("frame_buckets = [1, 17]")));
}

TEST_F(InitCommand, OverwritesNothing) {
  for (const char* name : {"train.toml", "dataset.toml"}) {
    const std::string folder = at(std::string("has ") + name);
    fs::create_directories(folder);
    const std::string mine = folder + "/" + name;
    std::ofstream(mine) << "mine";
    const Finished f = init(kDemoModel, folder);
    EXPECT_EQ(f.exit_code, 4);
    EXPECT_THAT(f.err, AllOf(HasSubstr(name), HasSubstr("is there already")));
    EXPECT_EQ(read_whole(mine), "mine");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  }
}

TEST_F(InitCommand, WritesNothingWhereNothingFits) {
  const Finished f = init("wan2.2-t2v-a14b", at("run"), {"--gpu", "100MB", "--ram", "100MB"});
  EXPECT_EQ(f.exit_code, 3) << f.err;
  EXPECT_THAT(f.err, HasSubstr("no training of wan2.2-t2v-a14b fits"));
  EXPECT_FALSE(fs::exists(at("run")));
  const Finished gone = init("no/model/here", at("run"));
  EXPECT_EQ(gone.exit_code, 4);
  EXPECT_THAT(gone.err, HasSubstr("no/model/here: there is no such model"));
}

}  // namespace
}  // namespace ballast::test::init_test
