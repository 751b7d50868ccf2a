#include "models/wan/names.h"

#include <gtest/gtest.h>

#include <set>

#include "io/safetensors_writer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast::wan {
namespace {

// The 15 names outside the blocks and the 27 of each block, written out once more from the table of
// the published checkpoints.
std::vector<std::string> official_names(int blocks) {
  std::vector<std::string> names = {"head.modulation"};
  for (const char* module :
       {"patch_embedding", "text_embedding.0", "text_embedding.2", "time_embedding.0",
        "time_embedding.2", "time_projection.1", "head.head"}) {
    for (const char* leaf : {".weight", ".bias"}) names.push_back(std::string(module) + leaf);
  }
  for (int i = 0; i < blocks; ++i) {
    const std::string block = fmt::format("blocks.{}.", i);
    names.push_back(block + "modulation");
    for (const char* leaf : {"weight", "bias"}) {
      for (const char* module : {"norm3", "ffn.0", "ffn.2"}) {
        names.push_back(fmt::format("{}{}.{}", block, module, leaf));
      }
      for (const char* attention : {"self_attn", "cross_attn"}) {
        for (const char* part : {"q", "k", "v", "o"}) {
          names.push_back(fmt::format("{}{}.{}.{}", block, attention, part, leaf));
        }
      }
    }
    for (const char* attention : {"self_attn", "cross_attn"}) {
      for (const char* part : {"norm_q", "norm_k"}) {
        names.push_back(fmt::format("{}{}.{}.weight", block, attention, part));
      }
    }
  }
  return names;
}

struct Written {
  test::TempDir folder;
  SafetensorsWriter writer;
  void add(const std::string& name, DType dtype = DType::bf16) {
    writer.add(name, dtype, Shape{0}, std::span<const std::byte>());
  }
  WeightFiles open() const {
    writer.write(folder.path("m.safetensors"));
    return WeightFiles::open(folder.path("m.safetensors"));
  }
};

TEST(WanNames, CountAsPublished) { EXPECT_EQ(official_names(30).size(), 825u); }

TEST(WanNames, TranslateBothWaysWithoutLoss) {
  std::set<std::string> seen;
  for (const std::string& name : official_names(40)) {
    const auto other = diffusers_name(name);
    ASSERT_TRUE(other) << name;
    EXPECT_TRUE(seen.insert(*other).second) << *other;
    EXPECT_EQ(official_name(*other), name);
  }
}

TEST(WanNames, MatchTheTable) {
  const std::vector<std::pair<const char*, const char*>> pairs = {
      {"patch_embedding.bias", "patch_embedding.bias"},
      {"text_embedding.2.weight", "condition_embedder.text_embedder.linear_2.weight"},
      {"time_embedding.0.bias", "condition_embedder.time_embedder.linear_1.bias"},
      {"time_projection.1.weight", "condition_embedder.time_proj.weight"},
      {"head.modulation", "scale_shift_table"},
      {"head.head.bias", "proj_out.bias"},
      {"blocks.7.modulation", "blocks.7.scale_shift_table"},
      {"blocks.0.norm3.weight", "blocks.0.norm2.weight"},
      {"blocks.39.self_attn.o.weight", "blocks.39.attn1.to_out.0.weight"},
      {"blocks.1.cross_attn.norm_k.weight", "blocks.1.attn2.norm_k.weight"},
      {"blocks.1.cross_attn.norm_k_img.weight", "blocks.1.attn2.norm_added_k.weight"},
      {"blocks.1.cross_attn.k_img.bias", "blocks.1.attn2.add_k_proj.bias"},
      {"blocks.10.ffn.0.weight", "blocks.10.ffn.net.0.proj.weight"},
      {"blocks.10.ffn.2.bias", "blocks.10.ffn.net.2.bias"},
      {"img_emb.proj.1.weight", "condition_embedder.image_embedder.ff.net.0.proj.weight"},
      {"img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed"},
      {"blocks.0.self_attn.q.lora_A.weight", "blocks.0.attn1.to_q.lora_A.weight"},
      {"blocks.0.self_attn.q", "blocks.0.attn1.to_q"},
  };
  for (const auto& [official, diffusers] : pairs) {
    EXPECT_EQ(diffusers_name(official), diffusers) << official;
    EXPECT_EQ(official_name(diffusers), official) << diffusers;
  }
  for (const char* name : {"", "blocks", "blocks.", "blocks.x.norm3.bias", "blocks.01.norm3.bias",
                           "blocks.1", "blocks.1.", "blocks.1.norm1.weight", "blocks.1.norm33.bias",
                           "blocks.1.self_attn.query.weight", "vace_patch_embedding.weight"}) {
    EXPECT_EQ(diffusers_name(name), std::nullopt) << name;
  }
}

TEST(WanTensorMap, GivesOfficialNamesForEveryDialect) {
  const std::vector<std::string> names = official_names(2);
  const auto expect_all = [&](const Written& file, Dialect dialect, std::string_view prefix) {
    const WeightFiles c = file.open();
    const TensorMap map(c);
    EXPECT_EQ(map.dialect(), dialect) << name_of(map.dialect());
    EXPECT_EQ(map.prefix(), prefix);
    const auto difference = map.compare(names);
    EXPECT_TRUE(difference.missing.empty()) << difference.missing[0];
    EXPECT_TRUE(difference.unused.empty()) << difference.unused[0];
    for (const std::string& name : names) EXPECT_EQ(map.find(name)->name, name);
  };
  Written official, prefixed, scaled, diffusers;
  for (const std::string& name : names) {
    official.add(name);
    prefixed.add("model.diffusion_model." + name);
    scaled.add(name);
    diffusers.add(*diffusers_name(name));
  }
  scaled.add("scaled_fp8", DType::f8_e4m3);
  expect_all(official, Dialect::official, "");
  expect_all(prefixed, Dialect::comfy, "model.diffusion_model.");
  expect_all(scaled, Dialect::comfy, "");
  expect_all(diffusers, Dialect::diffusers, "");
}

TEST(WanTensorMap, CarriesTheScaleUnderTheOfficialName) {
  Written file;
  const float scale = 0.5f;
  const std::array<std::byte, 6> weight{};
  file.writer.add("blocks.0.attn1.to_q.weight", DType::f8_e4m3, Shape{2, 3}, weight);
  file.writer.add("blocks.0.attn1.to_q.weight_scale", DType::f32, Shape{},
                  std::as_bytes(std::span(&scale, 1)));
  const WeightFiles c = file.open();
  const TensorMap map(c);
  EXPECT_EQ(map.tensors().size(), 1u);
  const WanTensor* q = map.find("blocks.0.self_attn.q.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->source.layout, ScaleLayout::tensor);
  float read = 0;
  c.read(*q->source.scale, std::as_writable_bytes(std::span(&read, 1)));
  EXPECT_EQ(read, 0.5f);
}

TEST(WanTensorMap, ListsWhatIsMissingAndWhatIsUnused) {
  Written file;
  for (const char* name :
       {"condition_embedder.time_proj.weight", "proj_out.weight", "rope.freqs"}) {
    file.add(name);
  }
  const WeightFiles c = file.open();
  const TensorMap map(c);
  EXPECT_EQ(std::vector(map.unknown().begin(), map.unknown().end()),
            (std::vector<std::string>{"rope.freqs"}));
  const std::vector<std::string> expected = {"head.head.weight", "head.head.bias"};
  const auto difference = map.compare(expected);
  EXPECT_EQ(difference.missing, (std::vector<std::string>{"head.head.bias"}));
  EXPECT_EQ(difference.unused,
            (std::vector<std::string>{"condition_embedder.time_proj.weight", "rope.freqs"}));
}

TEST(WanTensorMap, RefusesTwoDialectsInOne) {
  Written file;
  file.add("head.modulation");
  file.add("blocks.0.attn1.to_q.weight");
  const WeightFiles c = file.open();
  EXPECT_FAILS(TensorMap{c}, ErrorCode::input, "names.mixed");
}

}  // namespace
}  // namespace ballast::wan
