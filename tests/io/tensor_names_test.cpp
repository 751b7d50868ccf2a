#include "io/tensor_names.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::TempDir;

// A checkpoint made of zeros, or of the given text.
class Fixture {
 public:
  Fixture& add(const std::string& name, DType dtype, const Shape& shape, std::string text = "") {
    text.resize(to_size(shape.elements()) * size_of(dtype));
    writer_.add(name, dtype, shape,
                [text](const ByteSink& sink) { sink(std::as_bytes(std::span(text))); });
    return *this;
  }
  Fixture& note(const std::string& layer, const std::string& json) {
    return add(layer + ".comfy_quant", DType::u8, Shape{static_cast<std::int64_t>(json.size())},
               json);
  }
  WeightFiles open() const {
    writer_.write(folder_.path("m.safetensors"));
    return WeightFiles::open(folder_.path("m.safetensors"));
  }
  explicit Fixture(Metadata metadata = {}) : writer_({.metadata = metadata, .alignment = 8}) {}

 private:
  TempDir folder_;
  SafetensorsWriter writer_;
};

const NamedTensor* find(const TensorNames& names, std::string_view name) {
  for (const NamedTensor& t : names.tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

TEST(TensorNames, PlainFilesAreListedAsTheyAre) {
  const WeightFiles c = Fixture()
                            .add("q.weight", DType::bf16, Shape{4, 8})
                            .add("q.bias", DType::bf16, Shape{4})
                            .add("k.weight", DType::f8_e4m3, Shape{4, 8})
                            .open();
  const TensorNames names = read_tensor_names(c);
  EXPECT_EQ(names.prefix, "");
  EXPECT_FALSE(names.comfy);
  EXPECT_EQ(names.tensors.size(), 3u);
  EXPECT_EQ(find(names, "k.weight")->layout, ScaleLayout::none);  // a plain cast
}

TEST(TensorNames, TakesEitherPrefixOffAndSetsTheRestAside) {
  for (const std::string prefix : {"model.diffusion_model.", "diffusion_model."}) {
    const WeightFiles c = Fixture()
                              .add(prefix + "q.weight", DType::bf16, Shape{2, 2})
                              .add("first_stage_model.x", DType::bf16, Shape{2})
                              .open();
    const TensorNames names = read_tensor_names(c);
    EXPECT_EQ(names.prefix, prefix);
    EXPECT_TRUE(names.comfy);
    ASSERT_EQ(names.tensors.size(), 1u);
    EXPECT_EQ(names.tensors[0].name, "q.weight");
    EXPECT_EQ(names.tensors[0].tensor.entry->name, prefix + "q.weight");
    EXPECT_EQ(names.outside, (std::vector<std::string_view>{"first_stage_model.x"}));
  }
  const WeightFiles both = Fixture()
                               .add("model.diffusion_model.a", DType::u8, Shape{1})
                               .add("diffusion_model.b", DType::u8, Shape{1})
                               .open();
  EXPECT_FAILS(read_tensor_names(both), ErrorCode::input,
               "quant.prefix: tensor \"diffusion_model.b");
}

TEST(TensorNames, OldComfyFilesHaveScalesAndAMarker) {
  for (const std::string prefix : {"", "model.diffusion_model."}) {
    for (const DType marker : {DType::f8_e4m3, DType::f32, DType::f8_e5m2}) {
      const WeightFiles c = Fixture()
                                .add(prefix + "scaled_fp8", marker, Shape{0})
                                .add(prefix + "q.weight", DType::f8_e4m3, Shape{4, 8})
                                .add(prefix + "q.scale_weight", DType::f32, Shape{})
                                .add(prefix + "q.scale_input", DType::f32, Shape{})
                                .add(prefix + "q.bias", DType::f16, Shape{4})
                                .open();
      const TensorNames names = read_tensor_names(c);
      EXPECT_TRUE(names.comfy);
      EXPECT_EQ(names.tensors.size(), 2u);
      const NamedTensor* q = find(names, "q.weight");
      ASSERT_NE(q, nullptr);
      EXPECT_EQ(q->layout, ScaleLayout::tensor);
      EXPECT_EQ(q->scale->entry->name, prefix + "q.scale_weight");
      EXPECT_EQ(q->input_scale->entry->name, prefix + "q.scale_input");
    }
  }
  const WeightFiles odd = Fixture().add("scaled_fp8", DType::i8, Shape{0}).open();
  EXPECT_FAILS(read_tensor_names(odd), ErrorCode::input, "quant.format");
}

TEST(TensorNames, NewComfyFilesHaveNotesOrMetadata) {
  const WeightFiles notes =
      Fixture()
          .add("q.weight", DType::f8_e4m3, Shape{4, 8})
          .add("q.weight_scale", DType::f32, Shape{1})
          .add("q.input_scale", DType::f32, Shape{1})
          .note("q", R"({"format":"float8_e4m3fn","full_precision_matrix_mult":true})")
          .add("k.weight", DType::f8_e5m2, Shape{4, 8})
          .add("k.weight_scale", DType::f32, Shape{})
          .note("k", R"({"format":"float8_e5m2"})")
          .open();
  TensorNames names = read_tensor_names(notes);
  EXPECT_EQ(names.tensors.size(), 2u);
  EXPECT_EQ(find(names, "q.weight")->layout, ScaleLayout::tensor);
  EXPECT_TRUE(find(names, "q.weight")->input_scale);
  EXPECT_FALSE(find(names, "k.weight")->input_scale);

  for (const std::string layers :
       {R"({"diffusion_model.q":{"format":"float8_e4m3fn"},"absent":"float8_e5m2"})",
        R"({"q":"float8_e4m3fn"})"}) {
    const WeightFiles metadata =
        Fixture({{"_quantization_metadata", R"({"format_version":"1.0","layers":)" + layers + "}"}})
            .add("diffusion_model.q.weight", DType::f8_e4m3, Shape{4, 8})
            .add("diffusion_model.q.weight_scale", DType::f32, Shape{})
            .open();
    names = read_tensor_names(metadata);
    ASSERT_EQ(names.tensors.size(), 1u);
    EXPECT_EQ(names.tensors[0].layout, ScaleLayout::tensor);
  }
}

TEST(TensorNames, AScaleCountsWithoutAnyMarker) {
  for (const std::string key : {"scale_weight", "weight_scale"}) {
    const WeightFiles c = Fixture()
                              .add("q.weight", DType::f8_e4m3, Shape{4, 128})
                              .add("q." + key, DType::bf16, Shape{4, 2, 1})
                              .add("k.weight", DType::f8_e4m3, Shape{4, 128})
                              .add("k." + key, DType::f16, Shape{4, 1})
                              .open();
    const TensorNames names = read_tensor_names(c);
    EXPECT_EQ(find(names, "q.weight")->layout, ScaleLayout::group);
    EXPECT_EQ(find(names, "k.weight")->layout, ScaleLayout::row);
    EXPECT_EQ(names.tensors.size(), 2u);
  }
}

TEST(TensorNames, AScaleOfNothingIsAnOrdinaryTensor) {
  const WeightFiles c = Fixture().add("q.scale_weight", DType::f32, Shape{}).open();
  EXPECT_NE(find(read_tensor_names(c), "q.scale_weight"), nullptr);
}

TEST(TensorNames, UnknownFormatsAreRefusedByName) {
  const auto noted = [](const std::string& json) {
    return Fixture()
        .add("q.weight", DType::i8, Shape{4, 8})
        .add("q.weight_scale", DType::f32, Shape{})
        .note("q", json)
        .open();
  };
  EXPECT_FAILS(read_tensor_names(noted(R"({"format":"int8_tensorwise"})")), ErrorCode::input,
               "quant.format: tensor \"q.comfy_quant\": format \"int8_tensorwise\"");
  EXPECT_FAILS(read_tensor_names(noted(R"({"format":"float8_e4m3fn"})")), ErrorCode::input,
               "it is I8, its quantisation says F8_E4M3");
  EXPECT_FAILS(read_tensor_names(noted("{}")), ErrorCode::input, "names no format");
  EXPECT_FAILS(read_tensor_names(noted(R"("float8_e4m3fn")")), ErrorCode::input, "quant.json");
  EXPECT_FAILS(read_tensor_names(noted(R"({"format":)")), ErrorCode::input, "quant.json");
  EXPECT_FAILS(read_tensor_names(noted(R"({"format":1})")), ErrorCode::input, "quant.json");
  EXPECT_FAILS(read_tensor_names(noted("")), ErrorCode::input, "quant.json");
  EXPECT_FAILS(read_tensor_names(noted(std::string(70'000, ' ') + "{}")), ErrorCode::input,
               "at most 65536 bytes of U8");

  for (const std::string layers :
       {R"({"q":"nvfp4"})", R"({"elsewhere":{"format":"mxfp8"}})", R"({"q":{}})"}) {
    const WeightFiles c =
        Fixture({{"_quantization_metadata", R"({"layers":)" + layers + "}"}}).open();
    EXPECT_FAILS(read_tensor_names(c), ErrorCode::input, "quant.format");
  }
  const WeightFiles bad = Fixture(Metadata{{"_quantization_metadata", "[]"}}).open();
  EXPECT_FAILS(read_tensor_names(bad), ErrorCode::input, "(_quantization_metadata): quant.json");
}

TEST(TensorNames, StrangeScalesAreRefusedByName) {
  const auto scaled = [](DType weight, DType scale, const Shape& shape) {
    return Fixture()
        .add("q.weight", weight, Shape{4, 8})
        .add("q.weight_scale", scale, shape)
        .open();
  };
  for (const Shape& shape : {Shape{4}, Shape{8, 1}, Shape{1, 4}, Shape{4, 3, 1}, Shape{4, 2, 2},
                             Shape{4, 0, 1}, Shape{0}, Shape{4, 2}, Shape{4, 1, 1, 1}}) {
    EXPECT_FAILS(read_tensor_names(scaled(DType::f8_e4m3, DType::f32, shape)), ErrorCode::input,
                 "quant.scale: tensor \"q.weight_scale\"");
  }
  EXPECT_FAILS(read_tensor_names(scaled(DType::f8_e4m3, DType::i32, Shape{})), ErrorCode::input,
               "this is I32");
  EXPECT_FAILS(read_tensor_names(scaled(DType::bf16, DType::f32, Shape{})), ErrorCode::input,
               "it has a scale but is BF16");
  const WeightFiles two = Fixture()
                              .add("q.weight", DType::f8_e4m3, Shape{4, 8})
                              .add("q.weight_scale", DType::f32, Shape{})
                              .add("q.scale_weight", DType::f32, Shape{})
                              .open();
  EXPECT_FAILS(read_tensor_names(two), ErrorCode::input, "both .scale_weight and .weight_scale");
  const WeightFiles none = Fixture()
                               .add("q.weight", DType::f8_e4m3, Shape{4, 8})
                               .note("q", R"({"format":"float8_e4m3fn"})")
                               .open();
  EXPECT_FAILS(read_tensor_names(none), ErrorCode::input, "marked as scaled but has no scale");
}

}  // namespace
}  // namespace ballast
