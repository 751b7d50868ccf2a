#include "models/t5/recognise.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "models/t5/names.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_t5.h"

namespace ballast::t5 {
namespace {

using support::tiny_t5;
using support::tiny_umt5_encoder;
using support::write_t5;

std::int64_t parameters(const Config& c, int first_group, int end_group) {
  std::int64_t sum = 0;
  each_parameter(c, [&](int group, const std::string&, const Shape& shape) {
    if (group >= first_group && group < end_group) sum += shape.elements();
  });
  return sum;
}

TEST(T5Presets, HaveThePublishedNumberOfParameters) {
  const auto total = [](const char* name) {
    const Config c = *find_preset(name);
    return parameters(c, 0, group_count(c));
  };
  EXPECT_EQ(total("t5-v1.1-small"), 76'961'152);
  EXPECT_EQ(total("t5-v1.1-base"), 247'577'856);
  EXPECT_EQ(total("t5-v1.1-large"), 783'150'080);
  EXPECT_EQ(total("t5-v1.1-xl"), 2'849'757'184);
  EXPECT_EQ(total("t5-v1.1-xxl"), 11'135'332'352);
  EXPECT_EQ(total("t5-3b"), 2'851'598'336);
  EXPECT_EQ(total("umt5-xxl-encoder"), 4'630'761'472);  // rows of the embedding stay in the file
  const Config xl = *find_preset("t5-v1.1-xl");
  EXPECT_EQ(parameters(xl, 1, 2), 48'238'592);
  EXPECT_EQ(parameters(xl, block_group(xl, Side::decoder, 0), block_group(xl, Side::decoder, 1)),
            65'017'856);
  for (const Config& c : presets()) validate(c);
  EXPECT_FALSE(find_preset("t5-v1.2"));
}

TEST(T5Config, ReadsWhatTransformersWrites) {
  const Config c = read_config({.text = R"({"model_type": "t5", "d_model": 2048, "d_kv": 64,
      "d_ff": 5120, "num_layers": 24, "num_decoder_layers": 24, "num_heads": 32, "vocab_size": 32128,
      "relative_attention_num_buckets": 32, "feed_forward_proj": "gated-gelu", "n_positions": 512,
      "layer_norm_epsilon": 1e-6, "tie_word_embeddings": false, "pad_token_id": 0,
      "task_specific_params": {"a": [1, {"b": null}]}, "decoder_start_token_id": null})",
                                .path = "config.json",
                                .rule = "config"});
  const Config xl = *find_preset("t5-v1.1-xl");
  EXPECT_EQ(c.d_model, xl.d_model);
  EXPECT_EQ(c.heads, xl.heads);
  EXPECT_EQ(c.decoder_layers, 24);
  EXPECT_TRUE(c.gated);
  EXPECT_FALSE(c.tied);
  EXPECT_FALSE(c.scaled_head);
  EXPECT_FALSE(c.bias_per_block);
  EXPECT_EQ(c.max_distance, 128);
}

TEST(T5Config, HasTransformersDefaultsForWhatIsAbsent) {
  const Config c = read_config({.text = R"({"num_layers": 7})", .path = "", .rule = "config"});
  EXPECT_EQ(c.d_model, 512);
  EXPECT_EQ(c.d_ff, 2048);
  EXPECT_EQ(c.decoder_layers, 7);
  EXPECT_FALSE(c.gated);
  EXPECT_TRUE(c.tied);
  EXPECT_TRUE(c.scaled_head);
  EXPECT_EQ(c.decoder_start, 0);
}

TEST(T5Config, RefusesWhatIsBrokenOrAbsurd) {
  for (const char* text : {"",
                           "[]",
                           "{",
                           R"({"d_model": "512"})",
                           R"({"d_model": 0})",
                           R"({"d_model": -3})",
                           R"({"d_model": 99999999999999999999})",
                           R"({"num_layers": 1e9})",
                           R"({"num_heads": 4096, "d_kv": 4096})",
                           R"({"feed_forward_proj": "gated-silu"})",
                           R"({"feed_forward_proj": 3})",
                           R"({"relative_attention_num_buckets": 1})",
                           R"({"relative_attention_num_buckets": 1000000})",
                           R"({"relative_attention_num_buckets": 33})",
                           R"({"relative_attention_max_distance": 2})",
                           R"({"layer_norm_epsilon": 0})",
                           R"({"layer_norm_epsilon": -1})",
                           R"({"vocab_size": 0})",
                           R"({"eos_token_id": 32128})",
                           R"({"pad_token_id": [0]})",
                           R"({"tie_word_embeddings": 1})",
                           R"({"d_ff": 12} trailing)",
                           "\xff\xfe"}) {
    SCOPED_TRACE(text);
    EXPECT_FAILS(read_config({.text = text, .path = "x", .rule = "config"}), ErrorCode::input, "");
  }
}

// Wan's module lists its tensors like this.
std::vector<std::string> wan_names(std::int64_t layers) {
  std::vector<std::string> names = {"token_embedding.weight", "norm.weight"};
  for (std::int64_t b = 0; b < layers; ++b) {
    for (const char* module :
         {"norm1", "attn.q", "attn.k", "attn.v", "attn.o", "pos_embedding.embedding", "norm2",
          "ffn.gate.0", "ffn.fc1", "ffn.fc2"}) {
      names.push_back(fmt::format("blocks.{}.{}.weight", b, module));
    }
  }
  return names;
}

std::string wan_name(const Config& c, const std::string& name) {
  for (const std::string& wan : wan_names(c.layers)) {
    if (transformers_name(wan) == name) return wan;
  }
  return "?";
}

TEST(T5Names, OfWanAreOneForOneThoseOfTransformers) {
  const Config c = *find_preset("umt5-xxl-encoder");
  std::set<std::string> translated, expected;
  for (const std::string& wan : wan_names(c.layers)) {
    const auto name = transformers_name(wan);
    ASSERT_TRUE(name) << wan;
    translated.insert(*name);
    EXPECT_EQ(transformers_name("encoder." + wan), name) << "some files have the module's prefix";
  }
  support::each_stored(c, [&](const std::string& name, const Shape&) { expected.insert(name); });
  EXPECT_EQ(translated, expected);
  EXPECT_EQ(expected.size(), 242u);
  EXPECT_EQ(transformers_name("decoder.blocks.3.norm3.weight"),
            "decoder.block.3.layer.2.layer_norm.weight");
  EXPECT_EQ(transformers_name("head.weight"), "lm_head.weight");
  for (const char* none :
       {"", "blocks.0.attn.q.bias", "blocks..attn.q.weight", "blocks.0.attn.x.weight",
        "blocks.99999999.attn.q.weight", "blocks.01.norm1.weight", "blocks.0.weight",
        "encoder.weight", "encoder.", "blocks.0", "decoder.blocks.0.attn.q.weight"}) {
    EXPECT_FALSE(transformers_name(none)) << none;
  }
}

TEST(T5Recognise, FindsTheModelInEveryDialect) {
  const Config c = tiny_umt5_encoder();
  const auto found = [&](const std::string& path, Dialect dialect) {
    const WeightFiles checkpoint = WeightFiles::open(path);
    const TensorMap names(checkpoint);
    EXPECT_EQ(names.dialect(), dialect);
    const Config f = model_config(checkpoint, names);
    EXPECT_EQ(f.name, "t5");
    EXPECT_EQ(f.d_model, c.d_model);
    EXPECT_EQ(f.d_kv, c.d_kv);
    EXPECT_EQ(f.d_ff, c.d_ff);
    EXPECT_EQ(f.heads, c.heads);
    EXPECT_EQ(f.layers, c.layers);
    EXPECT_EQ(f.decoder_layers, 0);
    EXPECT_EQ(f.vocabulary, c.vocabulary);
    EXPECT_TRUE(f.bias_per_block);
    EXPECT_TRUE(f.gated);
    EXPECT_EQ(weight_groups(f, checkpoint, names).size(), 4u);
  };
  const test::TempDir a, b, fp8;
  found(write_t5(a, c), Dialect::transformers);
  found(write_t5(b, c, DType::bf16, [&](const std::string& n) { return wan_name(c, n); }),
        Dialect::wan);
  found(write_t5(fp8, c, DType::f8_e4m3), Dialect::comfy);
}

TEST(T5Recognise, TellsTiedHeadsAndSharedTables) {
  Config c = tiny_t5();
  const test::TempDir untied, tied, doubled;
  const auto found = [](const std::string& path) {
    const WeightFiles checkpoint = WeightFiles::open(path);
    return *recognise(checkpoint, TensorMap(checkpoint));
  };
  const Config apart = found(write_t5(untied, c));
  EXPECT_FALSE(apart.tied || apart.scaled_head || apart.bias_per_block);
  EXPECT_EQ(apart.decoder_layers, 2);
  c.tied = true;
  const Config together = found(write_t5(tied, c));
  EXPECT_TRUE(together.tied && together.scaled_head);
  // Files made from tied models may have the table under all of its names.
  support::TensorFile file;
  support::each_stored(c, [&](const std::string& name, const Shape& shape) {
    const auto values = support::t5_values(name, shape);
    file.add(name, DType::f32, shape, values);
    if (name != kEmbeddingName) return;
    file.add("lm_head.weight", DType::f32, shape, values);
    file.add("decoder.embed_tokens.weight", DType::f32, shape, values);
  });
  EXPECT_TRUE(found(file.write(doubled)).tied);
}

TEST(T5Recognise, ConfigBesideTheFileCorrectsAndMustNotContradict) {
  const test::TempDir dir;
  write_t5(dir, tiny_t5());
  const auto open = [&](const std::string& json) {
    dir.write("config.json", json);
    const WeightFiles checkpoint = WeightFiles::open(dir.path());
    return model_config(checkpoint, TensorMap(checkpoint));
  };
  const std::string sizes =
      R"("d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 3, "num_layers": 3,
      "num_decoder_layers": 2, "vocab_size": 50, "feed_forward_proj": "gated-gelu")";
  const Config c = open("{" + sizes + R"(, "layer_norm_epsilon": 1e-5, "eos_token_id": 7,
      "tie_word_embeddings": true, "relative_attention_max_distance": 64})");
  EXPECT_EQ(c.eps, 1e-5f);
  EXPECT_EQ(c.eos, 7);
  EXPECT_EQ(c.max_distance, 64);
  EXPECT_FALSE(c.tied) << "the file has a head of its own";
  EXPECT_TRUE(c.scaled_head) << "the config says so";
  EXPECT_FAILS(open(R"({"d_model": 64})"), ErrorCode::input, "d_model is 64");
  EXPECT_FAILS(open("{" + sizes + R"(, "num_layers": 4})"), ErrorCode::input, "num_layers is 4");
  EXPECT_FAILS(open("{" + sizes), ErrorCode::input, "config.json");
}

TEST(T5Recognise, RefusesWhatIsNoneOfOurs) {
  const test::TempDir a, b, mixed;
  const auto open = [](const std::string& path) {
    const WeightFiles checkpoint = WeightFiles::open(path);
    const TensorMap names(checkpoint);
    const Config c = model_config(checkpoint, names);
    return weight_groups(c, checkpoint, names);
  };
  support::TensorFile other;
  other.add("blocks.0.norm1.weight", DType::f32, {4}, 1);
  EXPECT_FAILS(open(other.write(a)), ErrorCode::input, "no T5 or UMT5 model");
  support::TensorFile half;
  support::each_stored(tiny_t5(), [&](const std::string& name, const Shape& shape) {
    if (name.ends_with("block.1.layer.0.SelfAttention.o.weight")) return;
    half.add(name, DType::f32, shape, support::t5_values(name, shape));
  });
  EXPECT_FAILS(open(half.write(b)), ErrorCode::input,
               "no tensor encoder.block.1.layer.0.SelfAttention.o.weight");
  half.add("blocks.0.attn.q.weight", DType::f32, {2, 2}, 1);
  EXPECT_FAILS(open(half.write(mixed)), ErrorCode::input, "names.mixed");
}

TEST(T5Weights, RowsOfTheEmbeddingAreReadOneByOne) {
  const test::TempDir dir;
  const Config c = tiny_umt5_encoder();
  const WeightFiles checkpoint = WeightFiles::open(write_t5(dir, c));
  const TensorMap names(checkpoint);
  const StoredBytes table = embedding_table(c, checkpoint, names);
  const auto all = support::t5_values(kEmbeddingName, {c.vocabulary, c.d_model});
  std::vector<float> rows(3 * 32);
  const TensorView to(reinterpret_cast<std::byte*>(rows.data()), DType::f32, {3, 32});
  const std::vector<std::int32_t> ids = {49, 0, 49};
  read_rows(table, ids, to);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i], all[to_size(ids[i / 32]) * 32 + i % 32]);
  }
  for (const std::int32_t bad : {50, -1}) {
    EXPECT_FAILS(read_rows(table, std::vector{0, bad, 0}, to), ErrorCode::input, "50 rows");
  }
}

}  // namespace
}  // namespace ballast::t5
