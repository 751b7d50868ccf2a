// `ballast cache` with small random encoders: from media and captions to a dataset to train on.

#include <gmock/gmock.h>

#include <map>

#include "io/media_writer.h"
#include "models/t5/params.h"
#include "tests/e2e/background_process.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tensor_file.h"
#include "tests/support/tiny_tokenizer.h"
#include "tests/support/tiny_training.h"
#include "tests/support/tiny_vae.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kTables =
    "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
    "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";

class CacheCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!media_available()) GTEST_SKIP() << "built without media";
    wan_vae::Config vae = support::tiny_vae(wan_vae::Generation::wan21);
    vae.z_dim = run_.config().out_dim;
    support::write_vae(dir_.path("vae.safetensors"), vae, wan_vae::Dialect::official);
    write_text_encoder();
    TestModel words{.pieces = {{"<pad>", 0, 3}, {"</s>", 0, 3}, {"<unk>", 0, 2}}};
    for (const char* piece : {"▁", "a", "b", "c", "d", "e", "▁a", "▁clip"}) {
      words.pieces.push_back({piece, -1.0f * static_cast<float>(words.pieces.size())});
    }
    dir_.write("tokenizer/spiece.model", sentencepiece_file(words));
    dir_.write("set.toml", "resolutions = [32]\nframe_buckets = [1, 5]\n[[directory]]\npath = '" +
                               dir_.path("clips") + "'\n");
    config_ = dir_.write("run.toml",
                         fmt::format("output_dir = '{}'\ndataset = '{}'\nepochs = 1\n"
                                     "save_every_n_epochs = 1\n"
                                     "[model]\ntype = 'wan'\nckpt_path = '{}'\n"
                                     "dtype = 'float32'\nvae_path = '{}'\n"
                                     "llm_path = '{}'\ntokenizer_path = '{}'\n{}",
                                     dir_.path("out"), dir_.path("set.toml"), run_.model_path(),
                                     dir_.path("vae.safetensors"), dir_.path("t5.safetensors"),
                                     dir_.path("tokenizer"), kTables));
  }

  void write_text_encoder() {
    t5::Config c;
    c.name = "tiny";
    c.d_model = run_.config().text_dim;
    c.d_kv = 8;
    c.d_ff = 16;
    c.heads = 2;
    c.layers = 2;
    c.vocabulary = 16;
    c.bias_per_block = true;
    support::TensorFile file;
    std::uint64_t seed = 0;
    const auto add = [&](const std::string& name, const Shape& shape) {
      file.add(name, DType::f32, shape, ++seed, 0.3);
    };
    add(t5::kEmbeddingName, {c.vocabulary, c.d_model});
    t5::each_parameter(c, [&](int, const std::string& name, const Shape& shape) {
      if (name != t5::kEmbeddingName) add(name, shape);
    });
    file.write(dir_, "t5.safetensors");
  }

  void add_clip(const std::string& name, std::int64_t frames) {
    fs::create_directories(dir_.path("clips"));
    const auto writer = open_media_writer(dir_.path("clips/" + name + ".mp4"),
                                          {.width = 48, .height = 40, .rate = {16, 1}});
    for (std::int64_t t = 0; t < frames; ++t) {
      std::vector<std::uint8_t> pixels(48 * 40 * 3);
      for (std::size_t i = 0; i < pixels.size(); ++i) {
        pixels[i] = static_cast<std::uint8_t>(20 + (i + 7 * static_cast<std::size_t>(t)) % 200);
      }
      writer->add(pixels);
    }
    writer->finish();
    dir_.write("clips/" + name + ".txt", "a clip bcd " + name);
  }

  std::vector<std::string> command(const char* name) const {
    return {name, config_, "--device", "cpu", "--threads", "1"};
  }

  std::map<std::string, std::string> cached() const {
    std::map<std::string, std::string> files;
    std::error_code none;
    for (const auto& f : fs::recursive_directory_iterator(dir_.path("clips/cache"), none)) {
      if (f.is_regular_file() && !f.path().filename().string().starts_with('.')) {
        files[f.path().string()] = read_whole(f.path().string());
      }
    }
    return files;
  }

  support::TinyTraining run_;
  TempDir dir_;
  std::string config_;
};

TEST_F(CacheCommand, MakesADatasetThatTrains) {
  add_clip("one", 9);
  add_clip("two", 12);
  add_clip("short", 3);
  dir_.write("clips/broken.mp4", "this is no video");
  dir_.write("clips/broken.txt", "a clip");
  const Finished early = run_ballast(command("train"));
  EXPECT_EQ(early.exit_code, 4);
  EXPECT_THAT(early.err, HasSubstr("ballast cache"));

  const Finished f = run_ballast(command("cache"));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("captions  5 encoded, 0 were there"),
                           HasSubstr("clips     2 encoded, 0 were there"),
                           HasSubstr("short.mp4: too short"), HasSubstr("broken.mp4: ")));
  const auto whole = cached();
  std::vector<std::string> again = command("cache");
  again.push_back("--json");
  const Finished second = run_ballast(again);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("\"clips\": {\"encoded\": 0, \"there\": 2}"));
  EXPECT_EQ(cached(), whole);

  const Finished trained = run_ballast(command("train"));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("finished after 2 steps"));
}

TEST_F(CacheCommand, KeepsClipsForAVaeThatThenEncodesThem) {
  add_clip("one", 9);
  add_clip("two", 12);
  const std::string latents = config_;
  config_ = dir_.write(
      "vae.toml", fmt::format("output_dir = '{}'\ndataset = '{}'\nepochs = 1\n"
                              "[model]\ntype = 'wan_vae'\ndtype = 'float32'\n"
                              "init = 'random'\n[model.config]\ndim = 2\nz_dim = {}\n"
                              "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n",
                              dir_.path("vaes"), dir_.path("set.toml"), run_.config().out_dim));
  EXPECT_THAT(run_ballast(command("cache")).out, HasSubstr("clips     2 cached, 0 were there"));
  EXPECT_THAT(run_ballast(command("cache")).out, HasSubstr("clips     0 cached, 2 were there"));
  const Finished trained = run_ballast(command("train"));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("finished after 2 steps"));
  std::string file;
  for (const auto& f : fs::recursive_directory_iterator(dir_.path("vaes"))) {
    if (f.path().filename() == "model.safetensors") file = f.path().string();
  }
  ASSERT_FALSE(file.empty());
  std::string text = read_whole(latents);
  text.replace(text.find(dir_.path("vae.safetensors")), dir_.path("vae.safetensors").size(), file);
  config_ = dir_.write("with_vae.toml", text);
  const Finished encoded = run_ballast(command("cache"));
  EXPECT_EQ(encoded.exit_code, 0) << encoded.err;
  EXPECT_THAT(encoded.out, HasSubstr("clips     2 encoded, 0 were there"));
}

TEST_F(CacheCommand, KilledAndStartedAgainWritesTheSameBytes) {
  for (int i = 0; i < 8; ++i) add_clip(fmt::format("clip{}", i), 9);
  ASSERT_EQ(run_ballast(command("cache")).exit_code, 0);
  const auto whole = cached();
  EXPECT_EQ(whole.size(), 8u + 8 + 1);
  fs::remove_all(dir_.path("clips/cache"));
  for (const std::size_t files : {3u, 10u, 14u}) {
    BackgroundBallast process(command("cache"));
    ASSERT_TRUE(wait_until([&] { return cached().size() >= files || process.finished(); }));
    process.send(SIGKILL);
    process.wait();
  }
  ASSERT_EQ(run_ballast(command("cache")).exit_code, 0);
  EXPECT_EQ(cached(), whole);
}

TEST_F(CacheCommand, RefusesWhatDoesNotFitBeforeItBegins) {
  add_clip("one", 9);
  std::vector<std::string> small = command("cache");
  small.insert(small.end(), {"--ram", "1MB"});
  const Finished f = run_ballast(small);
  EXPECT_EQ(f.exit_code, 3) << f.err;
  EXPECT_TRUE(cached().empty());
}

}  // namespace
}  // namespace ballast::test
