#include "io/torch_file.h"

#include <gtest/gtest.h>

#include <random>

#include "io/convert_file.h"
#include "io/weight_files.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/torch_archive.h"

namespace ballast::torch_file_test {
namespace {

using namespace std::string_literals;
using test::TempDir;
using test::torch_archive;
using test::u32;
using test::u64;
using test::zip_archive;
using test::ZipFile;
namespace p = test::pickle;

std::string from_hex(std::string_view hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return out;
}

// The vector of the format's description: a transposed bf16 tensor, 172 bytes of pickle.
std::string transposed_pickle() {
  return from_hex(
      "800263636f6c6c656374696f6e730a4f726465726564446963740a710029527101580100000077710263746f7263"
      "682e5f7574696c730a5f72656275696c645f74656e736f725f76320a71032828580700000073746f726167657104"
      "63746f7263680a42466c6f6174313653746f726167650a71055801000000307106580300000063707571074b0474"
      "7108514b004b024b028671094b014b0286710a8968002952710b74710c52710d732e");
}
const std::string kFourBf16 = from_hex("803f0040404000bf");  // 1, 2, 3, -0.5

template <class Source>
std::string bytes_of(const Source& file, const TorchTensor& t) {
  std::string out(t.bytes, '\0');
  file.read(t, 0, std::as_writable_bytes(std::span(out)));
  return out;
}

std::string floats(std::vector<float> values) {
  return {reinterpret_cast<const char*>(values.data()), 4 * values.size()};
}

TEST(TorchFile, ReadsTheTransposedTensorOfTheConformanceVector) {
  const TempDir dir;
  const std::string path = dir.write("v.pth", torch_archive(transposed_pickle(), {kFourBf16}));
  const TorchFile file = TorchFile::open(path);
  ASSERT_EQ(file.tensors().size(), 1u);
  const TorchTensor& t = file.tensors()[0];
  EXPECT_EQ(t.name, "w");
  EXPECT_EQ(t.dtype, FileDType::bf16);
  EXPECT_EQ(t.shape, Shape({2, 2}));
  EXPECT_FALSE(t.contiguous);
  EXPECT_EQ(bytes_of(file, t), from_hex("803f4040004000bf"));  // 1, 3, 2, -0.5

  EXPECT_FAILS(WeightFiles::open(path), ErrorCode::input, "pth.strided");
  const ConvertedFile done = convert_to_safetensors(path, dir.path("v.safetensors"), {});
  EXPECT_EQ(done.container, "PyTorch");
  const WeightFiles converted = WeightFiles::open(dir.path("v.safetensors"));
  std::string row_major(8, '\0');
  converted.read(converted.get("w"), std::as_writable_bytes(std::span(row_major)));
  EXPECT_EQ(row_major, from_hex("803f4040004000bf"));
}

// Two tensors in one storage, one of them there twice, one empty, one wrapped as a parameter.
std::string shared_pickle() {
  const std::string s = p::storage("FloatStorage", "0", 6);
  return p::whole(
      p::dict({{"epoch", p::number(7)},
               {"model",
                p::dict({{"module.a", p::tensor(s, 0, {2, 2}, {2, 1})},
                         {"module.b", p::global("torch._utils", "_rebuild_parameter") +
                                          p::tuple({p::tensor(s, 4, {2}, {1}), "\x88", ")"}) + "R"},
                         {"module.tied", p::tensor(s, 0, {2, 2}, {2, 1})},
                         {"module.empty", p::tensor(s, 0, {0, 3}, {3, 1})},
                         {"module.step", p::number(3)}})}}));
}

TEST(TorchFile, IsACheckpointLikeAnyOther) {
  const TempDir dir;
  const std::string path = dir.write("m/pytorch_model.bin",
                                     torch_archive(shared_pickle(), {floats({1, 2, 3, 4, 5, 6})}));
  for (const std::string& name : {path, dir.path("m")}) {
    const WeightFiles c = WeightFiles::open(name);
    ASSERT_EQ(c.tensors().size(), 4u);
    EXPECT_EQ(c.files()[0].header().container(), "PyTorch");
    EXPECT_EQ(c.warnings().size(), 2u) << "the key it was under, and what is no tensor";
    EXPECT_EQ(c.get("a").entry->shape, Shape({2, 2}));
    EXPECT_EQ(c.get("empty").entry->bytes, 0u);
    EXPECT_EQ(c.extent(c.get("tied")).offset, c.extent(c.get("a")).offset);
    std::string b(8, '\0');
    c.read(c.get("b"), std::as_writable_bytes(std::span(b)));
    EXPECT_EQ(b, floats({5, 6}));
  }
  // bf16 of it, by way of the converter.
  ConvertOptions options;
  options.dtype = DType::bf16;
  std::uint64_t total = 0, seen = 0;
  options.begin = [&](std::uint64_t n) { total = n; };
  options.progress = [&](std::uint64_t n) { seen += n; };
  const ConvertedFile done = convert_to_safetensors(path, dir.path("out.safetensors"), options);
  EXPECT_EQ(done.tensors, 4u);
  EXPECT_EQ(total, 20u);
  EXPECT_EQ(seen, total);
  const WeightFiles c = WeightFiles::open(dir.path("out.safetensors"));
  std::string a(8, '\0');
  c.read(c.get("a"), std::as_writable_bytes(std::span(a)));
  EXPECT_EQ(a, from_hex("803f004040408040"));
}

TEST(TorchFile, ReadsProtocolFourAndShards) {
  const std::string tensor = p::tensor(p::storage("HalfStorage", "0", 2), 0, {2}, {1});
  const std::string four = "\x80\x04\x95" + u64(9) + "}\x94\x8c\x01w" + tensor + "s.";
  const TempDir dir;
  dir.write("pytorch_model-00001-of-00001.bin", torch_archive(four, {"\0\x3c\0\xc0"s}));
  dir.write(
      "pytorch_model.bin.index.json",
      R"({"metadata":{"total_size":4},"weight_map":{"w":"pytorch_model-00001-of-00001.bin"}})");
  const WeightFiles c = WeightFiles::open(dir.path());
  EXPECT_EQ(c.get("w").entry->dtype, FileDType::f16);
}

struct Hostile {
  const char* name;
  std::string bytes;
  const char* rule;
};

std::string pickled(const std::string& value) {
  return torch_archive(p::whole(value), {floats({1, 2, 3, 4})});
}
std::string one_tensor(const std::string& tensor) { return pickled(p::dict({{"w", tensor}})); }
std::string four_floats() { return p::storage("FloatStorage", "0", 4); }

std::vector<Hostile> zip_cases() {
  const std::string pkl = transposed_pickle();
  const ZipFile data{.name = "a/data.pkl", .content = pkl};
  const ZipFile storage{.name = "a/data/0", .content = kFourBf16};
  const std::string good = zip_archive({data, storage});
  const auto with = [&](ZipFile changed) { return zip_archive({data, std::move(changed)}); };
  return {
      {"a legacy file", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e...."s,
       "pth.format"},
      {"a preview file", "PYTORCH1........", "pth.format"},
      {"an empty archive", zip_archive({}) + std::string(30, ' '), "st."},
      {"a mark alone", "PK\x03\x04" + std::string(100, '\0'), "pth.zip"},
      {"the end cut off", good.substr(0, good.size() - 5), "pth.zip"},
      {"the directory cut off", good.substr(0, good.size() / 2), "pth.zip"},
      {"bytes behind the end", good + "x", "pth.zip"},
      {"several disks", zip_archive({data, storage}, {.disk = 1}), "pth.zip"},
      {"a directory behind the file", zip_archive({data, storage}, {.directory = 1 << 30}),
       "pth.zip"},
      {"a directory of 2^62 bytes",
       zip_archive({data, storage}, {.directory_bytes = std::int64_t{1} << 62}), "pth.limit"},
      {"2^40 entries", zip_archive({data, storage}, {.count = std::int64_t{1} << 40}), "pth.limit"},
      {"more entries than fit", zip_archive({data, storage}, {.count = 900}), "pth.zip"},
      {"fewer entries than there are", zip_archive({data, storage}, {.count = 1}), "pth.zip"},
      {"a ZIP64 record elsewhere", zip_archive({data, storage}, {.end64 = 0}), "pth.zip"},
      {"a ZIP64 record behind the file",
       zip_archive({data, storage}, {.end64 = std::int64_t{1} << 62}), "pth.zip"},
      {"a compressed entry", with({.name = "a/data/0", .content = kFourBf16, .method = 8}),
       "pth.compressed"},
      {"an encrypted entry", with({.name = "a/data/0", .content = kFourBf16, .flags = 1}),
       "pth.compressed"},
      {"an entry of 2^40 bytes",
       with({.name = "a/data/0", .content = kFourBf16, .size_lie = std::int64_t{1} << 40}),
       "pth.zip"},
      {"an entry that begins nowhere",
       with({.name = "a/data/0", .content = kFourBf16, .offset_lie = 3}), "pth.zip"},
      {"an entry behind the directory",
       with({.name = "a/data/0", .content = kFourBf16, .offset_lie = 0x7fffffff}), "pth.zip"},
      {"an entry under another name",
       with({.name = "a/data/0", .content = kFourBf16, .local_name = "a/data/1"}), "pth.zip"},
      {"the same entry twice", zip_archive({data, storage, storage}), "pth.zip"},
      {"an entry inside another",
       zip_archive({{.name = "a/data.pkl", .content = pkl, .size_lie = 500},
                    {.name = "a/data/0", .content = std::string(900, 'x')}}),
       "pth.zip"},
      {"a name that climbs", with({.name = "a/../../etc/passwd", .content = "x"}), "pth.zip"},
      {"a name from the root", with({.name = "/etc/passwd", .content = "x"}), "pth.zip"},
      {"no data.pkl", zip_archive({storage}), "pth.format"},
      {"a TorchScript program", with({.name = "a/constants.pkl", .content = "x"}), "pth.format"},
      {"big-endian numbers", with({.name = "a/byteorder", .content = "big"}), "pth.format"},
      {"version 11", with({.name = "a/version", .content = "11\n"}), "pth.format"},
      {"no storage", zip_archive({data}), "pth.storage"},
      {"a storage too short", with({.name = "a/data/0", .content = "1234567"}), "pth.storage"},
      {"a storage too long", with({.name = "a/data/0", .content = "123456789"}), "pth.storage"},
  };
}

std::vector<Hostile> pickle_cases() {
  const auto raw = [](const std::string& pickle) { return torch_archive(pickle, {}); };
  const std::string t = p::tensor(four_floats(), 0, {4}, {1});
  std::string bomb = "]q\x00"s;  // a list of pairs, copied again and again
  for (int i = 0; i < 2000; ++i)
    bomb +=
        "K\1K\2\x86"
        "a"s;
  std::string copies = bomb;
  for (int i = 0; i < 5000; ++i) copies += p::global("collections", "OrderedDict") + "h\0\x85R"s;
  return {
      {"nothing", raw(""), "pth.pickle"},
      {"no protocol", raw("N."), "pth.pickle"},
      {"protocol 1", raw("\x80\x01N."), "pth.pickle"},
      {"protocol 9", raw("\x80\x09N."), "pth.pickle"},
      {"no end", raw("\x80\x02N"), "pth.pickle"},
      {"an empty stack", raw("\x80\x02."), "pth.pickle"},
      {"two results", raw("\x80\x02NN."), "pth.pickle"},
      {"an open mark", raw("\x80\x02(N."), "pth.pickle"},
      {"a mark that is missing", raw("\x80\x02t."), "pth.pickle"},
      {"a memo entry that is missing", raw("\x80\x02h\x05."), "pth.pickle"},
      {"a memo entry of 4 billion", raw("\x80\x02Nr\xff\xff\xff\xff."), "pth.limit"},
      {"a text past the end", raw("\x80\x02X\xff\xff\0\0abc."s), "pth.pickle"},
      {"a text of 4 GiB",
       raw("\x80\x02X\xff\xff\xff\xff"
           "abc."),
       "pth.limit"},
      {"a text of 2^63 bytes", raw("\x80\x04\x8d" + u64(1ull << 63) + "."), "pth.limit"},
      {"a text that is not UTF-8", raw("\x80\x02X" + u32(2) + "\xc3\x28."), "pth.pickle"},
      {"a negative length", raw("\x80\x02T\xff\xff\xff\xff."), "pth.pickle"},
      {"an integer of 200 bytes", raw("\x80\x02\x8a\xc8" + std::string(200, 'x') + "."),
       "pth.pickle"},
      {"a name without end",
       raw("\x80\x02"
           "cos"),
       "pth.pickle"},
      {"a system call", pickled(p::global("os", "system") + p::tuple({p::text("true")}) + "R"),
       "pth.global: the file refers to os.system"},
      {"eval", pickled(p::global("builtins", "eval") + p::tuple({p::text("1")}) + "R"),
       "pth.global: the file refers to builtins.eval"},
      {"eval from the stack",
       raw("\x80\x04\x8c\x08"
           "builtins\x8c\x04"
           "eval\x93."),
       "builtins.eval"},
      {"a class of torch", pickled(p::global("torch.nn.modules.linear", "Linear") + ")\x81"),
       "pth.global"},
      {"an instance by INST", raw("\x80\x02(ios\nsystem\n."), "pth.pickle: opcode 0x69"},
      {"an instance by OBJ", raw("\x80\x02(No."), "pth.pickle: opcode 0x6f"},
      {"an extension", raw("\x80\x02\x82\x01."), "pth.pickle: opcode 0x82"},
      {"a text reference", raw("\x80\x02Pabc\n."), "pth.pickle: opcode 0x50"},
      {"NEWOBJ of a dict", pickled(p::global("collections", "OrderedDict") + ")\x81"),
       "pth.pickle"},
      {"a call of a text", pickled(p::text("x") + ")R"), "pth.pickle"},
      {"a state for a number", pickled("K\1}b"), "pth.pickle"},
      {"items for a tuple", pickled(")Na"), "pth.pickle"},
      {"a key without value", pickled("}(Nu"), "pth.pickle"},
      {"copies of copies", raw("\x80\x02" + copies + "."), "pth.limit"},
      {"marks without end", raw("\x80\x02" + std::string(1'100'000, '(')), "pth.limit"},
      {"a stack without end", raw("\x80\x02" + std::string(1'100'000, 'N')), "pth.limit"},
      {"lists without end", raw("\x80\x02" + std::string(1'100'000, ']')), "pth.limit"},
      {"a list that holds itself", raw("\x80\x02]q\0h\0a."s), "pth.state_dict"},
      {"a dict that holds itself", raw("\x80\x02}q\0X\5\0\0\0modelh\0s."s), "pth.state_dict"},
      {"a number", raw("\x80\x02K\1."), "pth.state_dict"},
      {"no tensors", pickled(p::dict({{"a", p::number(1)}})), "pth.state_dict"},
      {"two state dicts",
       pickled(p::dict({{"ema", p::dict({{"w", t}})}, {"model", p::dict({{"w", t}})}})),
       "pth.state_dict"},
      {"a tensor without a name", pickled("}(K\1" + t + "u"), "pth.state_dict"},
      {"a name twice", pickled(p::dict({{"w", t}, {"w", t}})), "pth.state_dict"},
      {"a name of 5,000 bytes", pickled(p::dict({{std::string(5000, 'w'), t}})), "pth.limit"},
      {"a storage with a path",
       one_tensor(p::tensor(p::storage("FloatStorage", "../0", 4), 0, {4}, {1})), "pth.storage"},
      {"a storage of an unknown class",
       one_tensor(p::tensor(p::storage("QInt8Storage", "0", 4), 0, {4}, {1})), "pth.global"},
      {"a storage of two sizes",
       pickled(
           p::dict({{"a", t}, {"b", p::tensor(p::storage("FloatStorage", "0", 3), 0, {3}, {1})}})),
       "pth.storage"},
      {"a storage of negative size",
       one_tensor(p::tensor(p::storage("FloatStorage", "0", -4), 0, {4}, {1})), "pth.tensor"},
      {"a storage of 2^62 elements",
       one_tensor(p::tensor(p::storage("FloatStorage", "0", std::int64_t{1} << 62), 0, {4}, {1})),
       "pth.storage"},
      {"a reference to no storage", pickled(p::tuple({"N", "N", "N", "N", "N"}) + "Q"),
       "pth.storage"},
      {"a tensor past its storage", one_tensor(p::tensor(four_floats(), 1, {4}, {1})),
       "pth.tensor"},
      {"strides past the storage", one_tensor(p::tensor(four_floats(), 0, {2, 2}, {3, 1})),
       "pth.tensor"},
      {"strides that overflow",
       one_tensor(p::tensor(four_floats(), 0, {3, 3}, {std::int64_t{1} << 62, 1 << 30})),
       "pth.tensor"},
      {"a negative stride", one_tensor(p::tensor(four_floats(), 3, {4}, {-1})), "pth.tensor"},
      {"a negative offset", one_tensor(p::tensor(four_floats(), -1, {4}, {1})), "pth.tensor"},
      {"a shape that overflows",
       one_tensor(p::tensor(four_floats(), 0, {1 << 30, 1 << 30, 1 << 30}, {0, 0, 0})),
       "pth.tensor"},
      {"a shape that overflows beside a zero",
       one_tensor(p::tensor(four_floats(), 0, {1 << 30, 1 << 30, 1 << 30, 0}, {0, 0, 0, 0})),
       "pth.tensor"},
      {"a stride of 0 that repeats", one_tensor(p::tensor(four_floats(), 0, {1 << 30}, {0})),
       "pth.tensor"},
      {"more dimensions than strides", one_tensor(p::tensor(four_floats(), 0, {2, 2}, {1})),
       "pth.tensor"},
      {"nine dimensions",
       one_tensor(p::tensor(four_floats(), 0, std::vector<std::int64_t>(9, 1),
                            std::vector<std::int64_t>(9, 1))),
       "pth.limit"},
      {"a tensor of a number",
       one_tensor(p::global("torch._utils", "_rebuild_tensor_v2") +
                  p::tuple({"K\1", "K\0"s, ")", ")"}) + "R"),
       "pth.tensor"},
      {"a negated view",
       one_tensor(p::global("torch._utils", "_rebuild_tensor_v2") +
                  p::tuple({four_floats(), "K\0"s, p::numbers({4}), p::numbers({1}), "\x89", "N",
                            p::dict({{"neg", "\x88"}})}) +
                  "R"),
       "pth.tensor"},
  };
}

TEST(HostileTorchFile, IsRefusedByName) {
  const TempDir dir;
  for (const auto& cases : {zip_cases(), pickle_cases()}) {
    for (const Hostile& c : cases) {
      SCOPED_TRACE(c.name);
      const std::string path = dir.write("hostile.pth", c.bytes);
      EXPECT_FAILS(WeightFiles::open(path), ErrorCode::input, c.rule);
    }
  }
}

TEST(HostileTorchFile, AnswersDamageWithAnErrorOrWithTensors) {
  const TempDir dir;
  const std::string good = torch_archive(shared_pickle(), {floats({1, 2, 3, 4, 5, 6})});
  std::mt19937 random(9);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string bad = good;
    for (auto n = 1 + random() % 3; n-- > 0;)
      bad[random() % bad.size()] = static_cast<char>(random());
    if (i % 8 == 0) bad.resize(random() % bad.size());
    const auto error = test::error_of([&] {
      const TorchFile file = TorchFile::open(dir.write("bad.pth", bad), DiskMode::buffered);
      for (const TorchTensor& t : file.tensors()) (void)bytes_of(file, t);
    });
    if (!error) continue;
    ++refused;
    EXPECT_EQ(error->code(), ErrorCode::input) << error->what();
  }
  EXPECT_GT(refused, 160);
}

}  // namespace
}  // namespace ballast::torch_file_test
