#include "io/gguf_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "core/crc32c.h"
#include "core/to_size.h"
#include "io/convert_file.h"
#include "io/weight_files.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/torch_archive.h"

namespace ballast::gguf_file_test {
namespace {

using namespace std::string_literals;
using test::TempDir;
using test::u16;
using test::u32;
using test::u64;

std::string text(std::string_view s) { return u64(s.size()) + std::string(s); }
std::string key(std::string_view name, std::uint32_t type, const std::string& value) {
  return text(name) + u32(type) + value;
}
std::string tensor(std::string_view name, const std::vector<std::uint64_t>& dims,
                   std::uint32_t type, std::uint64_t offset) {
  std::string out = text(name) + u32(dims.size());
  for (const std::uint64_t d : dims) out += u64(d);
  return out + u32(type) + u64(offset);
}

struct TestGguf {
  std::vector<std::string> keys = {}, tensors = {};
  std::string data = {};
  std::uint32_t version = 3;
  std::int64_t key_count = -1, tensor_count = -1;
};

std::string gguf(const TestGguf& g) {
  const auto lie = [](std::int64_t said, std::size_t truth) {
    return said >= 0 ? static_cast<std::uint64_t>(said) : truth;
  };
  std::string out = "GGUF" + u32(g.version) + u64(lie(g.tensor_count, g.tensors.size())) +
                    u64(lie(g.key_count, g.keys.size()));
  for (const std::string& k : g.keys) out += k;
  for (const std::string& t : g.tensors) out += t;
  out.resize((out.size() + 31) / 32 * 32, '\0');
  return out + g.data;
}

struct BlockCase {
  std::uint32_t id;
  int scale_at, second_at;
  std::uint16_t second;
  std::uint32_t block_crc, value_crc;
  float first, last;
};

// Byte i is (37 i + 11) mod 256, with fixed scales; from the format's description, where the sums
// come from the reference code.
constexpr BlockCase kBlocks[] = {
    {2, 0, -1, 0, 0x7121f1ea, 0xede9a077, -0.299926758f, 0},
    {3, 0, 2, 0xb4cd, 0x9682c0ee, 0x4d67c4b5, 1.19958496f, 0.899658203f},
    {6, 0, -1, 0, 0xeb249e2d, 0xdc951703, 0.899780273f, 0.0999755859f},
    {7, 0, 2, 0xb4cd, 0x6c363225, 0x1969b2b4, 1.5994873f, 0.199829102f},
    {8, 0, -1, 0, 0xbce262a5, 0x85521d46, 8.4979248f, -4.79882812f},
    {10, 80, 82, 0x24cd, 0xfb173ad9, 0xb70ccabc, 3.29919434f, 0.54359436f},
    {11, 108, -1, 0, 0x832fcf8e, 0xa56bbc68, 8.09802246f, 4.19897461f},
    {12, 0, 2, 0x24cd, 0x77e6541c, 0xd17d38d8, 33.1352692f, 5.94203186f},
    {13, 0, 2, 0x24cd, 0xd9148757, 0x41945ba8, 82.7231598f, 11.940567f},
    {14, 208, -1, 0, 0xed82cdcb, 0x82c8b6d6, -143.065063f, -5.99853516f},
    {20, 0, -1, 0, 0x7121f1ea, 0x92f989dd, -3.49914551f, 0.0999755859f},
    {23, 0, -1, 0, 0xf5453115, 0xef8c77cf, 6.49841309f, -1.59960938f},
};

std::string test_block(const BlockCase& c, std::uint32_t bytes) {
  std::string block;
  for (std::uint32_t i = 0; i < bytes; ++i) block += static_cast<char>(37 * i + 11);
  block.replace(to_size(c.scale_at), 2, u16(0x2e66));
  if (c.second_at >= 0) block.replace(to_size(c.second_at), 2, u16(c.second));
  return block;
}

TEST(GgufBlocks, ExpandToTheBitsOfTheReference) {
  for (const BlockCase& c : kBlocks) {
    const GgufType* type = find_gguf_type(c.id);
    ASSERT_NE(type, nullptr);
    SCOPED_TRACE(type->name);
    const std::string block = test_block(c, type->bytes);
    EXPECT_EQ(crc32c(std::as_bytes(std::span(block))), c.block_crc);
    std::vector<float> values(type->elements);
    expand_blocks(*type, std::as_bytes(std::span(block)), values);
    EXPECT_EQ(values.front(), c.first);
    EXPECT_EQ(values.back(), c.last);
    EXPECT_EQ(crc32c(std::as_bytes(std::span(values))), c.value_crc);
  }
}

// One tensor of every quantised type, two rows each, and plain ones.
TestGguf every_type() {
  TestGguf g;
  g.keys = {key("general.architecture", 8, text("wan")),
            key("tokens", 9, u32(8) + u64(2) + text("a") + text("b")),
            key("comfy.gguf.orig_shape.five", 9,
                u32(5) + u64(5) + u32(2) + u32(1) + u32(1) + u32(2) + u32(2))};
  const auto add = [&](std::string_view name, const std::vector<std::uint64_t>& dims,
                       std::uint32_t type, const std::string& data) {
    g.tensors.push_back(tensor(name, dims, type, g.data.size()));
    g.data += data;
    g.data.resize((g.data.size() + 31) / 32 * 32, '\0');
  };
  for (const BlockCase& c : kBlocks) {
    const GgufType& type = *find_gguf_type(c.id);
    const std::string block = test_block(c, type.bytes);
    add(type.name, {type.elements, 2}, c.id, block + block);
  }
  add("five", {8}, 1, std::string("\x00\x3c", 2) + std::string(14, '\0'));
  add("scalar", {}, 0, u32(0x3f800000));
  add("numbers", {3}, 26, u32(1) + u32(2) + u32(3));
  add("none", {0, 4}, 0, "");
  return g;
}

TEST(GgufFile, ListsAndReadsEveryType) {
  const TempDir dir;
  const std::string path = dir.write("m.gguf", gguf(every_type()));
  const GgufFile file = GgufFile::open(path);
  ASSERT_EQ(file.tensors().size(), std::size(kBlocks) + 4);
  EXPECT_EQ(file.metadata().at("general.architecture"), "wan");
  EXPECT_EQ(file.metadata().at("tokens"), "array of 2");
  for (const GgufTensor& t : file.tensors()) {
    if (t.name == "five") {
      EXPECT_EQ(t.shape, Shape({2, 1, 1, 2, 2}));
    } else if (t.name == "Q4_K") {
      EXPECT_EQ(t.shape, Shape({2, 256}));
    }
    if (t.type->plain) continue;
    std::vector<float> all(t.elements()), second(t.type->elements);
    file.read(t, 0, all);
    file.read(t, second.size(), second);
    EXPECT_TRUE(std::equal(second.begin(), second.end(), all.begin() + std::ssize(second)));
  }
  EXPECT_FAILS(WeightFiles::open(path), ErrorCode::input, "st.gguf");
}

TEST(GgufFile, BecomesSafetensors) {
  const TempDir dir;
  const std::string path = dir.write("m.gguf", gguf(every_type()));
  ConvertOptions options;
  options.dtype = DType::f32;
  const ConvertedFile done = convert_to_safetensors(path, dir.path("f32.safetensors"), options);
  EXPECT_EQ(done.container, "GGUF");
  const WeightFiles c = WeightFiles::open(dir.path("f32.safetensors"));
  for (const BlockCase& b : kBlocks) {
    const GgufType& type = *find_gguf_type(b.id);
    const WeightTensor& t = c.get(type.name);
    EXPECT_EQ(t.entry->dtype, FileDType::f32);
    std::vector<float> values(2 * type.elements);
    c.read(t, std::as_writable_bytes(std::span(values)));
    EXPECT_EQ(crc32c(std::as_bytes(std::span(values).first(type.elements))), b.value_crc);
    EXPECT_EQ(crc32c(std::as_bytes(std::span(values).last(type.elements))), b.value_crc);
  }
  EXPECT_EQ(c.get("numbers").entry->dtype, FileDType::i32);

  convert_to_safetensors(path, dir.path("own.safetensors"), {});
  const WeightFiles own = WeightFiles::open(dir.path("own.safetensors"));
  EXPECT_EQ(own.get("Q6_K").entry->dtype, FileDType::bf16) << "quantised, nothing was asked for";
  EXPECT_EQ(own.get("five").entry->dtype, FileDType::f16);
  EXPECT_EQ(own.get("scalar").entry->dtype, FileDType::f32);
}

TEST(GgufFile, GivesT5TensorsTheirHuggingFaceNames) {
  EXPECT_EQ(hugging_face_t5_name("enc.blk.3.attn_rel_b.weight"),
            "encoder.block.3.layer.0.SelfAttention.relative_attention_bias.weight");
  EXPECT_EQ(hugging_face_t5_name("enc.blk.0.ffn_gate.weight"),
            "encoder.block.0.layer.1.DenseReluDense.wi_0.weight");
  EXPECT_EQ(hugging_face_t5_name("enc.output_norm.weight"), "encoder.final_layer_norm.weight");
  EXPECT_EQ(hugging_face_t5_name("token_embd.weight"), "shared.weight");
  const TempDir dir;
  const std::string path =
      dir.write("t5.gguf", gguf({.keys = {key("general.architecture", 8, text("t5encoder"))},
                                 .tensors = {tensor("enc.blk.1.attn_q.weight", {1}, 0, 0)},
                                 .data = u32(0)}));
  convert_to_safetensors(path, dir.path("t5.safetensors"), {});
  EXPECT_NE(WeightFiles::open(dir.path("t5.safetensors"))
                .find("encoder.block.1.layer.0.SelfAttention.q.weight"),
            nullptr);
}

TEST(ConvertFile, RefusesValuesThatF16CannotHold) {
  const TempDir dir;
  const std::string path = dir.write(
      "m.gguf", gguf({.tensors = {tensor("big", {1}, 0, 0)}, .data = u32(0x47800000)}));  // 65536
  ConvertOptions options;
  options.dtype = DType::f16;
  EXPECT_FAILS(convert_to_safetensors(path, dir.path("out.safetensors"), options), ErrorCode::input,
               "f16 ends at 65504");
  EXPECT_FALSE(std::filesystem::exists(dir.path("out.safetensors")));
}

struct Hostile {
  const char* name;
  std::string bytes;
  const char* rule;
};

std::vector<Hostile> hostile() {
  const auto keyed = [](const std::string& k) { return gguf({.keys = {k}}); };
  const auto one = [](const std::string& t, std::size_t bytes = 64) {
    return gguf({.tensors = {t}, .data = std::string(bytes, '\0')});
  };
  const std::string good = gguf(every_type());
  return {
      {"nothing", "", "gguf.format"},
      {"a mark alone", "GGUF", "gguf.format"},
      {"another mark", std::string(64, 'x'), "gguf.format"},
      {"version 1", gguf({.version = 1}), "gguf.version"},
      {"version 4", gguf({.version = 4}), "gguf.version"},
      {"big-endian", gguf({.version = 0x03000000}), "gguf.version"},
      {"2^60 tensors", gguf({.tensor_count = std::int64_t{1} << 60}), "gguf.limit"},
      {"2^60 keys", gguf({.key_count = std::int64_t{1} << 60}), "gguf.limit"},
      {"more keys than bytes", gguf({.key_count = 60}), "gguf.limit"},
      {"a key of 2^63 bytes", keyed(u64(1ull << 63)), "gguf.limit"},
      {"a key past the end", keyed(u64(60000) + "abcdef"), "gguf.truncated"},
      {"an empty key", keyed(key("", 0, "x")), "gguf.metadata"},
      {"a key that is not UTF-8", keyed(key("\xff", 0, "x")), "gguf.metadata"},
      {"the same key twice", gguf({.keys = {key("a", 0, "x"), key("a", 0, "x")}}),
       "gguf.duplicate"},
      {"value type 13", keyed(key("a", 13, "xxxxxxxx")), "gguf.metadata"},
      {"true is 2", keyed(key("a", 7, "\2")), "gguf.metadata"},
      {"a text of 2^62 bytes", keyed(key("a", 8, u64(1ull << 62))), "gguf.limit"},
      {"a text past the end", keyed(key("a", 8, u64(1 << 20) + "abc")), "gguf.truncated"},
      {"an array of arrays", keyed(key("a", 9, u32(9) + u64(1) + u32(0))), "gguf.metadata"},
      {"an array of 2^61 numbers", keyed(key("a", 9, u32(10) + u64(1ull << 61))), "gguf.limit"},
      {"an array of 2^23 texts", keyed(key("a", 9, u32(8) + u64(1 << 23))), "gguf.limit"},
      {"an alignment of 3", keyed(key("general.alignment", 4, u32(3))), "gguf.metadata"},
      {"an alignment of 0", keyed(key("general.alignment", 4, u32(0))), "gguf.metadata"},
      {"an alignment of 2^31", keyed(key("general.alignment", 4, u32(1u << 31))), "gguf.metadata"},
      {"an alignment that is text", keyed(key("general.alignment", 8, text("32"))),
       "gguf.metadata"},
      {"one of three files", keyed(key("split.count", 2, u16(3))), "gguf.split"},
      {"a tensor name of 300 bytes", one(tensor(std::string(300, 't'), {1}, 0, 0)), "gguf.limit"},
      {"nine dimensions", one(tensor("t", std::vector<std::uint64_t>(9, 1), 0, 0)), "gguf.limit"},
      {"2^31 dimensions", one(text("t") + u32(1u << 31) + u64(1) + u64(1)), "gguf.limit"},
      {"an unknown type", one(tensor("t", {1}, 99, 0)), "gguf.type"},
      {"a type that is not read", one(tensor("t", {256}, 16, 0)), "IQ2_XXS"},
      {"a removed type", one(tensor("t", {32}, 4, 0)), "gguf.type"},
      {"a row that is no whole block", one(tensor("t", {33}, 8, 0)), "gguf.tensor"},
      {"a scalar of a quantised type", one(tensor("t", {}, 8, 0)), "gguf.tensor"},
      {"elements that overflow", one(tensor("t", {1ull << 40, 1ull << 40}, 0, 0)), "gguf.tensor"},
      {"elements that overflow beside a zero", one(tensor("t", {0, 1ull << 40, 1ull << 40}, 0, 0)),
       "gguf.tensor"},
      {"an original shape that overflows beside a zero",
       gguf({.keys = {key("comfy.gguf.orig_shape.t", 9,
                          u32(5) + u64(4) + u32(1 << 30) + u32(1 << 30) + u32(1 << 30) + u32(0))},
             .tensors = {tensor("t", {0}, 0, 0)}}),
       "gguf.tensor"},
      {"bytes that overflow", one(tensor("t", {1ull << 61, 2}, 28, 0)), "gguf.tensor"},
      {"a negative dimension", one(tensor("t", {~0ull}, 0, 0)), "gguf.tensor"},
      {"a tensor past the end", one(tensor("t", {17}, 0, 0)), "gguf.truncated"},
      {"an offset past the end", one(tensor("t", {1}, 0, 1 << 20)), "gguf.truncated"},
      {"an offset of 2^64 - 32", one(tensor("t", {8}, 0, ~0ull - 31)), "gguf.truncated"},
      {"an offset that is not aligned", one(tensor("t", {1}, 0, 4)), "gguf.offset"},
      {"the same tensor twice",
       gguf({.tensors = {tensor("t", {1}, 0, 0), tensor("t", {1}, 0, 32)},
             .data = std::string(64, '\0')}),
       "gguf.duplicate"},
      {"tensors that share bytes",
       gguf({.tensors = {tensor("a", {16}, 0, 0), tensor("b", {8}, 0, 32)},
             .data = std::string(64, '\0')}),
       "gguf.offset"},
      {"an original shape that does not fit",
       gguf({.keys = {key("comfy.gguf.orig_shape.t", 9, u32(5) + u64(1) + u32(5))},
             .tensors = {tensor("t", {4}, 0, 0)},
             .data = std::string(16, '\0')}),
       "gguf.tensor"},
      {"half of a file", good.substr(0, good.size() / 2), "gguf.truncated"},
      {"the header cut off", good.substr(0, 60), "gguf."},
  };
}

TEST(HostileGgufFile, IsRefusedByName) {
  const TempDir dir;
  for (const Hostile& c : hostile()) {
    SCOPED_TRACE(c.name);
    const std::string path = dir.write("hostile.gguf", c.bytes);
    EXPECT_FAILS(GgufFile::open(path), ErrorCode::input, c.rule);
  }
}

TEST(HostileGgufFile, AnswersDamageWithAnErrorOrWithTensors) {
  const TempDir dir;
  const std::string good = gguf(every_type());
  std::mt19937 random(11);
  int refused = 0;
  for (int i = 0; i < 800; ++i) {
    std::string bad = good;
    for (auto n = 1 + random() % 3; n-- > 0;) bad[random() % 1200] = static_cast<char>(random());
    if (i % 8 == 0) bad.resize(random() % bad.size());
    const auto error = test::error_of([&] {
      const GgufFile file = GgufFile::open(dir.write("bad.gguf", bad), DiskMode::buffered);
      for (const GgufTensor& t : file.tensors()) {
        std::vector<float> values(t.elements());
        file.read(t, 0, values);
      }
    });
    if (!error) continue;
    ++refused;
    EXPECT_EQ(error->code(), ErrorCode::input) << error->what();
  }
  EXPECT_GT(refused, 120);
}

}  // namespace
}  // namespace ballast::gguf_file_test
