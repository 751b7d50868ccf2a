#include "models/wan/recognise.h"

#include <gmock/gmock.h>

#include "models/wan/params.h"
#include "tests/support/errors.h"
#include "tests/support/sparse_checkpoint.h"

namespace ballast::wan {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A checkpoint of the config's size; rename() may change a name, or drop it with "".
struct File {
  support::SparseCheckpoint file;

  void add_all(
      const Config& c, DType dtype,
      const std::function<std::string(std::string)>& rename = [](std::string n) { return n; }) {
    each_parameter(c, [&](int, const std::string& name, const Shape& shape) {
      const std::string stored = rename(name);
      if (!stored.empty()) file.add(stored, dtype, shape);
    });
  }
  std::optional<Recognised> recognise() const {
    const WeightFiles checkpoint = WeightFiles::open(file.write());
    return wan::recognise(checkpoint, TensorMap(checkpoint));
  }
};

Config two_layers() {  // of a width whose heads can be told
  Config c = *find_preset("wan2.1-t2v-1.3b");
  c.layers = 2;
  return c;
}

TEST(Recognise, EveryPresetFromItsShapes) {
  for (const Config& preset : presets()) {
    File f;
    f.add_all(preset, DType::f32);
    const auto found = f.recognise();
    ASSERT_TRUE(found) << preset.name;
    // Wan2.1 14B has the shapes of the A14B experts.
    const std::string name = preset.name == "wan2.1-t2v-14b" ? "wan2.2-t2v-a14b" : preset.name;
    EXPECT_EQ(found->config.name, name);
    EXPECT_THAT(found->problems, IsEmpty());
    EXPECT_EQ(found->config.dim, preset.dim);
    EXPECT_EQ(found->config.ffn_dim, preset.ffn_dim);
    EXPECT_EQ(found->config.heads, preset.heads);
    EXPECT_EQ(found->config.layers, preset.layers);
    EXPECT_EQ(found->config.in_dim, preset.in_dim);
    EXPECT_EQ(found->config.out_dim, preset.out_dim);
    EXPECT_EQ(found->config.text_dim, preset.text_dim);
    EXPECT_EQ(found->config.freq_dim, preset.freq_dim);
    EXPECT_EQ(found->config.spatial_stride, preset.spatial_stride);
  }
}

TEST(Recognise, FilesHaveThePublishedSizes) {
  File five, i2v;
  five.add_all(*find_preset("wan2.2-ti2v-5b"), DType::f32);
  i2v.add_all(*find_preset("wan2.2-i2v-a14b"), DType::bf16);
  EXPECT_EQ(five.file.data_bytes(), 19'999'150'848u);
  EXPECT_EQ(i2v.file.data_bytes(), 28'577'802'368u);
}

TEST(Recognise, EveryDialect) {
  const Config five = *find_preset("wan2.2-ti2v-5b");
  File prefixed, diffusers, scaled;
  prefixed.add_all(five, DType::f16, [](auto n) { return "model.diffusion_model." + n; });
  diffusers.add_all(five, DType::bf16, [](auto n) { return *diffusers_name(n); });
  each_parameter(five, [&](int, const std::string& name, const Shape& shape) {
    const bool matrix = shape.rank() == 2;
    scaled.file.add(name, matrix ? DType::f8_e4m3 : DType::f16, shape);
    if (matrix) {
      scaled.file.add(name.substr(0, name.size() - 6) + "scale_weight", DType::f32, Shape{});
    }
  });
  scaled.file.add("scaled_fp8", DType::f8_e4m3, {2});
  for (const File* f : {&prefixed, &diffusers, &scaled}) {
    const auto found = f->recognise();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->config.name, "wan2.2-ti2v-5b");
    EXPECT_THAT(found->problems, IsEmpty());
  }
}

TEST(Recognise, OtherSizesAreAWanWithoutAName) {
  File f;
  f.add_all(two_layers(), DType::bf16);
  const auto found = f.recognise();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->config.name, "wan");
  EXPECT_EQ(found->config.layers, 2);
  EXPECT_EQ(found->config.heads, 12);
}

TEST(Recognise, RowsOfTextAreThoseOfTheFoldersConfig) {
  const test::TempDir dir;
  File f;
  f.add_all(two_layers(), DType::bf16);
  f.file.write_below(dir, "model.safetensors");
  const auto rows = [&] {
    const WeightFiles checkpoint = WeightFiles::open(dir.path(""));
    return recognised_config(checkpoint, TensorMap(checkpoint), "model").text_len;
  };
  EXPECT_EQ(rows(), 512);
  dir.write("config.json", R"({"model_type": "t2v", "text_len": 32})");
  EXPECT_EQ(rows(), 32);
  dir.write("config.json", R"({"text_len": 0})");
  EXPECT_FAILS(rows(), ErrorCode::input, "text_len");
  dir.write("config.json", R"({"text_len": 32)");
  EXPECT_FAILS(rows(), ErrorCode::input, "config.json");
}

TEST(Recognise, HeadsThatCannotBeToldAreAnError) {
  Config c = two_layers();
  c.dim = 96, c.heads = 3;
  File f;
  f.add_all(c, DType::bf16);
  EXPECT_FAILS(f.recognise(), ErrorCode::input, "96 is no multiple of 128");
}

TEST(Recognise, OtherModelsAreNoneOfOurs) {
  File empty, other;
  EXPECT_FALSE(empty.recognise());
  other.file.add("encoder.conv1.weight", DType::f32, {4, 4});
  other.file.add("head.modulation", DType::f32, {1, 2, 128});
  EXPECT_FALSE(other.recognise());
  // The names alone do not do: a flat patch embedding is another network.
  File flat;
  flat.add_all(two_layers(), DType::bf16,
               [](auto n) { return n == "patch_embedding.weight" ? "" : n; });
  flat.file.add("patch_embedding.weight", DType::bf16, {1536, 64});
  EXPECT_FALSE(flat.recognise());
}

TEST(Recognise, DerivativesAreRefusedByName) {
  const std::pair<const char*, const char*> derivatives[] = {
      {"img_emb.proj.0.bias", "CLIP"},
      {"blocks.0.cross_attn.k_img.weight", "CLIP"},
      {"vace_patch_embedding.weight", "VACE"},
      {"control_adapter.conv.weight", "camera"},
      {"face_adapter.fuser_blocks.0.q_norm.weight", "Animate"},
      {"casual_audio_encoder.weights", "S2V"},
  };
  for (const auto& [tensor, what] : derivatives) {
    File f;
    f.add_all(two_layers(), DType::bf16);
    f.file.add(tensor, DType::bf16, {8});
    EXPECT_FAILS(f.recognise(), ErrorCode::input, what);
    EXPECT_FAILS(f.recognise(), ErrorCode::input, tensor);
  }
}

TEST(Recognise, ListsWhatIsMissingOddOrTooMuch) {
  File f;
  f.add_all(two_layers(), DType::bf16, [](auto n) {
    return n == "blocks.1.norm3.bias" || n == "blocks.0.self_attn.q.weight" ? "" : n;
  });
  f.file.add("blocks.0.self_attn.q.weight", DType::bf16, {1536, 1535});
  f.file.add("blocks.0.extra", DType::bf16, {3});
  const auto found = f.recognise();
  ASSERT_TRUE(found);
  EXPECT_THAT(found->problems,
              UnorderedElementsAre(
                  "blocks.0.self_attn.q.weight is [1536, 1535], expected [1536, 1536]",
                  "blocks.1.norm3.bias is missing", "blocks.0.extra is not part of the model"));
}

// A file that lacks a whole block has one layer less and a name that gives it away.
TEST(Recognise, GapInTheBlocksIsAProblem) {
  File f;
  Config three = two_layers();
  three.layers = 3;
  f.add_all(three, DType::bf16, [](auto n) { return n.starts_with("blocks.1.") ? "" : n; });
  const auto found = f.recognise();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->config.layers, 2);
  EXPECT_EQ(found->problems.size(), 2u * 27);  // block 1 is missing, block 2 too much
}

}  // namespace
}  // namespace ballast::wan
