#include "models/wan/lora_merge.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/to_size.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/sparse_checkpoint.h"
#include "tests/support/tensor_file.h"

namespace ballast::wan {
namespace {

using support::sample_values;
using support::TensorFile;
using support::values_in;
using test::TempDir;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr std::int64_t kIn = 40, kOut = 150, kRank = 5;  // three tiles of rows, the last not full
const std::string kWeight = "blocks.0.ffn.0.weight", kBias = "blocks.0.ffn.0.bias";

// W' = W + strength scale up down + strength diff, in double; w as it is stored.
std::vector<double> reference(const std::vector<float>& w, const std::vector<float>& up,
                              const std::vector<float>& down, double factor) {
  std::vector<double> r(w.begin(), w.end());
  for (std::size_t o = 0; o < kOut; ++o) {
    for (std::size_t i = 0; i < kIn; ++i) {
      for (std::size_t k = 0; k < kRank; ++k) {
        r[o * kIn + i] += factor * static_cast<double>(up[o * kRank + k]) *
                          static_cast<double>(down[k * kIn + i]);
      }
    }
  }
  return r;
}

TensorFile base_model(DType dtype) {
  TensorFile file(Metadata{{"who", "me"}});
  file.add(kWeight, dtype, {kOut, kIn}, 1).add(kBias, dtype, {kOut}, 2);
  file.add("blocks.0.norm3.weight", DType::f32, {kIn}, 3);
  return file;
}

std::string lora_file(const TempDir& dir, const std::string& name = "lora.safetensors",
                      std::int64_t in = kIn) {
  TensorFile file;
  file.add("lora_unet_blocks_0_ffn_0.lora_down.weight", DType::f32, {kRank, in}, 11)
      .add("lora_unet_blocks_0_ffn_0.lora_up.weight", DType::f32, {kOut, kRank}, 12)
      .add("lora_unet_blocks_0_ffn_0.alpha", DType::f32, {}, std::vector{2.5f});
  return file.write(dir, name);
}

struct Merge {
  double strength = 0.75;
  std::optional<DType> dtype = {};
  int threads = 2;
};
std::string merge(const TempDir& dir, const std::string& model,
                  const std::vector<std::string>& loras, const Merge& m = {}) {
  const WeightFiles checkpoint = WeightFiles::open(model, DiskMode::buffered);
  const TensorMap names(checkpoint);
  std::vector<LoraReader> readers;
  std::vector<LoraStrength> strengths;
  readers.reserve(loras.size());
  for (const std::string& path : loras) {
    readers.push_back(LoraReader::open(path));
    strengths.push_back({&readers.back(), m.strength});
  }
  ThreadPool pool(m.threads);
  LoraMerge merge(checkpoint, names, strengths, pool);
  std::uint64_t written = 0;
  const MergeOptions options = {.dtype = m.dtype,
                                .progress = [&](std::uint64_t n) { written += n; }};
  write_merged(dir.path("merged.safetensors"), checkpoint, names, merge, options);
  EXPECT_EQ(written, std::filesystem::file_size(dir.path("merged.safetensors")));
  EXPECT_EQ(written, merged_bytes(checkpoint, names, options));
  return dir.path("merged.safetensors");
}

void expect_near(const std::vector<float>& got, const std::vector<double>& wanted, double relative,
                 double absolute) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], wanted[i], relative * std::abs(wanted[i]) + absolute) << i;
  }
}

TEST(LoraMerge, WeightsAreTheSumInEveryDtype) {
  for (const auto& [dtype, rounding] :
       {std::pair(DType::f32, 0x1p-24), std::pair(DType::bf16, 0x1p-8),
        std::pair(DType::f16, 0x1p-11)}) {
    const TempDir dir;
    const std::string model = base_model(dtype).write(dir, "model.safetensors");
    const std::string out = merge(dir, model, {lora_file(dir)});
    const auto wanted = reference(values_in(model, kWeight), sample_values(12, kOut * kRank),
                                  sample_values(11, kRank * kIn), 0.75 * 2.5 / kRank);
    expect_near(values_in(out, kWeight), wanted, rounding, 2e-6);  // products of about 10, in f32
    EXPECT_EQ(values_in(out, kBias), values_in(model, kBias));
    const SafetensorsFile file = SafetensorsFile::open(out);
    EXPECT_EQ(file.dtype(file.get(kWeight)), dtype);
    EXPECT_EQ(file.metadata().at("who"), "me");
  }
}

TEST(LoraMerge, SeveralLorasAndDifferencesAddUp) {
  const TempDir dir;
  const std::string model = base_model(DType::f32).write(dir, "model.safetensors");
  const std::string factors = lora_file(dir);
  TensorFile differences;
  differences.add("diffusion_model.blocks.0.ffn.0.diff", DType::f32, {kOut, kIn}, 21)
      .add("diffusion_model.blocks.0.ffn.0.diff_b", DType::f32, {kOut}, 22)
      .add("diffusion_model.blocks.0.norm3.diff", DType::f32, {kIn}, 23);
  const std::string out =
      merge(dir, model, {factors, differences.write(dir, "diff.safetensors"), factors});
  auto wanted = reference(values_in(model, kWeight), sample_values(12, kOut * kRank),
                          sample_values(11, kRank * kIn), 2 * 0.75 * 2.5 / kRank);
  const auto diff = sample_values(21, kOut * kIn);
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += 0.75 * static_cast<double>(diff[i]);
  expect_near(values_in(out, kWeight), wanted, 0, 4e-6);
  const auto added = [&](const std::string& name, std::uint64_t seed) {
    const auto before = values_in(model, name), after = values_in(out, name);
    const auto d = sample_values(seed, std::ssize(before));
    for (std::size_t i = 0; i < d.size(); ++i) {
      const double change = 0.75 * static_cast<double>(d[i]), sum = before[i] + change;
      // The product and the sum are rounded, or both at once: the compiler may fuse them.
      const double roundings = 0x1p-24 * (std::abs(change) + std::abs(sum));
      EXPECT_NEAR(after[i], sum, roundings) << name;
    }
  };
  added(kBias, 22);
  added("blocks.0.norm3.weight", 23);
}

TEST(LoraMerge, StrengthZeroChangesNoBit) {
  const TempDir dir;
  const std::string model = base_model(DType::bf16).write(dir, "model.safetensors");
  const std::string out = merge(dir, model, {lora_file(dir)}, {.strength = 0});
  for (const std::string& name : {kWeight, kBias}) {
    EXPECT_EQ(values_in(out, name), values_in(model, name));
  }
}

TEST(LoraMerge, BitsDependOnNeitherThreadsNorRowsAskedFor) {
  const TempDir dir;
  const std::string model = base_model(DType::f32).write(dir, "model.safetensors");
  const std::string lora = lora_file(dir);
  const auto two = values_in(merge(dir, model, {lora}), kWeight);
  EXPECT_EQ(values_in(merge(dir, model, {lora}, {.threads = 1}), kWeight), two);
  const WeightFiles checkpoint = WeightFiles::open(model);
  const TensorMap names(checkpoint);
  const LoraReader reader = LoraReader::open(lora);
  ThreadPool pool(3);
  LoraMerge merge(checkpoint, names, std::vector{LoraStrength{&reader, 0.75}}, pool);
  std::vector<float> rows(kOut * kIn);
  for (std::int64_t first = 0; first < kOut; first += LoraMerge::kRows) {
    const std::int64_t count = std::min(LoraMerge::kRows, kOut - first);
    merge.rows(*names.find(kWeight), first, count,
               std::span(rows).subspan(to_size(first * kIn), to_size(count * kIn)));
  }
  EXPECT_EQ(rows, two);
}

// An fp8 weight with a scale for the tensor, for each row, or for groups of eight columns.
struct Fp8Model {
  explicit Fp8Model(ScaleLayout layout, const TempDir& dir, DType scale_dtype = DType::f32) {
    const std::int64_t groups = layout == ScaleLayout::group ? kIn / 8 : 1;
    const std::int64_t count = layout == ScaleLayout::tensor ? 1 : kOut * groups;
    Shape shape;
    if (layout == ScaleLayout::row) shape = {kOut, 1};
    if (layout == ScaleLayout::group) shape = {kOut, groups, 1};
    std::vector<float> stored = sample_values(1, kOut * kIn, 100);
    for (float& v : stored)
      v = to_f32(from_f32(v, DType::f8_e4m3, Rounding::saturating), DType::f8_e4m3);
    std::vector<float> scales(to_size(count));
    for (std::size_t i = 0; i < scales.size(); ++i)
      scales[i] = 0.01f + 0.0005f * static_cast<float>(i % 7);
    TensorFile file;
    file.add("model.diffusion_model." + kWeight, DType::f8_e4m3, {kOut, kIn}, stored)
        .add("model.diffusion_model.blocks.0.ffn.0.scale_weight", scale_dtype, shape, scales)
        .add("model.diffusion_model.blocks.0.ffn.0.scale_input", DType::f32, {}, std::vector{1.0f})
        .add("model.diffusion_model.blocks.0.ffn.2.weight", DType::f8_e4m3, {8, 8}, 5)
        .add("model.diffusion_model.scaled_fp8", DType::f8_e4m3, {0}, std::vector<float>{});
    path = file.write(dir, "fp8.safetensors");
    scales = values_in(path, "model.diffusion_model.blocks.0.ffn.0.scale_weight");
    const std::size_t width = to_size(kOut * kIn / count);
    for (std::size_t i = 0; i < stored.size(); ++i) stored[i] *= scales[i / width];
    weight = stored;
  }
  std::string path;
  std::vector<float> weight;  // what it means
};

TEST(LoraMerge, ScaledFp8KeepsItsConvention) {
  for (const ScaleLayout layout : {ScaleLayout::tensor, ScaleLayout::row, ScaleLayout::group}) {
    for (const DType scale_dtype : {DType::f32, DType::bf16}) {
      const TempDir dir;
      const Fp8Model model(layout, dir, scale_dtype);
      const std::string out = merge(dir, model.path, {lora_file(dir)});
      const auto wanted = reference(model.weight, sample_values(12, kOut * kRank),
                                    sample_values(11, kRank * kIn), 0.75 * 2.5 / kRank);
      const std::string prefix = "model.diffusion_model.";
      const auto scales = values_in(out, prefix + "blocks.0.ffn.0.scale_weight");
      auto got = values_in(out, prefix + kWeight);
      const std::size_t width = got.size() / scales.size();
      for (std::size_t s = 0; s < scales.size(); ++s) {
        double most = 0;
        for (std::size_t i = s * width; i < (s + 1) * width; ++i) {
          most = std::max(most, std::abs(wanted[i]));
          got[i] *= scales[s];
        }
        EXPECT_NEAR(scales[s], most / 448,
                    most / 448 * (scale_dtype == DType::f32 ? 1e-6 : 0x1p-8));
        // Half a step of three bits, or half the smallest subnormal.
        for (std::size_t i = s * width; i < (s + 1) * width; ++i) {
          ASSERT_NEAR(got[i], wanted[i], std::abs(wanted[i]) * 0x1.02p-4 + scales[s] * 0x1p-9) << i;
        }
      }
      const SafetensorsFile file = SafetensorsFile::open(out),
                            before = SafetensorsFile::open(model.path);
      ASSERT_EQ(file.entries().size(), before.entries().size());
      EXPECT_EQ(values_in(out, prefix + "blocks.0.ffn.2.weight"),
                values_in(model.path, prefix + "blocks.0.ffn.2.weight"));
      EXPECT_NE(file.find(prefix + "scaled_fp8"), nullptr);
    }
  }
}

TEST(LoraMerge, ADtypeTakesScalesAway) {
  const TempDir dir;
  const Fp8Model model(ScaleLayout::row, dir);
  const std::string out = merge(dir, model.path, {lora_file(dir)}, {.dtype = DType::bf16});
  const SafetensorsFile file = SafetensorsFile::open(out);
  ASSERT_EQ(file.entries().size(), 2u);
  for (const SafetensorsEntry& e : file.entries()) EXPECT_EQ(e.dtype, FileDType::bf16) << e.name;
  const auto wanted = reference(model.weight, sample_values(12, kOut * kRank),
                                sample_values(11, kRank * kIn), 0.75 * 2.5 / kRank);
  expect_near(values_in(out, "model.diffusion_model." + kWeight), wanted, 0x1p-8, 2e-6);
}

TEST(LoraMerge, RefusesLorasOfAnotherModel) {
  const TempDir dir;
  const std::string model = base_model(DType::f32).write(dir, "model.safetensors");
  EXPECT_FAILS(merge(dir, model, {lora_file(dir, "wide.safetensors", kIn + 1)}), ErrorCode::input,
               "lora_down.weight does not fit the model: it makes a 150 x 41 matrix");
  TensorFile other;
  other.add("diffusion_model.blocks.7.ffn.0.lora_A.weight", DType::f32, {kRank, kIn}, 1)
      .add("diffusion_model.blocks.7.ffn.0.lora_B.weight", DType::f32, {kOut, kRank}, 2);
  EXPECT_FAILS(merge(dir, model, {other.write(dir)}), ErrorCode::input, "changes nothing in");
  other.add("diffusion_model.blocks.0.ffn.0.diff_b", DType::f32, {kOut}, 3);
  const WeightFiles checkpoint = WeightFiles::open(model);
  const TensorMap names(checkpoint);
  const LoraReader reader = LoraReader::open(other.write(dir));
  ThreadPool pool(1);
  const LoraMerge partly(checkpoint, names, std::vector{LoraStrength{&reader, 1}}, pool);
  EXPECT_THAT(partly.unused(), Contains(HasSubstr("the model has no blocks.7.ffn.0.weight")));
  EXPECT_EQ(partly.changed(), 1);
}

TEST(LoraMerge, ATensorThatIsNoNumberAnyMoreIsNamed) {
  const TempDir dir;
  const Fp8Model scaled(ScaleLayout::tensor, dir);
  std::vector<std::string> models = {scaled.path};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    models.push_back(base_model(dtype).write(dir, fmt::format("{}.safetensors", name_of(dtype))));
  }
  for (const float bad : {NAN, INFINITY}) {
    std::vector<float> change(kOut * kIn, 0.0f);
    change[77] = bad;
    TensorFile lora;
    lora.add("diffusion_model.blocks.0.ffn.0.diff", DType::f32, {kOut, kIn}, change);
    for (const std::string& model : models) {
      EXPECT_FAILS(merge(dir, model, {lora.write(dir)}), ErrorCode::input, kWeight + " holds ");
      EXPECT_FALSE(std::filesystem::exists(dir.path("merged.safetensors"))) << model;
    }
  }
}

TEST(LoraMerge, HoldsAFewPiecesOfALargeMatrix) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  support::SparseCheckpoint model, lora;
  model.add("blocks.0.ffn.0.weight", DType::f32, {8192, 2048});  // 64 MiB
  lora.add("diffusion_model.blocks.0.ffn.0.lora_A.weight", DType::f32, {16, 2048});
  lora.add("diffusion_model.blocks.0.ffn.0.lora_B.weight", DType::f32, {8192, 16});
  const std::string model_path = model.write(), lora_path = lora.write();
  const TempDir dir;
  allocation_hook::arm();
  merge(dir, model_path, {lora_path});
  const auto seen = allocation_hook::disarm();
  EXPECT_LT(seen.heap_bytes, 24 << 20);
}

}  // namespace
}  // namespace ballast::wan
