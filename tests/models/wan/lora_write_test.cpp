#include "models/wan/lora_write.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/to_size.h"
#include "models/wan/lora_read.h"
#include "tests/support/errors.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/golden_file.h"
#include "tests/support/tensor_file.h"

namespace ballast::wan::lora_write_test {
namespace {

using support::TensorFile;
using support::values_in;
using test::TempDir;
using ::testing::AllOf;
using ::testing::Contains;

constexpr std::int64_t kRank = 4, kDim = 16, kFfn = 24;

const std::vector<std::string> kModules = {
    "self_attn.q",  "self_attn.k",  "self_attn.v",  "self_attn.o", "cross_attn.q",
    "cross_attn.k", "cross_attn.v", "cross_attn.o", "ffn.0",       "ffn.2"};

Shape down_shape(const std::string& module) {
  return {kRank, module.ends_with("ffn.2") ? kFfn : kDim};
}
Shape up_shape(const std::string& module) {
  return {module.ends_with("ffn.0") ? kFfn : kDim, kRank};
}

// A complete LoRA of two blocks in dialect A.
std::string comfy_file(const TempDir& dir, const std::string& name, DType dtype) {
  TensorFile file({{"format", "pt"}, {"ballast.step", "100"}});
  std::uint64_t seed = 0;
  for (int block = 0; block < 2; ++block) {
    for (const std::string& m : kModules) {
      const std::string key = fmt::format("diffusion_model.blocks.{}.{}", block, m);
      file.add(key + ".lora_A.weight", dtype, down_shape(m), ++seed);
      file.add(key + ".lora_B.weight", dtype, up_shape(m), ++seed);
    }
  }
  return file.write(dir, name);
}

LoraWritten convert_file(const std::string& in, const std::string& out, LoraFormat format,
                         std::optional<DType> dtype = {}) {
  const LoraReader lora = LoraReader::open(in);
  return write_lora(out, lora.modules(),
                    {.format = format, .dtype = dtype, .metadata = lora.metadata()});
}

std::vector<std::string> names_in(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path, DiskMode::buffered);
  std::vector<std::string> names;
  for (const SafetensorsEntry& e : file.entries()) names.emplace_back(e.name);
  return names;
}

TEST(LoraWrite, FilesOfScaleOneComeBackByteForByte) {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) {
    for (const LoraFormat through : {LoraFormat::kohya, LoraFormat::peft}) {
      const TempDir dir;
      const std::string a = comfy_file(dir, "a.safetensors", dtype);
      const LoraWritten w = convert_file(a, dir.path("b.safetensors"), through);
      EXPECT_EQ(w.modules, 20);
      EXPECT_EQ(w.filled, 0);
      EXPECT_EQ(w.bytes, std::filesystem::file_size(dir.path("b.safetensors")));
      EXPECT_NE(test::read_whole(dir.path("b.safetensors")), test::read_whole(a));
      convert_file(dir.path("b.safetensors"), dir.path("c.safetensors"), LoraFormat::comfy);
      EXPECT_EQ(test::read_whole(dir.path("c.safetensors")), test::read_whole(a))
          << name_of(dtype) << " " << name_of(through);
    }
  }
}

TEST(LoraWrite, NamesAreThoseOfTheOtherPrograms) {
  struct Row {
    std::string official, kohya, diffusers;
  };
  const std::vector<Row> rows = {
      {"blocks.0.self_attn.q", "blocks_0_self_attn_q", "blocks.0.attn1.to_q"},
      {"blocks.0.self_attn.k", "blocks_0_self_attn_k", "blocks.0.attn1.to_k"},
      {"blocks.0.self_attn.v", "blocks_0_self_attn_v", "blocks.0.attn1.to_v"},
      {"blocks.0.self_attn.o", "blocks_0_self_attn_o", "blocks.0.attn1.to_out.0"},
      {"blocks.0.cross_attn.q", "blocks_0_cross_attn_q", "blocks.0.attn2.to_q"},
      {"blocks.0.cross_attn.k", "blocks_0_cross_attn_k", "blocks.0.attn2.to_k"},
      {"blocks.0.cross_attn.v", "blocks_0_cross_attn_v", "blocks.0.attn2.to_v"},
      {"blocks.0.cross_attn.o", "blocks_0_cross_attn_o", "blocks.0.attn2.to_out.0"},
      {"blocks.0.cross_attn.k_img", "blocks_0_cross_attn_k_img", "blocks.0.attn2.add_k_proj"},
      {"blocks.0.cross_attn.v_img", "blocks_0_cross_attn_v_img", "blocks.0.attn2.add_v_proj"},
      {"blocks.0.ffn.0", "blocks_0_ffn_0", "blocks.0.ffn.net.0.proj"},
      {"blocks.0.ffn.2", "blocks_0_ffn_2", "blocks.0.ffn.net.2"},
      {"time_projection.1", "time_projection_1", "condition_embedder.time_proj"},
      {"time_embedding.0", "time_embedding_0", "condition_embedder.time_embedder.linear_1"},
      {"text_embedding.2", "text_embedding_2", "condition_embedder.text_embedder.linear_2"},
      {"img_emb.proj.1", "img_emb_proj_1", "condition_embedder.image_embedder.ff.net.0.proj"},
      {"head.head", "head_head", "proj_out"},
      {"patch_embedding", "patch_embedding", "patch_embedding"},
  };
  std::vector<LoraModule> modules;
  for (const Row& row : rows) {
    LoraModule m;
    m.name = row.official;
    m.rank = kRank, m.alpha = kRank;
    m.down = {.shape = down_shape(row.official)};
    m.up = {.shape = up_shape(row.official)};
    modules.push_back(m);
  }
  const TempDir dir;
  const auto written = [&](LoraFormat format) {
    write_lora(dir.path("x.safetensors"), modules, {.format = format, .dtype = {}, .metadata = {}});
    return names_in(dir.path("x.safetensors"));
  };
  const auto comfy = written(LoraFormat::comfy), kohya = written(LoraFormat::kohya),
             peft = written(LoraFormat::peft);
  EXPECT_EQ(comfy.size(), 2 * rows.size());
  EXPECT_EQ(kohya.size(), 3 * rows.size());
  EXPECT_EQ(peft.size(), 2 * rows.size());
  for (const Row& row : rows) {
    EXPECT_THAT(comfy, AllOf(Contains("diffusion_model." + row.official + ".lora_A.weight"),
                             Contains("diffusion_model." + row.official + ".lora_B.weight")));
    EXPECT_THAT(kohya, AllOf(Contains("lora_unet_" + row.kohya + ".lora_down.weight"),
                             Contains("lora_unet_" + row.kohya + ".lora_up.weight"),
                             Contains("lora_unet_" + row.kohya + ".alpha")));
    EXPECT_THAT(peft, AllOf(Contains("transformer." + row.diffusers + ".lora_A.weight"),
                            Contains("transformer." + row.diffusers + ".lora_B.weight")));
  }
}

// up down of one module, in double.
std::vector<double> product(const LoraModule& m) {
  std::vector<float> down(to_size(m.down.elements())), up(to_size(m.up.elements()));
  m.down.read(0, down);
  m.up.read(0, up);
  std::vector<double> p(to_size(m.out() * m.in()));
  for (std::int64_t o = 0; o < m.out(); ++o) {
    for (std::int64_t i = 0; i < m.in(); ++i) {
      double sum = 0;
      for (std::int64_t r = 0; r < m.rank; ++r) {
        sum += static_cast<double>(up[to_size(o * m.rank + r)]) *
               static_cast<double>(down[to_size(r * m.in() + i)]);
      }
      p[to_size(o * m.in() + i)] = sum * m.scale();
    }
  }
  return p;
}

TEST(LoraWrite, AnotherScaleIsFoldedIntoTheFactors) {
  for (const float alpha : {2.0f, 0.125f, 3.0f, -4.0f, 0.0f, 0.001f}) {
    for (const LoraFormat to : {LoraFormat::comfy, LoraFormat::peft}) {
      const TempDir dir;
      TensorFile file;
      file.add("lora_unet_blocks_0_ffn_0.lora_down.weight", DType::f32, {kRank, kDim}, 1)
          .add("lora_unet_blocks_0_ffn_0.lora_up.weight", DType::f32, {kFfn, kRank}, 2)
          .add("lora_unet_blocks_0_ffn_0.alpha", DType::f32, {}, std::vector{alpha});
      const std::string in = file.write(dir);
      convert_file(in, dir.path("out.safetensors"), to);
      const LoraReader before = LoraReader::open(in),
                       after = LoraReader::open(dir.path("out.safetensors"));
      EXPECT_EQ(after.modules()[0].scale(), 1);
      const auto a = product(before.modules()[0]), b = product(after.modules()[0]);
      // A power of two costs nothing, any other factor one rounding of `down`.
      const double exponent = std::log2(std::abs(alpha));
      const double rounding = alpha == 0 || exponent == std::round(exponent) ? 0 : 0x1p-23;
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_NEAR(b[i], a[i], rounding * 10 * std::abs(alpha) + 1e-18) << alpha;
      }
    }
  }
}

TEST(LoraWrite, ScalesAreDividedByPowersOfTwo) {
  const auto expect = [](double scale, float down, float up) {
    const FoldedScale f = fold_scale(scale);
    EXPECT_EQ(f.down, down) << scale;
    EXPECT_EQ(f.up, up) << scale;
  };
  expect(1, 1, 1);
  expect(0.5, 0.5f, 1);
  expect(2, 2, 1);
  expect(1.0 / 32, 0.125f, 0.25f);
  expect(1.0 / 64, 0.125f, 0.125f);
  expect(-1.0 / 32, -0.125f, 0.25f);
  expect(0, 0, 1);
}

TEST(LoraWrite, KohyaKeepsAlphaAndOthersStoreNone) {
  const TempDir dir;
  TensorFile file(
      {{"ss_network_dim", "4"}, {"ss_training_comment", "mine"}, {"sshs_model_hash", "x"}});
  for (const std::string& m : kModules) {
    std::string key = "lora_unet_blocks_0_" + m;
    std::replace(key.begin(), key.end(), '.', '_');
    file.add(key + ".lora_down.weight", DType::f32, down_shape(m), 1)
        .add(key + ".lora_up.weight", DType::f32, up_shape(m), 2)
        .add(key + ".alpha", DType::f32, {}, std::vector{0.3f});
  }
  const std::string in = file.write(dir);
  convert_file(in, dir.path("b.safetensors"), LoraFormat::kohya, DType::bf16);
  const LoraReader b = LoraReader::open(dir.path("b.safetensors"));
  EXPECT_EQ(static_cast<float>(b.modules()[0].alpha), 0.3f);
  EXPECT_EQ(b.modules()[0].down.dtype, DType::bf16);
  EXPECT_EQ(b.metadata().at("ss_network_dim"), "4");
  EXPECT_EQ(b.metadata().at("ss_base_model_version"), "wan");
  EXPECT_EQ(b.metadata().at("modelspec.architecture"), "wan2.1/lora");
  EXPECT_EQ(b.metadata().at("ss_training_comment"), "mine");
  EXPECT_EQ(b.metadata().count("sshs_model_hash"), 0u);
  convert_file(in, dir.path("a.safetensors"), LoraFormat::comfy);
  const LoraReader a = LoraReader::open(dir.path("a.safetensors"));
  EXPECT_EQ(a.metadata(), (Metadata{{"format", "pt"}, {"ss_training_comment", "mine"}}));
}

TEST(LoraWrite, PeftMetadataNamesEveryModule) {
  const TempDir dir;
  convert_file(comfy_file(dir, "a.safetensors", DType::bf16), dir.path("c.safetensors"),
               LoraFormat::peft);
  const LoraReader c = LoraReader::open(dir.path("c.safetensors"));
  const auto j = nlohmann::json::parse(c.metadata().at("lora_adapter_metadata"));
  EXPECT_EQ(j.at("transformer.r"), 4);
  EXPECT_EQ(j.at("transformer.lora_alpha"), 4);
  EXPECT_EQ(j.at("transformer.peft_type"), "LORA");
  EXPECT_EQ(j.at("transformer.target_modules").size(), 20u);
  EXPECT_THAT(j.at("transformer.target_modules").get<std::vector<std::string>>(),
              Contains("blocks.1.attn2.to_out.0"));
}

LoraModule zeros(const std::string& name, std::int64_t rank, std::int64_t in, std::int64_t out) {
  LoraModule m;
  m.name = name;
  m.rank = rank, m.alpha = static_cast<double>(rank);
  m.down = {.shape = {rank, in}, .dtype = DType::bf16};
  m.up = {.shape = {out, rank}, .dtype = DType::bf16};
  return m;
}

TEST(LoraWrite, PeftConfigListsTheRanksThatDiffer) {
  const std::vector<LoraModule> modules = {zeros("blocks.0.self_attn.q", 4, 16, 16),
                                           zeros("blocks.0.self_attn.k", 2, 16, 16),
                                           zeros("blocks.0.self_attn.v", 4, 16, 16)};
  const TempDir dir;
  write_adapter_config(dir.path(), modules, 0.25);
  const auto j = nlohmann::json::parse(test::read_whole(dir.path("adapter_config.json")));
  EXPECT_EQ(j.at("r"), 4);
  EXPECT_EQ(j.at("lora_dropout"), 0.25);
  EXPECT_EQ(j.at("rank_pattern"), (nlohmann::json{{"blocks.0.self_attn.k", 2}}));
  EXPECT_EQ(j.at("alpha_pattern"), j.at("rank_pattern"));
  // Beside the file it says what the file means already.
  write_lora(dir.path("adapter_model.safetensors"), modules, {});
  const LoraReader lora = LoraReader::open(dir.path());
  for (const LoraModule& m : lora.modules()) EXPECT_EQ(m.scale(), 1) << m.name;
}

TEST(LoraWrite, KohyaFilesAreCompletedWithZeros) {
  const TempDir dir;
  const std::string out = dir.path("x.safetensors");
  const LoraModule q = zeros("blocks.1.self_attn.q", 4, 16, 16);
  const LoraModule up = zeros("blocks.0.ffn.0", 8, 16, 24);
  const auto write = [&](const std::vector<LoraModule>& modules, const Config* model = nullptr) {
    return write_lora(out, modules,
                      {.format = LoraFormat::kohya, .dtype = {}, .metadata = {}, .model = model});
  };
  const LoraWritten w = write({q, up, zeros("blocks.1.ffn.2", 4, 24, 16)});
  EXPECT_EQ(w.modules, 20);
  EXPECT_EQ(w.filled, 17);
  const LoraReader lora = LoraReader::open(out);
  ASSERT_EQ(lora.modules().size(), 20u);
  EXPECT_EQ(lora.metadata().at("ss_network_dim"), "Dynamic");
  const LoraModule& filled = *lora.find("blocks.0.ffn.2");
  EXPECT_EQ(filled.down.shape, (Shape{4, 24}));  // the rank most modules have
  EXPECT_EQ(filled.up.shape, (Shape{16, 4}));
  EXPECT_EQ(filled.alpha, 4);
  for (const double v : product(filled)) EXPECT_EQ(v, 0);

  EXPECT_FAILS(write({q}), ErrorCode::input, "none of its modules tells the size");
  const Config model = {.name = "m",
                        .description = "",
                        .dim = 16,
                        .ffn_dim = 24,
                        .heads = 1,
                        .layers = 3,
                        .in_dim = 4,
                        .out_dim = 4};
  EXPECT_EQ(write({q}, &model).modules, 30);
  LoraModule half = q;
  half.alpha = 2;
  EXPECT_EQ(write({half}, &model).modules, 30);
  EXPECT_EQ(LoraReader::open(out).metadata().at("ss_network_alpha"), "2");
}

TEST(LoraWrite, DifferencesGoWhereTheFormatHasRoom) {
  const TempDir dir;
  TensorFile file;
  file.add("diffusion_model.blocks.0.ffn.0.lora_down.weight", DType::bf16, {kRank, kDim}, 1)
      .add("diffusion_model.blocks.0.ffn.0.lora_up.weight", DType::bf16, {kFfn, kRank}, 2)
      .add("diffusion_model.blocks.0.ffn.0.diff_b", DType::bf16, {kFfn}, 3);
  const std::string in = file.write(dir);
  const std::string out = dir.path("out.safetensors");
  convert_file(in, out, LoraFormat::peft);
  EXPECT_THAT(names_in(out), Contains("transformer.blocks.0.ffn.net.0.proj.lora_B.bias"));
  convert_file(out, dir.path("back.safetensors"), LoraFormat::comfy);
  EXPECT_EQ(values_in(dir.path("back.safetensors"), "diffusion_model.blocks.0.ffn.0.diff_b"),
            values_in(in, "diffusion_model.blocks.0.ffn.0.diff_b"));
  file.add("diffusion_model.blocks.0.norm3.diff", DType::bf16, {kDim}, 4);
  const std::string norms = file.write(dir);
  EXPECT_FAILS(convert_file(norms, out, LoraFormat::peft), ErrorCode::input,
               "diffusion_model.blocks.0.norm3.diff: PEFT files hold factors only");
  convert_file(norms, out, LoraFormat::kohya);
  EXPECT_THAT(names_in(out), Contains("lora_unet_blocks_0_norm3.diff"));
}

TEST(LoraWrite, NumbersThatDoNotFitAreNamed) {
  LoraModule m = zeros("blocks.0.ffn.0", 1, 2, 1);
  const std::vector<float> down = {1, 70000}, up = {1};
  m.down = {.shape = {1, 2}, .memory = reinterpret_cast<const std::byte*>(down.data())};
  m.up = {.shape = {1, 1}, .memory = reinterpret_cast<const std::byte*>(up.data())};
  const TempDir dir;
  const std::string path = dir.write("x.safetensors", "old");
  const auto write = [&](DType dtype) {
    write_lora(path, std::span(&m, 1), {.format = {}, .dtype = dtype, .metadata = {}});
  };
  EXPECT_FAILS(write(DType::f16), ErrorCode::input, "blocks.0.ffn.0.lora_A.weight: element 1");
  EXPECT_EQ(test::read_whole(path), "old");
  write(DType::bf16);
  EXPECT_EQ(values_in(path, "diffusion_model.blocks.0.ffn.0.lora_A.weight")[0], 1);
}

TEST(LoraWrite, NumbersThatMustBeFetchedGiveTheSameFile) {
  std::vector<float> down(3 * 50'000), up(3 * 2);  // more than one piece
  for (std::size_t i = 0; i < down.size(); ++i) down[i] = static_cast<float>(i) / 1024;
  for (std::size_t i = 0; i < up.size(); ++i) up[i] = static_cast<float>(i);
  const TempDir dir;
  const auto write = [&](bool fetched, DType dtype) {
    const auto numbers = [&](const std::vector<float>& v, const Shape& shape) {
      LoraNumbers n = {.shape = shape};
      const std::span<const std::byte> bytes = std::as_bytes(std::span(v));
      if (!fetched) {
        n.memory = bytes.data();
      } else {
        n.fetch = [bytes](std::uint64_t first, std::span<std::byte> to) {
          std::ranges::copy(bytes.subspan(first, to.size()), to.begin());
        };
      }
      return n;
    };
    LoraModule m = zeros("blocks.0.ffn.0", 3, 50'000, 2);
    m.down = numbers(down, {3, 50'000});
    m.up = numbers(up, {2, 3});
    const std::string path = dir.path("x.safetensors");
    write_lora(path, std::span(&m, 1), {.format = {}, .dtype = dtype, .metadata = {}});
    return test::read_whole(path);
  };
  EXPECT_EQ(write(true, DType::f32), write(false, DType::f32));
  EXPECT_EQ(write(true, DType::bf16), write(false, DType::bf16));
}

TEST(LoraWrite, AFullDiskLeavesTheOldFile) {
  const TempDir dir;
  const std::string a = comfy_file(dir, "a.safetensors", DType::f32);
  const std::string path = dir.write("x.safetensors", "old");
  {
    const test::FileSizeLimit limit(6'000);
    EXPECT_FAILS(convert_file(a, path, LoraFormat::kohya), ErrorCode::io, "File too large");
  }
  EXPECT_EQ(test::read_whole(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 2);
}

TEST(LoraWrite, GoldenFactorsComeBackInEveryFormat) {
  const support::GoldenFile golden("dit_lora");
  std::map<std::string, support::SampleTensor> kept;
  std::vector<LoraModule> modules;
  for (int block = 0; block < 2; ++block) {
    for (const auto& target : golden.config().at("lora_targets")) {
      LoraModule m;
      m.name = fmt::format("blocks.{}.{}", block, target.get<std::string>());
      m.rank = 4, m.alpha = 8;  // as the case has it
      for (const auto& [suffix, to] :
           {std::pair(".lora_A.weight", &m.down), std::pair(".lora_B.weight", &m.up)}) {
        const std::string key = "diffusion_model." + m.name + suffix;
        const auto& tensor = kept.emplace(key, golden[key]).first->second;
        *to = {.shape = tensor.shape(), .memory = tensor.view().data};
      }
      modules.push_back(m);
    }
  }
  for (const LoraFormat format : {LoraFormat::comfy, LoraFormat::kohya, LoraFormat::peft}) {
    const TempDir dir;
    const std::string path = dir.path("x.safetensors");
    write_lora(path, modules, {.format = format, .dtype = DType::f32, .metadata = {}});
    const LoraReader lora = LoraReader::open(path);
    ASSERT_EQ(lora.modules().size(), 20u);
    for (const LoraModule& m : modules) {
      const LoraModule* back = lora.find(m.name);
      ASSERT_NE(back, nullptr) << m.name;
      EXPECT_EQ(product(*back), product(m)) << m.name;  // scale 2: exact either way
    }
  }
}

}  // namespace
}  // namespace ballast::wan::lora_write_test
