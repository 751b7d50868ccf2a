#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "models/wan/names.h"
#include "models/wan/params.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/hostile_safetensors.h"
#include "tests/support/test_clip.h"
#include "tests/support/tiny_parts.h"
#include "tests/support/tiny_training.h"

namespace ballast::test::inspect_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

nlohmann::json inspect_json(const std::string& path) {
  const Finished f = run_ballast({"inspect", path, "--json", "--tensors"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  return nlohmann::json::parse(f.out);
}

// A file of zeros.
class ZeroFile {
 public:
  void add(std::string name, DType dtype, const Shape& shape) {
    const auto bytes = to_size(shape.elements()) * size_of(dtype);
    writer_.add(std::move(name), dtype, shape, [bytes](const ByteSink& sink) {
      const std::vector<std::byte> zeros(bytes);
      sink(zeros);
    });
  }
  std::string write(const TempDir& dir, const std::string& name) const {
    writer_.write(dir.path(name));
    return dir.path(name);
  }

 private:
  SafetensorsWriter writer_;
};

wan::Config tiny_model() {
  wan::Config c;
  c.name = "tiny";
  c.dim = 128;
  c.ffn_dim = 256;
  c.heads = 1;
  c.layers = 2;
  c.in_dim = 16;
  c.out_dim = 16;
  c.freq_dim = 64;
  c.text_dim = 32;
  return c;
}

TEST(Inspect, GoldenFileShowsCaseAndTotals) {
  const Finished f = run_ballast({"inspect", golden("dit_lora")});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("golden file"), HasSubstr("dit_lora"), HasSubstr("F32"),
                           HasSubstr("more (--tensors lists all)"), HasSubstr("problems: none")));
  EXPECT_THAT(f.err, IsEmpty());
}

TEST(Inspect, OutputStaysShortWithoutTensorsAndListsAllWithIt) {
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_LT(lines(run_ballast({"inspect", golden("dit_lora")}).out), 60);
  EXPECT_GT(lines(run_ballast({"inspect", golden("dit_lora"), "--tensors"}).out), 150);
}

TEST(Inspect, JsonCountsEveryDtype) {
  const auto j = inspect_json(golden("dtypes"));
  EXPECT_EQ(j.at("kind"), "golden file");
  EXPECT_EQ(j.at("total").at("tensors"), 22);
  EXPECT_EQ(j.at("dtypes").at("F8_E4M3").at("bytes"), 35);
  EXPECT_EQ(j.at("dtypes").at("I64").at("bytes"), 32);
  EXPECT_EQ(j.at("tensors").size(), 22u);
}

TEST(Inspect, ModelIsRecognisedInBothDialects) {
  const TempDir dir;
  ZeroFile official, diffusers;
  wan::each_parameter(tiny_model(), [&](int, const std::string& name, const Shape& shape) {
    official.add(name, DType::bf16, shape);
    diffusers.add(wan::diffusers_name(name).value(), DType::bf16, shape);
  });
  const auto a = inspect_json(official.write(dir, "official.safetensors"));
  const auto b = inspect_json(diffusers.write(dir, "diffusers.safetensors"));
  for (const auto& j : {a, b}) {
    EXPECT_EQ(j.at("kind"), "Wan diffusion transformer");
    EXPECT_EQ(j.at("content").at("blocks"), 2);
    EXPECT_EQ(j.at("content").at("width"), 128);
    EXPECT_THAT(j.at("problems"), IsEmpty());
  }
  EXPECT_EQ(a.at("content").at("dialect"), "official");
  EXPECT_EQ(b.at("content").at("dialect"), "diffusers");
  EXPECT_EQ(a.at("total").at("parameters"), b.at("total").at("parameters"));
}

TEST(Inspect, ModelProblemsNameTheTensor) {
  const TempDir dir;
  ZeroFile file;
  wan::each_parameter(tiny_model(), [&](int, const std::string& name, const Shape& shape) {
    if (name == "blocks.1.ffn.2.bias") return;
    file.add(name, DType::f32, name == "blocks.0.norm3.weight" ? Shape{7} : shape);
  });
  file.add("blocks.0.extra", DType::f32, {1});
  const std::string path = file.write(dir, "model.safetensors");
  const auto problems = inspect_json(path).at("problems").get<std::vector<std::string>>();
  EXPECT_THAT(problems, Contains(AllOf(HasSubstr("blocks.1.ffn.2.bias"), HasSubstr("missing"))));
  EXPECT_THAT(problems, Contains(AllOf(HasSubstr("blocks.0.norm3.weight"), HasSubstr("[7]"))));
  EXPECT_THAT(problems, Contains(HasSubstr("blocks.0.extra")));
  const Finished text = run_ballast({"inspect", dir.path()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("folder"), HasSubstr("problems (3)")));
}

TEST(Inspect, NamesAutoencodersAndTextEncoders) {
  const TempDir dir;
  using wan_vae::Dialect;
  using wan_vae::Generation;
  for (const Generation g : {Generation::wan21, Generation::wan22}) {
    for (const Dialect d : {Dialect::official, Dialect::diffusers}) {
      const std::string path = dir.path("vae.safetensors");
      support::write_vae(path, support::tiny_vae(g), d);
      EXPECT_THAT(run_ballast({"inspect", path}).out,
                  AllOf(HasSubstr("Wan video autoencoder"),
                        HasSubstr(g == Generation::wan21 ? "wan2.1-vae" : "wan2.2-vae"),
                        HasSubstr(d == Dialect::official ? "official" : "diffusers"),
                        HasSubstr(g == Generation::wan21 ? "8 x 8" : "16 x 16"),
                        HasSubstr("problems: none")));
    }
  }
  support::write_parts(dir, support::trainable_config());
  EXPECT_THAT(run_ballast({"inspect", dir.path("t5.safetensors")}).out,
              AllOf(HasSubstr("T5 text encoder"), HasSubstr("vocabulary"), HasSubstr("16")));
}

TEST(Inspect, LoraDialectsAreToldApart) {
  struct Dialect {
    std::string name, module, down, up;
  };
  const std::vector<Dialect> dialects = {
      {"ComfyUI", "diffusion_model.blocks.{}.self_attn.q", ".lora_A.weight", ".lora_B.weight"},
      {"kohya", "lora_unet_blocks_{}_self_attn_q", ".lora_down.weight", ".lora_up.weight"},
      {"diffusers", "transformer.blocks.{}.attn1.to_q", ".lora_A.weight", ".lora_B.weight"},
      {"DiffSynth", "blocks.{}.self_attn.q", ".lora_A.default.weight", ".lora_B.default.weight"},
      {"PEFT", "base_model.model.blocks.{}.self_attn.q", ".lora_A.weight", ".lora_B.weight"},
  };
  for (const Dialect& d : dialects) {
    const TempDir dir;
    ZeroFile file;
    for (int block = 0; block < 3; ++block) {
      const std::string module = fmt::format(fmt::runtime(d.module), block);
      file.add(module + d.down, DType::bf16, {16, 5120});
      file.add(module + d.up, DType::bf16, {5120, 16});
      if (d.name == "kohya") file.add(module + ".alpha", DType::f32, {});
    }
    const auto j = inspect_json(file.write(dir, "lora.safetensors"));
    EXPECT_EQ(j.at("kind"), "LoRA") << d.name;
    EXPECT_EQ(j.at("content").at("dialect"), d.name);
    EXPECT_EQ(j.at("content").at("modules"), 3);
    EXPECT_EQ(j.at("content").at("rank"), nlohmann::json::array({16}));
    EXPECT_THAT(j.at("content").at("fits").get<std::vector<std::string>>(),
                Contains("wan2.2-t2v-a14b"));
    EXPECT_THAT(j.at("problems"), IsEmpty()) << d.name;
  }
}

TEST(Inspect, LoraProblemsNameTheModule) {
  const TempDir dir;
  ZeroFile file;
  file.add("diffusion_model.blocks.0.self_attn.q.lora_A.weight", DType::bf16, {4, 64});
  file.add("diffusion_model.blocks.0.self_attn.k.lora_A.weight", DType::bf16, {4, 64});
  file.add("diffusion_model.blocks.0.self_attn.k.lora_B.weight", DType::bf16, {64, 8});
  file.add("diffusion_model.strange.lora_A.weight", DType::bf16, {4, 64});
  const auto problems = inspect_json(file.write(dir, "lora.safetensors"))
                            .at("problems")
                            .get<std::vector<std::string>>();
  EXPECT_THAT(problems, Contains(HasSubstr("blocks.0.self_attn.q: the second factor is missing")));
  EXPECT_THAT(problems, Contains(HasSubstr("blocks.0.self_attn.k: factors [4, 64] and [64, 8]")));
  EXPECT_THAT(problems, Contains(HasSubstr("strange")));
}

TEST(Inspect, UnknownTensorsAreNoError) {
  const TempDir dir;
  ZeroFile file;
  file.add("something", DType::f32, {3});
  EXPECT_THAT(inspect_json(file.write(dir, "x.safetensors")).at("kind").get<std::string>(),
              HasSubstr("no model"));
}

// tests/io say which rule it is; users read what is wrong.
TEST(Inspect, HostileFilesGiveExitFourAndNoIdOfARule) {
  const TempDir dir;
  for (const HostileFile& file : hostile_safetensors()) {
    const std::string path = dir.write("hostile.safetensors", file.bytes);
    const Finished f = run_ballast({"inspect", path});
    EXPECT_EQ(f.exit_code, 4) << file.name << ": " << f.err.substr(0, 400);
    EXPECT_THAT(f.err.substr(0, 400), Not(HasSubstr(file.rule + ": "))) << file.name;
    EXPECT_THAT(f.err, HasSubstr(": ")) << file.name;
    EXPECT_THAT(f.out, IsEmpty()) << file.name;
  }
}

TEST(Inspect, NamesFromFilesCannotSpeakToTheTerminal) {
  const TempDir dir;
  const std::string path = dir.write(
      "x.safetensors", safetensors("{\"__metadata__\":{\"a\":\"\\u001b[2J\"}," +
                                       tensor("evil\\u001b[31m", "I32", "[1]", "[0,4]") + "}",
                                   "\1\2\3\4"));
  const Finished f = run_ballast({"inspect", path});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("evil\\x1b[31m"), Not(HasSubstr("\x1b"))));
}

TEST(Inspect, VideoShowsWhatItIsAndHowItWasMade) {
  if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
  const TempDir dir;
  const std::string path = dir.path("clip.mp4");
  write_clip(path,
             {.width = 32,
              .height = 24,
              .rate = {24, 1},
              .comment = R"({"prompt": "a \"red\" 猫\u001b[2J", "seed": 7, "steps": [4, 5]})"},
             5);
  const Finished f = run_ballast({"inspect", path});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(f.err, "");
  EXPECT_THAT(f.out, AllOf(HasSubstr("video, h264 in mov"), HasSubstr("32 x 24"),
                           HasSubstr("24 frames a second"), HasSubstr("0.208 s"),
                           HasSubstr("a \"red\" 猫\\x1b[2J"), HasSubstr("[4,5]")));
  const nlohmann::json j = inspect_json(path);
  EXPECT_EQ(j["frames"], 5);
  EXPECT_EQ(j["comment"]["seed"], 7);
  const std::string cut = dir.write("cut.mp4", read_whole(path).substr(0, 600));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  write_clip(path, {.width = 32, .height = 24, .comment = "{\"a\": " + deep + "}"}, 1);
  EXPECT_EQ(run_ballast({"inspect", path}).exit_code, 0);
  const Finished broken = run_ballast({"inspect", cut});
  EXPECT_EQ(broken.exit_code, 4) << broken.out;
  EXPECT_THAT(broken.err, HasSubstr("cut.mp4"));
}

}  // namespace
}  // namespace ballast::test::inspect_test
