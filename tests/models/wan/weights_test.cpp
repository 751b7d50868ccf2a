#include "models/wan/weights.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "models/wan/params.h"
#include "tests/support/errors.h"
#include "tests/support/sparse_checkpoint.h"

namespace ballast::wan::weights_test {
namespace {

Config small() {
  return {.name = "small",
          .description = "",
          .dim = 16,
          .ffn_dim = 24,
          .heads = 2,
          .layers = 2,
          .in_dim = 6,
          .out_dim = 4,
          .freq_dim = 8,
          .text_dim = 10,
          .text_len = 3};
}

// The model's file with one tensor as told: another dtype, another shape, or left out.
struct File {
  support::SparseCheckpoint file;
  explicit File(const std::string& odd = "", DType dtype = DType::f32, Shape shape = {},
                bool dropped = false) {
    each_parameter(small(), [&](int, const std::string& name, const Shape& right) {
      if (name != odd) {
        file.add(name, DType::bf16, right);
      } else if (!dropped) {
        file.add(name, dtype, shape.rank() > 0 ? shape : right);
      }
    });
  }
  WeightFiles open() const { return WeightFiles::open(file.write()); }
};

TEST(WanWeights, GroupsHaveEveryTensorWhereTheFileHasIt) {
  const File f;
  const WeightFiles checkpoint = f.open();
  const auto groups = weight_groups(small(), checkpoint, TensorMap(checkpoint));
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].name, "embed");
  EXPECT_EQ(groups[1].name, "blocks.0");
  EXPECT_EQ(groups[3].name, "head");
  EXPECT_TRUE(groups[0].keep_precision && groups[3].keep_precision);
  EXPECT_FALSE(groups[1].keep_precision || groups[2].keep_precision);
  std::vector<std::size_t> next(4, 0);
  each_parameter(small(), [&](int group, const std::string& name, const Shape& shape) {
    const auto g = to_size(group);
    const StoredTensor& t = groups[g].tensors.at(next[g]++);
    EXPECT_EQ(t.name, name);
    EXPECT_EQ(t.data.shape, shape);
    EXPECT_EQ(t.data.dtype, DType::bf16);
    EXPECT_FALSE(t.scale);
    EXPECT_EQ(t.data.extent.bytes, static_cast<std::uint64_t>(shape.elements()) * 2);
    EXPECT_EQ(t.data.extent.offset, checkpoint.extent(*checkpoint.find(name)).offset);
    EXPECT_NE(t.data.extent.file, nullptr);
  });
  for (std::size_t g = 0; g < 4; ++g) EXPECT_EQ(next[g], groups[g].tensors.size());
}

TEST(WanWeights, ScalesComeAlong) {
  File f("blocks.1.ffn.0.weight", DType::f8_e4m3);
  f.file.add("blocks.1.ffn.0.weight_scale", DType::f32, Shape{});
  const WeightFiles checkpoint = f.open();
  for (const WeightGroup& g : weight_groups(small(), checkpoint, TensorMap(checkpoint))) {
    for (const StoredTensor& t : g.tensors) {
      EXPECT_EQ(t.scale.has_value(), t.name == "blocks.1.ffn.0.weight") << t.name;
    }
  }
}

TEST(WanWeights, MissingTensorIsAnInputErrorWithItsName) {
  const std::string name = "blocks.1.cross_attn.norm_k.weight";
  const File f(name, DType::f32, {}, true);
  const WeightFiles checkpoint = f.open();
  EXPECT_FAILS(weight_groups(small(), checkpoint, TensorMap(checkpoint)), ErrorCode::input,
               "has no tensor " + name);
  EXPECT_FAILS(weight_groups(small(), checkpoint), ErrorCode::input, "has no tensor " + name);
}

TEST(WanWeights, OtherShapeIsAnInputErrorWithBothShapes) {
  for (const auto& [name, shape, expected] :
       {std::tuple("patch_embedding.weight", Shape{16, 6, 2, 2}, "[16, 6, 1, 2, 2]"),
        std::tuple("blocks.0.ffn.2.weight", Shape{24, 16}, "[16, 24]"),
        std::tuple("head.modulation", Shape{2, 16}, "[1, 2, 16]")}) {
    const File f(name, DType::bf16, shape);
    const WeightFiles checkpoint = f.open();
    EXPECT_FAILS(weight_groups(small(), checkpoint, TensorMap(checkpoint)), ErrorCode::input,
                 fmt::format("{} is {}, expected {}", name, shape, expected));
  }
}

TEST(WanWeights, IntegersAreAnInputError) {
  for (const DType dtype : {DType::i8, DType::i32, DType::u8, DType::boolean}) {
    const File f("blocks.0.self_attn.v.weight", dtype);
    const WeightFiles checkpoint = f.open();
    EXPECT_FAILS(weight_groups(small(), checkpoint, TensorMap(checkpoint)), ErrorCode::input,
                 fmt::format("blocks.0.self_attn.v.weight is {}", dtype));
  }
}

TEST(WanWeights, PlannedGroupsAreTheSameWithoutAFile) {
  const File f;
  const WeightFiles checkpoint = f.open();
  const auto real = weight_groups(small(), checkpoint),
             planned = planned_groups(small(), DType::bf16);
  ASSERT_EQ(real.size(), planned.size());
  for (std::size_t g = 0; g < real.size(); ++g) {
    EXPECT_EQ(real[g].name, planned[g].name);
    EXPECT_EQ(real[g].keep_precision, planned[g].keep_precision);
    ASSERT_EQ(real[g].tensors.size(), planned[g].tensors.size());
    for (std::size_t t = 0; t < real[g].tensors.size(); ++t) {
      EXPECT_EQ(real[g].tensors[t].name, planned[g].tensors[t].name);
      EXPECT_EQ(real[g].tensors[t].data.shape, planned[g].tensors[t].data.shape);
      EXPECT_EQ(real[g].tensors[t].data.extent.bytes, planned[g].tensors[t].data.extent.bytes);
      EXPECT_EQ(planned[g].tensors[t].data.extent.file, nullptr);
    }
  }
}

}  // namespace
}  // namespace ballast::wan::weights_test
