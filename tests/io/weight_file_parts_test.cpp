#include "io/weight_file_parts.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_file.h"

namespace ballast {
namespace {

TEST(CheckpointParts, AreTakenOutOfOneFileUnderTheirOwnNames) {
  const test::TempDir dir;
  const std::string path =
      support::TensorFile()
          .add("model.diffusion_model.x.weight", DType::f32, {2}, 1)
          .add("first_stage_model.decoder.conv.weight", DType::f32, {3}, 2)
          .add("text_encoders.umt5xxl.transformer.shared.weight", DType::f32, {4}, 3)
          .add("text_encoders.umt5xxl.logit_scale", DType::f32, {1}, 4)
          .add_bytes("text_encoders.spiece_model", FileDType::u8, {3}, "abc")
          .write(dir);
  const PartsInFile parts = parts_in_file(path);
  EXPECT_TRUE(parts.several());
  EXPECT_TRUE(parts.vae && parts.text_encoder && parts.tokenizer);
  WeightFiles made = open_part(path, ModelPart::vae);
  const WeightFiles vae = std::move(made);  // what it points to moves with it
  ASSERT_EQ(vae.tensors().size(), 1u);
  const WeightTensor& t = vae.get("decoder.conv.weight");
  std::vector<float> values(3);
  vae.read(t, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, support::sample_values(2, 3));
  const WeightFiles text = open_part(path, ModelPart::text_encoder);
  EXPECT_EQ(text.tensors().size(), 1u);
  EXPECT_NE(text.find("shared.weight"), nullptr);
}

TEST(CheckpointParts, AFileOfOneModelIsOpenedAsItIs) {
  const test::TempDir dir;
  const std::string path = support::TensorFile()
                               .add("decoder.conv.weight", DType::f32, {3}, 2)
                               .add_bytes("spiece_model", FileDType::u8, {3}, "abc")
                               .write(dir);
  EXPECT_FALSE(parts_in_file(path).several());
  EXPECT_TRUE(parts_in_file(path).tokenizer);
  EXPECT_NE(open_part(path, ModelPart::vae).find("decoder.conv.weight"), nullptr);
  EXPECT_FALSE(parts_in_file(dir.path("none.safetensors")).tokenizer);
  EXPECT_FALSE(parts_in_file(dir.path()).tokenizer);
}

}  // namespace
}  // namespace ballast
