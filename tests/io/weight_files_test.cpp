#include "io/weight_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "io/weight_index.h"
#include "tests/support/errors.h"
#include "tests/support/hostile_safetensors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::safetensors;
using test::TempDir;
using test::tensor;

constexpr const char* kIndex = "model.safetensors.index.json";

// One U8 tensor of four bytes per name.
std::string shard(const std::vector<std::string>& names) {
  std::string header, data;
  for (const std::string& name : names) {
    header += header.empty() ? "{" : ",";
    header += tensor(name, "U8", "[4]", fmt::format("[{},{}]", data.size(), data.size() + 4));
    data += (name + "....").substr(0, 4);
  }
  return safetensors(header.empty() ? "{}" : header + "}", data);
}

struct TwoShards {
  TempDir folder;
  TwoShards() {
    folder.write("model-00001-of-00002.safetensors", shard({"a", "b"}));
    folder.write("model-00002-of-00002.safetensors", shard({"c"}));
  }
  std::string index(std::string_view text) const { return folder.write(kIndex, text); }
  std::string index_path() const { return folder.path(kIndex); }
};

constexpr std::string_view kGood =
    R"({"metadata":{"total_size":12},"weight_map":{"a":"model-00001-of-00002.safetensors",)"
    R"("b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}})";

std::string read(const WeightFiles& c, std::string_view name) {
  const WeightTensor& t = c.get(name);
  std::string to(t.entry->bytes, '\0');
  c.read(t, std::as_writable_bytes(std::span(to)));
  return to;
}

TEST(WeightFiles, OpensASingleFile) {
  const TempDir folder;
  const WeightFiles c = WeightFiles::open(folder.write("any.safetensors", shard({"a", "b"})));
  EXPECT_EQ(c.tensors().size(), 2u);
  EXPECT_EQ(read(c, "b"), "b...");
  EXPECT_EQ(c.find("c"), nullptr);
  EXPECT_TRUE(c.warnings().empty());
  EXPECT_FAILS(c.get("c"), ErrorCode::input, "there is no tensor \"c\"");
}

TEST(WeightFiles, OpensShardsThroughTheirIndex) {
  const TwoShards files;
  files.folder.write("config.json", "{}");
  files.index(kGood);
  for (const std::string& path : {files.index_path(), files.folder.path()}) {
    WeightFiles opened = WeightFiles::open(path);
    const Extent before = opened.extent(opened.get("c"));
    const WeightFiles c = std::move(opened);
    EXPECT_EQ(c.files().size(), 2u);
    EXPECT_EQ(c.tensors().size(), 3u);
    EXPECT_EQ(c.get("a").file, 0u);
    EXPECT_EQ(c.get("c").file, 1u);
    EXPECT_EQ(read(c, "a") + read(c, "b") + read(c, "c"), "a...b...c...");
    EXPECT_EQ(c.extent(c.get("c")).file, before.file);
    EXPECT_EQ(c.dtype(c.get("c")), DType::u8);
    EXPECT_TRUE(c.warnings().empty()) << c.warnings()[0];
    EXPECT_EQ(c.config_path(), files.folder.path("config.json"));
  }
}

TEST(WeightFiles, FollowsLinksAsHubSnapshotsUseThem) {
  const TempDir cache;
  cache.write("blobs/1", shard({"a"}));
  cache.write("blobs/2", R"({"metadata":{"total_size":4},"weight_map":{"a":"sub/m.safetensors"}})");
  std::filesystem::create_directories(cache.path("snapshots/x/sub"));
  ASSERT_EQ(::symlink("../../../blobs/1", cache.path("snapshots/x/sub/m.safetensors").c_str()), 0);
  ASSERT_EQ(::symlink("../../blobs/2", (cache.path("snapshots/x/") + kIndex).c_str()), 0);
  const WeightFiles c = WeightFiles::open(cache.path("snapshots/x"));
  EXPECT_EQ(read(c, "a"), "a...");
  EXPECT_TRUE(c.warnings().empty());
}

TEST(WeightFiles, AFolderHoldsExactlyOneModel) {
  const TempDir folder;
  std::filesystem::create_directory(folder.path("high_noise_model"));
  EXPECT_FAILS(WeightFiles::open(folder.path()), ErrorCode::input,
               "folder.empty: it holds no *.safetensors.index.json, no *.safetensors and no *.pth, "
               "*.pt or *.bin; its "
               "folders: \"high_noise_model\"");
  folder.write("one.safetensors", shard({"a"}));
  EXPECT_EQ(WeightFiles::open(folder.path()).tensors().size(), 1u);
  EXPECT_EQ(WeightFiles::open(folder.path()).config_path(), std::nullopt);
  folder.write("two.safetensors", shard({"a"}));
  EXPECT_FAILS(WeightFiles::open(folder.path()), ErrorCode::input,
               "folder.ambiguous: it holds 2 safetensors files and no index, name one of "
               "\"one.safetensors\", \"two.safetensors\"");
  folder.write("m.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors"}})");
  EXPECT_EQ(WeightFiles::open(folder.path()).files().size(), 1u);
  folder.write("n.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors"}})");
  EXPECT_FAILS(WeightFiles::open(folder.path()), ErrorCode::input,
               "folder.ambiguous: it holds 2 ind");
  EXPECT_FAILS(WeightFiles::open(folder.path("absent")), ErrorCode::io, "No such file");
  EXPECT_FAILS(WeightFiles::open(folder.path("absent.index.json")), ErrorCode::io, "No such file");
}

TEST(WeightFiles, WarnsAndGoesOn) {
  const TwoShards files;
  files.folder.write("model-00003-of-00002.safetensors", shard({"stray"}));
  files.folder.write("other.safetensors", shard({"another model"}));
  for (const char* metadata :
       {"", R"("metadata":{},)", R"("metadata":null,)", R"("metadata":[1],)",
        R"("metadata":{"total_size":"8"},)", R"("metadata":{"total_size":8.0},)",
        R"("metadata":{"total_size":1e999},)", R"("metadata":{"total_size":9},)"}) {
    files.index(std::string("{") + metadata +
                R"("weight_map":{"a":"model-00001-of-00002.safetensors",)"
                R"("c":"model-00002-of-00002.safetensors"},"more":[{}]})");
    const WeightFiles c = WeightFiles::open(files.folder.path());
    EXPECT_EQ(c.tensors().size(), 2u);
    EXPECT_EQ(c.find("b"), nullptr);
    EXPECT_EQ(read(c, "c"), "c...");
    EXPECT_THAT(c.warnings(),
                testing::ElementsAre(testing::HasSubstr("total_size"),
                                     testing::HasSubstr("1 tensors of the shards are not in the "
                                                        "index and are left out: \"b\""),
                                     testing::HasSubstr("\"model-00003-of-00002.safetensors\"")));
    for (const std::string& warning : c.warnings()) {
      EXPECT_THAT(warning, testing::StartsWith(files.index_path() + ": "));
    }
  }
}

TEST(WeightFiles, RefusesAnIndexThatDoesNotHold) {
  const TwoShards files;
  const auto refused = [&](std::string_view map, const char* rule) {
    files.index(fmt::format(R"({{"metadata":{{"total_size":1}},"weight_map":{}}})", map));
    EXPECT_FAILS(WeightFiles::open(files.folder.path()), ErrorCode::input,
                 files.index_path() + ": " + rule);
  };
  refused("{}", "index.weight_map: \"weight_map\" names no tensor");
  refused("[]", "index.weight_map");
  refused("null", "index.weight_map");
  refused("\"a\"", "index.weight_map");
  refused(R"({"a":1})", "index.json");
  refused(R"({"a":null})", "index.json");
  refused(R"({"a":"x.safetensors","a":"x.safetensors"})", "index.duplicate_name");
  refused(R"({"a":"/etc/passwd"})", "index.shard_name");
  refused(R"({"a":""})", "index.shard_name");
  refused(R"({"a":".."})", "index.shard_name");
  refused(R"({"a":"../m.safetensors"})", "index.shard_name");
  refused(R"({"a":"sub/../../m.safetensors"})", "index.shard_name");
  refused(R"({"a":"sub/.."})", "index.shard_name");
  refused(R"({"a":"sub/"})", "index.shard_name");
  refused(R"({"a":"sub\\m.safetensors"})", "index.shard_name");
  refused(R"({"a":"m\u0000.safetensors"})", "index.shard_name");
  refused(R"({"a":"m\u001b.safetensors"})", "index.shard_name");
  refused(R"({"a":"pytorch_model-00001-of-00002.bin"})", "index.shard_name");
  refused(R"({"a":"absent.safetensors","b":"gone.safetensors"})",
          "index.shard_missing: 2 of 2 shards are not there: \"absent.safetensors\", "
          "\"gone.safetensors\"");
  refused(R"({"a":"model-00002-of-00002.safetensors"})", "index.tensor_missing: tensor \"a\"");
  refused(R"({"a":"model-00001-of-00002.safetensors","c":"model-00001-of-00002.safetensors"})",
          "index.tensor_missing: tensor \"c\"");
  refused(R"({"a":"model-00001-of-00002.safetensors")", "index.json");
  files.index(R"({"metadata":{"total_size":1}})");
  EXPECT_FAILS(WeightFiles::open(files.folder.path()), ErrorCode::input, "index.weight_map");
  files.index(R"({"weight_map":{},"weight_map":{}})");
  EXPECT_FAILS(WeightFiles::open(files.folder.path()), ErrorCode::input, "index.json");
  files.index("[]");
  EXPECT_FAILS(WeightFiles::open(files.folder.path()), ErrorCode::input, "index.json");
  files.index("{\"\xff\":1}");
  EXPECT_FAILS(WeightFiles::open(files.folder.path()), ErrorCode::input, "invalid UTF-8");
}

TEST(WeightFiles, RefusesOneTensorInTwoShards) {
  const TwoShards files;
  files.folder.write("model-00002-of-00002.safetensors", shard({"c", "a"}));
  files.index(kGood);
  EXPECT_FAILS(WeightFiles::open(files.folder.path()), ErrorCode::input,
               "index.two_shards: tensor \"a\"");
}

TEST(WeightFiles, NamesTheShardThatIsBroken) {
  const TwoShards files;
  const std::string broken =
      files.folder.write("model-00002-of-00002.safetensors", shard({"c"}) + "x");
  files.index(kGood);
  EXPECT_FAILS(WeightFiles::open(files.folder.path()), ErrorCode::input, broken + ": st.trailing");
}

TEST(WeightFiles, RefusesAnIndexAboveTheCapBeforeReadingIt) {
  const TempDir folder;
  const std::string path = folder.write(kIndex, "");
  ASSERT_EQ(::truncate(path.c_str(), (256ll << 20) + 1), 0);
  EXPECT_FAILS(WeightFiles::open(path), ErrorCode::input, "index.limit");
}

TEST(WeightIndex, KeepsDecodedNamesAndCountsShards) {
  std::string map;
  for (int i = 0; i < 4097; ++i) {
    map += fmt::format(R"({}"\u0061{}":"{}.safetensors")", i ? "," : "", i, i);
  }
  const std::string text = R"({"weight_map":{)" + map + "}}";
  EXPECT_FAILS(parse_weight_index(text, "i"), ErrorCode::input, "index.limit: more than 4096");
  const std::string two = R"({"weight_map":{"\u0061":"x","b":"y","c":"x"}})";
  const WeightIndex index = parse_weight_index(two, "i");
  EXPECT_EQ(index.shards, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(index.weight_map[0].name, "a");
  EXPECT_EQ(index.weight_map[2].shard, 0u);
}

}  // namespace
}  // namespace ballast
