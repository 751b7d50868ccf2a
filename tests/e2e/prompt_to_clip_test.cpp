#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "core/to_size.h"
#include "io/media_reader.h"
#include "io/safetensors_writer.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_dit.h"
#include "tests/support/tiny_safetensors.h"
#include "tests/support/tiny_tokenizer.h"
#include "tests/support/tiny_training.h"

namespace ballast::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A golden file's weights as the checkpoint that they came from.
void write_weights(const std::string& golden_name, const std::string& path) {
  const auto tensors = read_tiny_safetensors(golden(golden_name));
  SafetensorsWriter writer;
  for (const auto& [name, t] : tensors) {
    const std::string first = name.substr(0, name.find('.'));
    if (first == "in" || first == "out" || first == "mid" || first == "grad") continue;
    Shape shape;
    for (const std::int64_t n : t.shape) shape.push_back(n);
    writer.add(name, t.dtype, shape, t.data);
  }
  writer.write(path);
}

// Tensors of several files in one, each file's under a prefix of its own.
void write_together(const std::string& path,
                    const std::vector<std::pair<std::string, std::string>>& parts,
                    const std::string& tokenizer) {
  std::vector<std::map<std::string, TinyTensor>> files;
  for (const auto& [prefix, file] : parts) files.push_back(read_tiny_safetensors(file));
  SafetensorsWriter writer;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const auto& [name, t] : files[i]) {
      Shape shape;
      for (const std::int64_t n : t.shape) shape.push_back(n);
      writer.add(parts[i].first + name, t.dtype, shape, t.data);
    }
  }
  if (!tokenizer.empty()) {
    writer.add(parts.size() > 1 ? "text_encoders.spiece_model" : "spiece_model", FileDType::u8,
               {static_cast<std::int64_t>(tokenizer.size())},
               [&](const ByteSink& sink) { sink(std::as_bytes(std::span(tokenizer))); });
  }
  writer.write(path);
}

// A folder as ComfyUI has it, with small models of released kinds, and a tokenizer.
class PromptToClip : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
    for (const char* part : {"diffusion_models", "vae", "text_encoders"}) {
      std::filesystem::create_directories(at(part));
    }
    wan::Config config = support::trainable_config(1);
    config.in_dim = config.out_dim = 16;
    config.text_dim = 48;
    const support::TinyCheckpoint model(config);
    std::filesystem::copy_file(model.path(), at("diffusion_models/wan_tiny.safetensors"));
    write_weights("vae21", at("vae/wan_2.1_vae.safetensors"));
    write_weights("umt5_encoder", at("text_encoders/umt5_tiny.safetensors"));
    TestModel words{.pieces = {{"<pad>", 0, 3}, {"</s>", 0, 3}, {"<unk>", 0, 2}}};
    for (char c = 'a'; c <= 'z'; ++c) words.pieces.push_back({std::string(1, c), -3});
    words.pieces.push_back({"\u2581", -2});
    dir_.write("spiece.model", sentencepiece_file(words));
  }

  std::string at(const std::string& name) const { return dir_.path(name); }
  Finished sample(std::vector<std::string> more) const {
    std::vector<std::string> all = {
        "sample",   "--model",  dir_.path(""), "--tokenizer", at("spiece.model"),
        "--device", "cpu",      "--steps",     "2",           "--frames",
        "5",        "--height", "32",          "--width",     "48"};
    all.insert(all.end(), more.begin(), more.end());
    return run_ballast(all);
  }

  TempDir dir_;
};

TEST_F(PromptToClip, WritesAClipThatSaysHowItWasMade) {
  const Finished f = sample({"--prompt", "a red ball rolls", "--seed", "7", "--output",
                             at("clip.mp4"), "--contact-sheet", at("sheet.png")});
  ASSERT_EQ(f.exit_code, 0) << f.out << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("text"), HasSubstr("decoding"), HasSubstr("clip.mp4")));
  const MediaInfo clip = probe_media(at("clip.mp4"));
  EXPECT_EQ(clip.frames, 5);
  EXPECT_EQ(clip.width, 48);
  EXPECT_EQ(clip.height, 32);
  EXPECT_EQ(clip.fps, 16);
  const auto about = nlohmann::json::parse(clip.comment);
  EXPECT_EQ(about.at("ballast.prompt"), "a red ball rolls");
  EXPECT_EQ(about.at("ballast.seed"), "7");
  EXPECT_EQ(read_image(at("sheet.png")).width, 4 + 4 * (48 + 4));
}

TEST_F(PromptToClip, MakesTheSameClipUnderOtherPoliciesAndThreads) {
  const Finished f = sample({"--prompt", "two boxes", "--output", at("a.gif")});
  ASSERT_EQ(f.exit_code, 0) << f.out << f.err;
  const Finished g = sample(
      {"--prompt", "two boxes", "--output", at("b.gif"), "--policy", "stream1", "--threads", "1"});
  ASSERT_EQ(g.exit_code, 0) << g.out << g.err;
  EXPECT_EQ(read_whole(at("a.gif")), read_whole(at("b.gif")));
  const Finished h = sample({"--prompt", "three boxes", "--output", at("c.gif")});
  ASSERT_EQ(h.exit_code, 0) << h.out << h.err;
  EXPECT_NE(read_whole(at("a.gif")), read_whole(at("c.gif")));
}

TEST_F(PromptToClip, MakesAClipForEveryLineOfAFile) {
  const std::string prompts = dir_.write("prompts.txt", "a ball\n\na box\n");
  const Finished f =
      sample({"--prompt-file", prompts, "--output", at("clip.webp"), "--json", "--guidance", "1"});
  ASSERT_EQ(f.exit_code, 0) << f.out << f.err;
  const auto json = nlohmann::json::parse(f.out);
  EXPECT_EQ(json.at("outputs").size(), 2u);
  EXPECT_EQ(json.at("phases").size(), 2u);
  EXPECT_NE(read_whole(at("clip-1.webp")), read_whole(at("clip-2.webp")));
}

// A clip is its prompt's and its seed's, whatever else is made in the same run; and its memory is
// that of the plan, the encoder of the video included.
TEST_F(PromptToClip, MakesTheSameClipAloneAndAmongOthers) {
  const std::string prompts =
      dir_.write("prompts.txt", "a box\na ball that rolls over a long hill\ntwo boxes\n");
  const Finished f = sample({"--prompt-file", prompts, "--output", at("all.mp4"), "--json"});
  ASSERT_EQ(f.exit_code, 0) << f.out << f.err;
  const Finished g = sample({"--prompt", "two boxes", "--output", at("alone.mp4"),
                             "--contact-sheet", at("sheet.png"), "--json"});
  ASSERT_EQ(g.exit_code, 0) << g.out << g.err;
  EXPECT_TRUE(read_whole(at("all-3.mp4")) == read_whole(at("alone.mp4")));
  for (const Finished& run : {f, g}) {
    const auto json = nlohmann::json::parse(run.out);
    const auto ram = [](const nlohmann::json& j) { return j.at("ram").get<std::int64_t>(); };
    EXPECT_LE(ram(json.at("measured")), ram(json.at("planned")));
    const auto& decoding = json.at("decoding");
    EXPECT_LE(ram(decoding.at("measured")), ram(decoding.at("planned")));
    EXPECT_GT(ram(decoding.at("measured")), ram(decoding.at("planned")) / 3);
  }
}

TEST_F(PromptToClip, ShowsWhatALatentHoldsOnASheet) {
  const Finished f = sample({"--prompt", "a ball", "--output", at("clip.safetensors"), "--preview",
                             at("sheet.png"), "--guidance", "1"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(read_image(at("sheet.png")).width, 4 + 4 * (48 + 4));
  EXPECT_TRUE(std::filesystem::exists(at("clip.safetensors")));
  const Finished none = sample({"--prompt", "a ball", "--output", at("clip.safetensors"),
                                "--preview", at("sheet.jpg"), "--guidance", "1"});
  EXPECT_EQ(none.exit_code, 2) << none.err;
}

// Whether the clip can be written is tried first: from then on the libraries are in memory.
TEST_F(PromptToClip, PlansTheMediaLibrariesBesideTheTexts) {
  const auto text_bytes = [&](const char* output) {
    const Finished f = sample({"--prompt", "a ball", "--output", at(output), "--plan", "--json"});
    EXPECT_EQ(f.exit_code, 0) << f.err;
    const auto phase = nlohmann::json::parse(f.out).at("phases").at(0);
    EXPECT_EQ(phase.at("name"), "text");
    return phase.at("host_bytes").get<std::uint64_t>();
  };
  EXPECT_EQ(text_bytes("clip.mp4"), text_bytes("clip.safetensors") + kMediaLibraries.count);
}

// Before texts are encoded, LoRAs merged and clips made.
TEST_F(PromptToClip, TriesWhatComesLastBeforeItBegins) {
  const auto expect = [&](std::vector<std::string> more, int code, const std::string& text) {
    more.insert(more.end(), {"--prompt", "a ball"});
    const Finished f = sample(std::move(more));
    EXPECT_EQ(f.exit_code, code) << f.err;
    EXPECT_EQ(f.out, "");
    EXPECT_THAT(f.err, HasSubstr(text));
  };
  for (const char* name : {"none/clip.gif", "none/clip.safetensors", "none/clip.png"}) {
    expect({"--output", at(name)}, 6, "1. mkdir -p " + at("none/"));
  }
  expect({"--output", at("clip.gif"), "--contact-sheet", at("none/sheet.png")}, 6,
         "none/sheet.png");
  write_weights("vae22", at("second.safetensors"));
  const std::string lora = at("lora.safetensors");
  SafetensorsWriter writer;
  const std::string layer = "diffusion_model.blocks.0.self_attn.q.lora_";
  const std::int64_t dim = support::trainable_config(1).dim;
  const std::vector<float> zeros(to_size(dim));
  writer.add(layer + "A.weight", DType::f32, {1, dim}, std::as_bytes(std::span(zeros)));
  writer.add(layer + "B.weight", DType::f32, {dim, 1}, std::as_bytes(std::span(zeros)));
  writer.write(lora);
  expect({"--output", at("clip.gif"), "--vae", at("second.safetensors"), "--lora", lora,
          "--merge-loras", at("merged")},
         4, "decodes latents of");
  EXPECT_FALSE(std::filesystem::exists(at("merged")));
  const Finished merged = sample({"--prompt", "a ball", "--output", at("clip.gif"), "--guidance",
                                  "1", "--lora", lora, "--merge-loras", at("merged")});
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_FALSE(std::filesystem::is_empty(at("merged")));
}

TEST_F(PromptToClip, SaysWhatIsMissing) {
  std::filesystem::remove_all(at("vae"));
  const Finished f = sample({"--prompt", "a ball", "--output", at("clip.mp4")});
  EXPECT_EQ(f.exit_code, 2) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("holds no VAE"), HasSubstr("--vae FILE")));
  const Finished g = sample({"--output", at("clip.mp4"), "--vae", golden("vae21")});
  EXPECT_EQ(g.exit_code, 2) << g.err;
  EXPECT_THAT(g.err, HasSubstr("--prompt TEXT"));
}

// ComfyUI's own folder, whose text encoder brings the tokenizer.
TEST_F(PromptToClip, TakesTheTokenizerInsideTheTextEncoder) {
  const Finished before = sample({"--prompt", "a red ball", "--output", at("a.gif")});
  ASSERT_EQ(before.exit_code, 0) << before.err;
  const std::string encoder = at("ComfyUI/models/text_encoders/umt5_tiny.safetensors");
  for (const char* part : {"diffusion_models", "vae"}) {
    std::filesystem::create_directories(at("ComfyUI/models"));
    std::filesystem::rename(at(part), at(std::string("ComfyUI/models/") + part));
  }
  std::filesystem::create_directories(at("ComfyUI/models/text_encoders"));
  write_together(encoder, {{"", at("text_encoders/umt5_tiny.safetensors")}},
                 read_whole(at("spiece.model")));
  for (const char* model : {"ComfyUI", "ComfyUI/models"}) {
    const Finished f = run_ballast({"sample", "--model", at(model), "--prompt", "a red ball",
                                    "--device", "cpu", "--steps", "2", "--frames", "5", "--height",
                                    "32", "--width", "48", "--output", at("b.gif")});
    ASSERT_EQ(f.exit_code, 0) << f.err;
    EXPECT_TRUE(read_whole(at("a.gif")) == read_whole(at("b.gif")));
  }
  std::filesystem::copy_file(encoder, at("ComfyUI/models/text_encoders/umt5_other.safetensors"));
  const Finished two = run_ballast({"sample", "--model", at("ComfyUI"), "--prompt", "a red ball"});
  EXPECT_EQ(two.exit_code, 4);
  EXPECT_THAT(two.err, AllOf(HasSubstr("umt5_tiny.safetensors"), HasSubstr("umt5_other"),
                             HasSubstr("1. --text-encoder FILE")));
  const Finished chosen = run_ballast({"sample", "--model", at("ComfyUI"), "--text-encoder",
                                       encoder, "--prompt", "a red ball", "--plan"});
  EXPECT_EQ(chosen.exit_code, 0) << chosen.err;
}

TEST_F(PromptToClip, TakesAllOfAOneFileCheckpoint) {
  const Finished before = sample({"--prompt", "a red ball", "--output", at("a.gif")});
  ASSERT_EQ(before.exit_code, 0) << before.err;
  const std::string one = dir_.write("one/x", "").substr(0, at("one").size()) + "/all.safetensors";
  write_together(
      one,
      {{"model.diffusion_model.", at("diffusion_models/wan_tiny.safetensors")},
       {"first_stage_model.", at("vae/wan_2.1_vae.safetensors")},
       {"text_encoders.umt5xxl.transformer.", at("text_encoders/umt5_tiny.safetensors")}},
      read_whole(at("spiece.model")));
  const Finished f = run_ballast({"sample", "--model", one, "--prompt", "a red ball", "--device",
                                  "cpu", "--steps", "2", "--frames", "5", "--height", "32",
                                  "--width", "48", "--output", at("b.gif")});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_TRUE(read_whole(at("a.gif")) == read_whole(at("b.gif")));
  const Finished said = run_ballast({"inspect", one});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_THAT(said.out,
              AllOf(HasSubstr("one-file checkpoint: transformer, VAE, text encoder, tokenizer"),
                    HasSubstr("VAE latent channels"), HasSubstr("problems: none")));
  dir_.write("clips/a.txt", "a clip");
  dir_.write("data.toml", "resolutions = [64]\nframe_buckets = [1, 5]\n[[directory]]\npath = '" +
                              at("clips") + "'\n");
  const std::string run =
      dir_.write("run.toml", "output_dir = 'out'\ndataset = '" + at("data.toml") +
                                 "'\nepochs = 1\n[model]\ntype = 'wan'\nckpt_path = '" + one +
                                 "'\ndtype = 'float32'\n[adapter]\ntype = 'lora'\nrank = 4\n"
                                 "dtype = 'float32'\n[optimizer]\ntype = 'adamw'\nlr = 1e-4\n");
  const Finished plan = run_ballast({"plan", run});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
}

}  // namespace
}  // namespace ballast::test
