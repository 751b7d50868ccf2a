#include <gmock/gmock.h>

#include "io/atomic_file.h"
#include "models/wan/params.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/child_process.h"
#include "tests/support/tensor_file.h"
#include "tests/support/torch_archive.h"

namespace ballast::test {
namespace {

using support::TensorFile;
using support::values_in;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

wan::Config tiny_model() {
  return {.name = "tiny",
          .description = "",
          .dim = 128,
          .ffn_dim = 192,
          .heads = 1,
          .layers = 1,
          .in_dim = 4,
          .out_dim = 4,
          .freq_dim = 8,
          .text_dim = 16};
}

const std::string kKey = "diffusion_model.blocks.0.self_attn.q";

std::string lora_file(const TempDir& dir, const std::string& name = "lora.safetensors") {
  return TensorFile(Metadata{{"format", "pt"}})
      .add(kKey + ".lora_A.weight", DType::bf16, {4, 128}, 1)
      .add(kKey + ".lora_B.weight", DType::bf16, {128, 4}, 2)
      .write(dir, name);
}

std::string model_file(const TempDir& dir) {
  TensorFile file;
  std::uint64_t seed = 100;
  wan::each_parameter(tiny_model(), [&](int, const std::string& name, const Shape& shape) {
    file.add(name, DType::bf16, shape, ++seed);
  });
  return file.write(dir, "model.safetensors");
}

TEST(Convert, LoraGoesToKohyaAndBack) {
  const TempDir dir;
  const std::string model = model_file(dir), lora = lora_file(dir);
  const std::string kohya = dir.path("kohya.safetensors"), back = dir.path("back.safetensors");
  const Finished f =
      run_ballast({"convert", "lora", lora, kohya, "--to", "kohya", "--model", model});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("10 modules, rank 4, from ComfyUI to kohya"));
  EXPECT_THAT(f.out, HasSubstr("9 of them are zeros"));
  EXPECT_EQ(values_in(kohya, "lora_unet_blocks_0_self_attn_q.alpha"), std::vector<float>{4});
  EXPECT_EQ(run_ballast({"convert", "lora", kohya, back, "--to=comfy", "--dtype", "f32"}).exit_code,
            0);
  EXPECT_EQ(values_in(back, kKey + ".lora_A.weight"), values_in(lora, kKey + ".lora_A.weight"));
  const Finished inspect = run_ballast({"inspect", kohya});
  EXPECT_THAT(inspect.out, HasSubstr("problems: none"));
}

TEST(Convert, MergeTakesStrengthsAndLeavesTheRest) {
  const TempDir dir;
  const std::string model = model_file(dir), lora = lora_file(dir);
  const std::string out = dir.path("merged.safetensors"), none = dir.path("none.safetensors");
  const Finished f = run_ballast({"convert", "merge", model, lora + ":0.5", lora, out});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("1 of 42 tensors changed by 2 LoRAs"));
  EXPECT_THAT(f.err, IsEmpty());
  EXPECT_NE(values_in(out, "blocks.0.self_attn.q.weight"),
            values_in(model, "blocks.0.self_attn.q.weight"));
  EXPECT_EQ(values_in(out, "blocks.0.self_attn.k.weight"),
            values_in(model, "blocks.0.self_attn.k.weight"));
  // 0.5 + 0.5 - 1: back to the model, whose weights are bf16.
  EXPECT_EQ(run_ballast({"convert", "merge", model, lora + ":0.5", lora + ":0.5", lora + ":-1",
                         none, "--dtype", "bf16"})
                .exit_code,
            0);
  const auto a = values_in(none, "blocks.0.self_attn.q.weight"),
             b = values_in(model, "blocks.0.self_attn.q.weight");
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5) << i;
}

TEST(Convert, MergeRemovesTheHalfOfAModelThatAKilledOneLeft) {
  const TempDir dir;
  const std::string model = model_file(dir), lora = lora_file(dir);
  std::filesystem::create_directories(dir.path("out"));
  const std::string out = dir.path("out/merged.safetensors");
  std::string left;
  {
    ChildProcess killed([&] {
      AtomicFile file(out);
      file.write("half a model");
      ::raise(SIGKILL);
      return 0;
    });
    ASSERT_EQ(killed.wait(), -SIGKILL);
    left = std::filesystem::directory_iterator(dir.path("out"))->path().string();
  }
  const Finished f = run_ballast({"convert", "merge", model, lora, out});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_FALSE(std::filesystem::exists(left)) << left;
  EXPECT_THAT(f.err, HasSubstr("removed 1 temporary file"));
}

TEST(Convert, MergeNamesATensorThatBecomesInfinite) {
  const TempDir dir;
  const std::string out = dir.path("merged.safetensors");
  const Finished f =
      run_ballast({"convert", "merge", model_file(dir), lora_file(dir) + ":3e38", out});
  EXPECT_EQ(f.exit_code, 4) << f.out;
  EXPECT_THAT(f.err, HasSubstr("blocks.0.self_attn.q.weight holds"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Convert, PyTorchAndGgufFilesBecomeSafetensors) {
  const TempDir dir;
  const std::string storage = pickle::storage("FloatStorage", "0", 4);
  const std::string numbers = u32(0x3f800000) + u32(0x40000000) + u32(0x40400000) + u32(0x40800000);
  const std::string pth = dir.write(
      "m.pth", torch_archive(
                   pickle::whole(pickle::dict({{"w", pickle::tensor(storage, 0, {2, 2}, {1, 2})}})),
                   {numbers}));
  const std::string gguf =
      dir.write("m.gguf", "GGUF" + u32(3) + u64(1) + u64(0) + u64(1) + "w" + u32(1) + u64(4) +
                              u32(0) + u64(0) + std::string(7, '\0') + numbers);
  const std::string out = dir.path("out.safetensors");
  for (const auto& [file, kind, expected] :
       {std::tuple(pth, "PyTorch", std::vector<float>{1, 3, 2, 4}),
        std::tuple(gguf, "GGUF", std::vector<float>{1, 2, 3, 4})}) {
    const Finished inspect = run_ballast({"inspect", file});
    EXPECT_EQ(inspect.exit_code, 0) << inspect.err;
    EXPECT_THAT(inspect.out, HasSubstr(kind));
    EXPECT_THAT(run_ballast({"inspect", file, "--json"}).out, HasSubstr("\"bytes\": 16"));
    const Finished f = run_ballast({"convert", "model", file, out, "--dtype", "bf16"});
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_THAT(f.out, HasSubstr(std::string("1 tensor of a ") + kind));
    EXPECT_EQ(values_in(out, "w"), expected);
  }
  const Finished f = run_ballast({"convert", "model", pth, out, "--json"});
  EXPECT_EQ(f.out, "{\n  \"output\": \"" + out +
                       "\",\n  \"tensors\": 1,\n  \"container\": \"PyTorch\",\n"
                       "  \"bytes\": 16\n}\n");
}

TEST(Convert, MistakesAreExplained) {
  const TempDir dir;
  const std::string lora = lora_file(dir), model = model_file(dir), out = dir.path("out");
  const auto expect = [&](std::vector<std::string> arguments, int code, const std::string& text) {
    arguments.insert(arguments.begin(), "convert");
    const Finished f = run_ballast(arguments);
    EXPECT_EQ(f.exit_code, code) << f.err;
    EXPECT_THAT(f.err, HasSubstr(text));
    EXPECT_FALSE(std::filesystem::exists(out)) << text;
  };
  expect({"lorra", lora, out}, 2, "did you mean lora?");
  expect({"lora", lora, out}, 2, "needs --to comfy, kohya or peft");
  expect({"lora", lora, out, "--to", "comfi"}, 2, "did you mean comfy?");
  expect({"lora", lora, "--to", "comfy"}, 2, "takes IN and OUT, 1 given");
  expect({"lora", lora, out, "--to", "comfy", "--dtype", "int8"}, 2, "expected bf16, f16 or f32");
  expect({"lora", lora, out, "--to", "kohya"}, 4, "--model FILE");
  expect({"lora", model, out, "--to", "comfy"}, 4, "holds no LoRA for this model");
  expect({"lora", dir.path("gone"), out, "--to", "comfy"}, 6, "No such file");
  expect({"lora", lora, dir.path("no/such/out"), "--to", "comfy"}, 6, "No such file");
  expect({"merge", model, out}, 2, "at least one LORA");
  expect({"merge", lora, lora, out}, 4, "changes nothing");
  expect({"merge", model, lora, out, "--to", "comfy"}, 2, "belong to convert lora");
  expect({"model", model, out}, 2, "writes a .safetensors file");
  expect({"model", model}, 2, "takes IN and OUT, 1 given");
  expect({"model", dir.write("bad.pth", "PK\x03\x04" + std::string(99, 'x')),
          dir.path("x.safetensors")},
         4, "the file may be cut off");
}

}  // namespace
}  // namespace ballast::test
