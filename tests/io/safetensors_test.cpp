#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/to_size.h"
#include "io/limits.h"
#include "io/safetensors_writer.h"
#include "tests/support/errors.h"
#include "tests/support/hostile_safetensors.h"
#include "tests/support/temp_dir.h"

namespace ballast::safetensors_test {
namespace {

using test::object;
using test::one;
using test::safetensors;
using test::TempDir;
using test::tensor;

SafetensorsHeader parse(std::string_view bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(bytes)), bytes.size(), "memory.st");
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}

TEST(Safetensors, AcceptsTheConformanceVectors) {
  const std::string empty("\x08\0\0\0\0\0\0\0{}      ", 16);
  EXPECT_EQ(parse(empty).entries().size(), 0u);

  const std::string attn =
      safetensors("{\"attn.0\":{\"dtype\":\"F32\",\"shape\":[1,2,3],\"data_offsets\":[0,24]}}",
                  std::string(24, '\0'));
  ASSERT_EQ(attn.size(), 8u + 64 + 24);
  const SafetensorsHeader header = parse(attn);
  ASSERT_EQ(header.entries().size(), 1u);
  const SafetensorsEntry& entry = header.entries()[0];
  EXPECT_EQ(entry.name, "attn.0");
  EXPECT_EQ(entry.dtype, FileDType::f32);
  EXPECT_EQ(entry.shape, (Shape{1, 2, 3}));
  EXPECT_EQ(entry.offset, 72u);
  EXPECT_EQ(entry.bytes, 24u);

  const std::string padded =
      "{\"attn0\":{\"dtype\":\"F32\",\"shape\":[1,1,2,3],\"data_offsets\":[0,24]}}       ";
  EXPECT_EQ(padded.size(), 72u);
  EXPECT_EQ(parse(safetensors(padded, std::string(24, '\0'))).data_start(), 80u);

  const SafetensorsHeader scalar = parse(safetensors(
      "{\"test\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[0,4]}}", std::string(4, '\0')));
  EXPECT_EQ(scalar.find("test")->shape.rank(), 0);
  EXPECT_EQ(scalar.data_start(), 64u);

  const std::string zero = "{\"test\":{\"dtype\":\"I32\",\"shape\":[2,0],\"data_offsets\":[0, 0]}}";
  EXPECT_EQ(zero.size(), 60u);
  EXPECT_EQ(parse(safetensors(zero)).find("test")->bytes, 0u);

  EXPECT_EQ(parse(safetensors("\t\n{}\r ")).entries().size(), 0u);
  const SafetensorsHeader framework =
      parse(safetensors("{\"__metadata__\":{\"framework\":\"pt\"}}     "));
  EXPECT_EQ(framework.metadata(), (Metadata{{"framework", "pt"}}));
  EXPECT_EQ(framework.data_start(), 48u);
}

TEST(Safetensors, AcceptsWhatTheReferenceAccepts) {
  EXPECT_TRUE(parse(safetensors("{\"__metadata__\":null}")).metadata().empty());
  EXPECT_NE(parse(safetensors(object(tensor("", "U8", "[1]", "[0,1]")), "x")).find(""), nullptr);
  // Unknown fields, and the fields in any order.
  const SafetensorsHeader odd = parse(safetensors(
      "{\"a\":{\"x\":[1.5e3,{\"y\":null}],\"data_offsets\":[0,1],\"shape\":[1],\"dtype\":\"U8\"}}",
      "x"));
  EXPECT_EQ(odd.find("a")->bytes, 1u);
  // Left to right: the zero ends it before anything overflows.
  EXPECT_EQ(
      parse(one("U8", "[0,9223372036854775807,9223372036854775807]", "[0,0]")).find("a")->bytes,
      0u);
  EXPECT_EQ(parse(one("F4", "[3,2]", "[0,3]", 3)).find("a")->bytes, 3u);
  EXPECT_EQ(parse(one("F6_E2M3", "[4]", "[0,3]", 3)).find("a")->bytes, 3u);
  EXPECT_EQ(parse(one("U8", "[1,1,1,1,1,1,1,1]", "[0,1]", 1)).find("a")->shape.rank(), 8);
  const std::string longest(limits::kNameBytes, 'n');
  EXPECT_NE(parse(safetensors(object(tensor(longest, "U8", "[1]", "[0,1]")), "x")).find(longest),
            nullptr);
}

TEST(Safetensors, KnowsEveryDTypeAndItsSize) {
  for (const FileDTypeInfo& info : kFileDTypes) {
    // Eight elements: as many bytes as one has bits.
    const SafetensorsHeader header =
        parse(one(info.name, "[2,4]", fmt::format("[0,{}]", info.bits), info.bits));
    EXPECT_EQ(header.find("a")->dtype, info.dtype) << info.name;
    EXPECT_EQ(header.find("a")->bytes, info.bits) << info.name;
  }
  for (const DTypeInfo& info : kDTypes) {
    EXPECT_EQ(memory_dtype(file_dtype(info.dtype)), info.dtype) << info.name;
    EXPECT_EQ(ballast::info(file_dtype(info.dtype)).bits, 8 * info.size) << info.name;
  }
}

TEST(Safetensors, RefusesToComputeWithTypesItOnlyRecognises) {
  const TempDir folder;
  for (const char* dtype :
       {"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"}) {
    const unsigned bits = info(*file_dtype_from_name(dtype)).bits;
    const SafetensorsFile file = SafetensorsFile::open(
        folder.write("f.safetensors", one(dtype, "[8]", fmt::format("[0,{}]", bits), bits)));
    EXPECT_FAILS(file.dtype(file.get("a")), ErrorCode::input,
                 file.path() + ": st.dtype: tensor \"a\"");
  }
}

TEST(Safetensors, SortsTheEntriesByOffsetAndStillFindsThem) {
  std::string header = "{";
  constexpr int kCount = 500;
  for (int i = kCount; i-- > 0;) {
    header += tensor(fmt::format("t{}", i), "U8", "[3]", fmt::format("[{},{}]", 3 * i, 3 * i + 3));
    header += i > 0 ? "," : "}";
  }
  const SafetensorsHeader parsed = parse(safetensors(header, std::string(3 * kCount, 'x')));
  for (int i = 0; i < kCount; ++i) {
    const SafetensorsEntry& entry = parsed.entries()[to_size(i)];
    EXPECT_EQ(entry.name, fmt::format("t{}", i));
    EXPECT_EQ(parsed.find(entry.name), &entry);
  }
  EXPECT_EQ(parsed.find("t500"), nullptr);
  EXPECT_EQ(parsed.find(""), nullptr);
}

TEST(Safetensors, NamesSurviveMovingTheHeader) {
  SafetensorsHeader a = parse(safetensors(
      object(tensor("plain", "U8", "[1]", "[0,1]"), tensor("\\u0065scaped", "U8", "[1]", "[1,2]")),
      "xy"));
  const SafetensorsHeader b = std::move(a);
  a = parse(safetensors("{}"));
  EXPECT_EQ(b.find("plain")->name, "plain");
  EXPECT_EQ(b.find("escaped")->name, "escaped");
}

TEST(Safetensors, ReadsTensorsAtOddOffsets) {
  const TempDir folder;
  const std::string path = folder.write(
      "f.safetensors",
      safetensors(object(tensor("a", "U8", "[3]", "[0,3]"), tensor("b", "F16", "[2]", "[3,7]")),
                  "abc1234"));
  for (const DiskMode mode : {DiskMode::buffered, DiskMode::automatic}) {
    const SafetensorsFile file = SafetensorsFile::open(path, mode);
    std::array<char, 4> to;
    file.read(file.get("b"), std::as_writable_bytes(std::span(to)));
    EXPECT_EQ(std::string_view(to.data(), to.size()), "1234");
    const Extent extent = file.extent(file.get("b"));
    EXPECT_EQ(extent.file, &file.file());
    EXPECT_EQ(extent.offset, file.header().data_start() + 3);
    EXPECT_EQ(extent.bytes, 4u);
    EXPECT_FAILS(file.get("c"), ErrorCode::input, "st.missing: there is no tensor \"c\"");
  }
}

TEST(Safetensors, OpenErrorsAreOfTheSystem) {
  EXPECT_FAILS(SafetensorsFile::open("/nowhere/f.safetensors"), ErrorCode::io, "No such file");
}

TEST(SafetensorsWriter, WritesTheConformanceVectors) {
  const TempDir folder;
  const auto written = [&](const SafetensorsWriter& writer) {
    writer.write(folder.path("f"));
    const std::string bytes = test::read_whole(folder.path("f"));
    EXPECT_EQ(bytes.size(), writer.file_bytes());
    return bytes;
  };
  EXPECT_EQ(written(SafetensorsWriter()), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  std::vector<float> values(6);
  std::iota(values.begin(), values.end(), 0.0f);
  const std::string data(reinterpret_cast<const char*>(values.data()), 24);
  SafetensorsWriter exact;
  exact.add("attn.0", DType::f32, Shape{1, 2, 3}, bytes_of(values));
  EXPECT_EQ(
      written(exact),
      safetensors("{\"attn.0\":{\"dtype\":\"F32\",\"shape\":[1,2,3],\"data_offsets\":[0,24]}}",
                  data));
  SafetensorsWriter padded;
  padded.add("attn0", DType::f32, Shape{1, 1, 2, 3}, bytes_of(values));
  EXPECT_EQ(written(padded),
            safetensors("{\"attn0\":{\"dtype\":\"F32\",\"shape\":[1,1,2,3],\"data_offsets\":[0,24]}"
                        "}       ",
                        data));
  EXPECT_EQ(written(SafetensorsWriter({.metadata = {{"framework", "pt"}}, .alignment = 8})),
            safetensors("{\"__metadata__\":{\"framework\":\"pt\"}}     "));
}

TEST(SafetensorsWriter, OrdersByDTypeThenNameAndReadsBack) {
  const TempDir folder;
  const std::string path = folder.path("f.safetensors");
  const std::vector<std::uint8_t> bytes(64, 7);
  const auto first = [&](std::size_t n) { return bytes_of(bytes).first(n); };
  for (const std::uint64_t alignment : {8, 4096}) {
    SafetensorsWriter writer(
        {.metadata = {{"format", "pt"}, {"a\"\n", "\x01é"}}, .alignment = alignment});
    writer.add("z", DType::u8, Shape{3}, first(3));
    writer.add("b", DType::bf16, Shape{2}, first(4));
    writer.add("a", DType::bf16, Shape{3, 1}, first(6));
    writer.add("f", DType::f32, Shape{}, first(4));
    writer.add("e", DType::f32, Shape{0, 4}, first(0));
    writer.add("n\\\"\t😀", DType::i64, Shape{1}, first(8));
    writer.add("fp8", DType::f8_e4m3, Shape{5}, first(5));
    writer.write(path);
    const SafetensorsFile file = SafetensorsFile::open(path);
    EXPECT_EQ(file.header().data_start() % alignment, 0u);
    EXPECT_LT(file.header().data_start(), 2 * 4096u);
    EXPECT_EQ(file.file().size(), writer.file_bytes());
    EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}, {"a\"\n", "\x01é"}}));
    std::vector<std::string> order;
    for (const SafetensorsEntry& e : file.entries()) order.emplace_back(e.name);
    // "e" has no bytes, so offsets alone do not tell it from "f".
    EXPECT_EQ(order, (std::vector<std::string>{"n\\\"\t😀", "e", "f", "a", "b", "fp8", "z"}));
    EXPECT_EQ(file.get("a").shape, (Shape{3, 1}));
  }
}

TEST(SafetensorsWriter, StreamsATensorInPieces) {
  const TempDir folder;
  const std::string path = folder.path("f.safetensors");
  SafetensorsWriter writer;
  int calls = 0;
  const auto pieces = [&calls](std::size_t count) {
    return [&calls, count](const ByteSink& sink) {
      ++calls;
      const std::string piece = "piece...";
      for (std::size_t i = 0; i < count; ++i) sink(std::as_bytes(std::span(piece)));
    };
  };
  writer.add("a", DType::u8, Shape{24}, pieces(3));
  EXPECT_EQ(calls, 0);
  writer.write(path);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(test::read_whole(path).ends_with("piece...piece...piece..."));
  for (const std::size_t wrong : {2, 4}) {
    SafetensorsWriter bad;
    bad.add("a", DType::u8, Shape{24}, pieces(wrong));
    EXPECT_FAILS(bad.write(path), ErrorCode::internal, "handed over");
  }
  EXPECT_TRUE(test::read_whole(path).ends_with("piece...piece...piece..."));
}

TEST(SafetensorsWriter, RefusesWhatNoReaderWouldTake) {
  const TempDir folder;
  const std::vector<std::uint8_t> bytes(8);
  SafetensorsWriter writer;
  EXPECT_FAILS(writer.add("__metadata__", DType::u8, Shape{8}, bytes_of(bytes)), ErrorCode::input,
               "__metadata__");
  EXPECT_FAILS(writer.add("\xff", DType::u8, Shape{8}, bytes_of(bytes)), ErrorCode::input,
               "st.header_utf8");
  EXPECT_FAILS(writer.add(std::string(4097, 'n'), DType::u8, Shape{8}, bytes_of(bytes)),
               ErrorCode::input, "cannot hold");
  EXPECT_FAILS(SafetensorsWriter({.metadata = {{"k", "\xff"}}, .alignment = 8}), ErrorCode::input,
               "st.header_utf8");
  writer.add("a", DType::u8, Shape{8}, bytes_of(bytes));
  writer.add("a", DType::u8, Shape{8}, bytes_of(bytes));
  EXPECT_FAILS(writer.write(folder.path("f")), ErrorCode::input, "st.duplicate_name");
  const SafetensorsWriter huge(
      {.metadata = {{"k", std::string(limits::kSafetensorsHeaderWrite, 'v')}}, .alignment = 8});
  EXPECT_FAILS(huge.write(folder.path("f")), ErrorCode::input, "st.header_too_large");
  EXPECT_FALSE(std::filesystem::exists(folder.path("f")));
}

}  // namespace
}  // namespace ballast::safetensors_test
