#include "train/config/config_preview.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "train/config/read_config.h"

namespace ballast::train {
namespace {

using ::testing::HasSubstr;

TEST(PreviewClips, KnowTheOptionsOfOtherTrainers) {
  PreviewClip usual;
  usual.frames = 5;
  const PreviewClip c = preview_clip(
      " a red-blue circle --w 832 --h 480 --d 18446744073709551615 --s 30 --l 4.5 --fs 3 --n ugly, "
      "blurry ",
      usual, "here");
  EXPECT_EQ(c.prompt, "a red-blue circle");
  EXPECT_EQ(c.width, 832);
  EXPECT_EQ(c.height, 480);
  EXPECT_EQ(c.frames, 5);
  EXPECT_EQ(c.seed, ~0ull);
  EXPECT_EQ(c.steps, 30);
  EXPECT_EQ(c.guidance, 4.5);
  EXPECT_EQ(c.shift, 3);
  EXPECT_EQ(c.negative, "ugly, blurry");
  EXPECT_EQ(preview_clip("a --g 2", usual, "").guidance, 2);
  EXPECT_EQ(preview_clip("a --i my cat.png --w 32", usual, "").image, "my cat.png");
}

TEST(PreviewClips, ExplainWhatIsWrong) {
  const PreviewClip usual;
  EXPECT_FAILS(preview_clip("a --w wide", usual, "p.txt line 3"), ErrorCode::input,
               "p.txt line 3: --w: expected pixels, found \"wide\"");
  EXPECT_FAILS(preview_clip("a --w", usual, ""), ErrorCode::input, "expected pixels");
  EXPECT_FAILS(preview_clip("a --x 1", usual, ""), ErrorCode::input, "one of --w --h");
  EXPECT_FAILS(preview_clip("a --\x1b[2J 1", usual, ""), ErrorCode::input, "--\\x1b[2J: expected");
  EXPECT_FAILS(preview_clip("a --i", usual, ""), ErrorCode::input, "the path of an image");
  EXPECT_FAILS(preview_clip("a --ei cat.png", usual, ""), ErrorCode::input, "no other ones");
  EXPECT_FAILS(preview_clip(" --w 32", usual, "x"), ErrorCode::input, "there is no prompt");
}

TrainConfig pipe(const test::TempDir& dir, const std::string& preview) {
  return read_config(std::vector{
      dir.write("run.toml",
                "output_dir = 'o'\ndataset = 'd.toml'\nepochs = 1\nseed = 3\n"
                "[model]\ntype = 'wan'\nckpt_path = 'm'\ndtype = 'bfloat16'\n"
                "[adapter]\ntype = 'lora'\nrank = 4\n[optimizer]\ntype = 'adamw'\nlr = 1e-3\n" +
                    preview)});
}

TEST(PreviewConfig, IsASectionOfItsOwn) {
  const test::TempDir dir;
  EXPECT_FALSE(pipe(dir, "").preview.wanted());
  const TrainConfig c = pipe(dir,
                             "[preview]\nevery_n_steps = 200\nevery_n_epochs = 2\nwidth = 64\n"
                             "guidance = 3\nprompts = ['a', 'b --w 32']\n");
  EXPECT_TRUE(c.preview.wanted());
  EXPECT_EQ(c.preview.every.steps, 200);
  EXPECT_EQ(c.preview.every.epochs, 2);
  ASSERT_EQ(c.preview.clips.size(), 2u);
  EXPECT_EQ(c.preview.clips[0].width, 64);
  EXPECT_EQ(c.preview.clips[1].width, 32);
  EXPECT_EQ(c.preview.clips[1].guidance, 3);
  dir.write("p.txt", "# by hand\n\na cat --f 5\n  a dog --i dog.png\n");
  const std::string dog = dir.write("dog.png", "");
  const TrainConfig file =
      pipe(dir, "[preview]\nat_first = true\nimage = '/cat.png'\nprompts = 'p.txt'\n");
  ASSERT_EQ(file.preview.clips.size(), 2u);
  EXPECT_EQ(file.preview.clips[0].image, "/cat.png");
  EXPECT_EQ(file.preview.clips[1].image, dog);  // beside the configuration
  EXPECT_EQ(file.preview.clips[0].frames, 5);
  EXPECT_EQ(file.preview.clips[1].prompt, "a dog");
}

TEST(PreviewConfig, ExplainsWhatIsWrong) {
  const test::TempDir dir;
  EXPECT_FAILS(pipe(dir, "[preview]\nat_first = true\n"), ErrorCode::input, "names no prompts");
  EXPECT_FAILS(pipe(dir, "[preview]\nprompts = ['a']\nevery = 3\n"), ErrorCode::input, "every");
  EXPECT_FAILS(pipe(dir, "[preview]\nprompts = ['a']\nsteps = 0\n"), ErrorCode::input,
               "expected at least 1");
  const TrainConfig idle = pipe(dir, "[preview]\nprompts = ['a']\n");
  EXPECT_FALSE(idle.preview.wanted());
  EXPECT_THAT(idle.notes.back(), HasSubstr("nothing is drawn without every_n_steps"));
}

TEST(PreviewConfig, TakesMusubisFlags) {
  const test::TempDir dir;
  const std::string prompts = dir.write("p.txt", "a cat --w 512 --f 33\n");
  const auto read = [&](std::vector<std::string> more) {
    std::vector<std::string> all = {"--dit",  "low.safetensors", "--dataset_config",
                                    "d.toml", "--output_dir",    "out"};
    all.insert(all.end(), more.begin(), more.end());
    return read_config(all);
  };
  const TrainConfig c = read({"--sample_prompts", prompts, "--sample_every_n_steps", "100",
                              "--sample_every_n_epochs", "1", "--sample_at_first"});
  EXPECT_TRUE(c.preview.at_first);
  EXPECT_EQ(c.preview.every.steps, 100);
  EXPECT_EQ(c.preview.every.epochs, 1);
  ASSERT_EQ(c.preview.clips.size(), 1u);
  EXPECT_EQ(c.preview.clips[0].width, 512);
  EXPECT_EQ(c.preview.clips[0].height, 256);
  EXPECT_EQ(c.preview.clips[0].frames, 33);
  EXPECT_EQ(c.preview.clips[0].shift, 14.5);
  EXPECT_THAT(read({"--sample_at_first"}).notes.back(), HasSubstr("without --sample_prompts"));
}

}  // namespace
}  // namespace ballast::train
