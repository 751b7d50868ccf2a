// `ballast train` on a dataset that is not encoded yet.

#include <gmock/gmock.h>

#include "tests/e2e/background_process.h"
#include "tests/e2e/cache_command.h"

namespace ballast::test::cache_and_train_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainOnMedia : public CacheCommand {};

std::string newest_adapter(const std::string& out) {
  std::string newest;
  for (const auto& f : fs::recursive_directory_iterator(out)) {
    const std::string path = f.path().string();
    if (f.path().filename() == "adapter_model.safetensors") newest = std::max(newest, path);
  }
  return newest;
}

TEST_F(TrainOnMedia, EncodesWhatIsMissingAndTrainsTheSameBits) {
  add_clip("one", 9);
  add_clip("two", 12);
  add_clip("short", 3);
  ASSERT_EQ(run_ballast(command("cache")).exit_code, 0);
  ASSERT_EQ(run_ballast(command("train")).exit_code, 0);
  const auto whole = cached();
  const std::string expected = read_whole(newest_adapter(dir_.path("out")));
  ASSERT_FALSE(expected.empty());

  fs::remove_all(dir_.path("clips/cache"));
  fs::remove_all(dir_.path("out"));
  const Finished f = run_ballast(command("train"));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("2 clips encoded"), HasSubstr("short.mp4: too short"),
                           HasSubstr("finished after 2 steps")));
  EXPECT_THAT(f.err, HasSubstr("training fits"));
  EXPECT_EQ(cached(), whole);
  EXPECT_EQ(read_whole(newest_adapter(dir_.path("out"))), expected);

  // Nothing is missing now, and a changed caption is all that is made again.
  EXPECT_THAT(run_ballast(command("train")).out, Not(HasSubstr("encoded")));
  dir_.write("clips/one.txt", "a clip cde");
  const Finished again = run_ballast(command("train"));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, AllOf(HasSubstr("1 captions encoded"), HasSubstr("0 clips encoded")));
}

TEST_F(TrainOnMedia, KeepsItsPlanAfterEncoding) {
  for (const char* name : {"one", "two", "three"}) add_clip(name, 9);
  std::vector<std::string> json = command("train");
  json.push_back("--json");
  const Finished f = run_ballast(json);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const std::string last = f.out.substr(f.out.rfind("\n{") + 1);
  EXPECT_GT(number_after(last, "\"ram_bytes\":"), 0u) << f.out;
  EXPECT_LE(number_after(last, "\"ram_bytes\":"), number_after(last, "\"planned_ram_bytes\":"));
}

TEST_F(TrainOnMedia, EncodesNothingWhereItDoesNotFit) {
  add_clip("one", 9);
  std::vector<std::string> cache = command("cache");
  cache.push_back("--json");
  const std::uint64_t encoders = number_after(run_ballast(cache).out, "\"planned_ram_bytes\": ");
  ASSERT_GT(encoders, 0u);
  fs::remove_all(dir_.path("clips/cache"));
  std::string text = read_whole(config_);
  text.replace(text.find("rank = 4"), 8, "rank = 128");  // 11 MB of factors, gradients and moments
  config_ = dir_.write("large.toml", text);
  std::vector<std::string> small = command("train");
  small.insert(small.end(), {"--ram", fmt::format("{}kB", encoders / 1000 + 1000)});
  const Finished f = run_ballast(small);
  EXPECT_EQ(f.exit_code, 3) << f.out << f.err;
  EXPECT_THAT(f.out, HasSubstr("1 to encode")) << "the encoders fit";
  EXPECT_TRUE(cached().empty());
}

TEST_F(TrainOnMedia, SaysWhyNoMediaAreLeft) {
  dir_.write("clips/words.png", "this is no image");
  dir_.write("clips/words.txt", "a clip");
  const Finished f = run_ballast(command("train"));
  EXPECT_EQ(f.exit_code, 4) << f.out << f.err;
  EXPECT_THAT(f.out, HasSubstr("words.png: it is no image or video that can be read"));
  EXPECT_THAT(f.err, HasSubstr("no clip is left to train on"));
}

TEST_F(TrainOnMedia, ContinuesWhereEncodingWasStopped) {
  for (int i = 0; i < 40; ++i) add_clip(fmt::format("clip{}", i), 9);
  const auto latents = [&] {
    std::size_t n = 0;
    std::error_code none;
    for (const auto& f : fs::directory_iterator(dir_.path("clips/cache/wan/latents"), none)) {
      n += !f.path().filename().string().starts_with('.');
    }
    return n;
  };
  BackgroundBallast process(command("train"));
  ASSERT_TRUE(wait_until([&] { return latents() >= 2 || process.finished(); }));
  process.send(SIGINT);
  EXPECT_EQ(process.wait(), 0) << process.err();
  EXPECT_THAT(process.out(), AllOf(HasSubstr("stopped: 41 of 41 captions"),
                                   HasSubstr("the same command continues there")));
  EXPECT_THAT(process.err(), HasSubstr("stopping when this is encoded"));
  const std::size_t before = latents();
  ASSERT_LT(before, 40u);
  EXPECT_FALSE(fs::exists(dir_.path("out"))) << "no run began";
  const Finished f = run_ballast(command("train"));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(
      f.out,
      AllOf(HasSubstr(fmt::format("{} clips encoded, {} already cached", 40 - before, before)),
            HasSubstr("finished after 40 steps")));
}

TEST_F(TrainOnMedia, EncodesWithMusubiFlagsWhereItHasTheEncoders) {
  add_clip("one", 13);  // two clips of five frames
  add_clip("two", 9);
  const std::string set = dir_.write(
      "musubi.toml", fmt::format("[general]\nresolution = [32, 32]\ncaption_extension = '.txt'\n"
                                 "[[datasets]]\nvideo_directory = '{}'\ncache_directory = '{}'\n"
                                 "target_frames = [5]\nframe_extraction = 'chunk'\n",
                                 dir_.path("clips"), dir_.path("kept")));
  std::vector<std::string> train = {"train",
                                    "--dit",
                                    run_.model_path(),
                                    "--dataset_config",
                                    set,
                                    "--output_dir",
                                    dir_.path("out"),
                                    "--output_name",
                                    "x",
                                    "--network_module",
                                    "networks.lora_wan",
                                    "--network_dim",
                                    "4",
                                    "--learning_rate",
                                    "1e-3",
                                    "--max_train_steps",
                                    "2",
                                    "--device",
                                    "cpu",
                                    "--threads",
                                    "1"};
  const Finished without = run_ballast(train);
  EXPECT_EQ(without.exit_code, 4) << without.out;
  train.insert(train.end(), {"--vae", dir_.path("vae.safetensors"), "--t5",
                             dir_.path("t5.safetensors"), "--tokenizer", dir_.path("tokenizer")});
  const Finished f = run_ballast(train);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("2 captions encoded"), HasSubstr("3 clips encoded"),
                           HasSubstr("finished after 2 steps")));
  EXPECT_THAT(run_ballast(train).out, Not(HasSubstr("encoded")));
  // A kill between the clips of one file leaves the mark: it is looked into again.
  dir_.write("kept/.one.unfinished", "");
  fs::remove(dir_.path("kept/one_00005-005_0032x0032_wan.safetensors"));
  EXPECT_THAT(run_ballast(train).out, HasSubstr("1 clips encoded, 2 already cached"));
  EXPECT_FALSE(fs::exists(dir_.path("kept/.one.unfinished")));
  // Its training needs the caches alone.
  fs::remove_all(dir_.path("clips"));
  EXPECT_EQ(run_ballast(train).exit_code, 0);
}

}  // namespace
}  // namespace ballast::test::cache_and_train_test
