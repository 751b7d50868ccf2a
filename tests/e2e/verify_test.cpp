#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_safetensors.h"

namespace ballast::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kNoNetwork = {"half_formats", "dtypes", "optimizer", "flow_matching",
                                             "samplers"};

bool is_result(const std::string& name) {
  for (const char* prefix :
       {"out.", "mid.", "grad.", "expect.", "table.", "unipc.", "dpmpp.", "euler."}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

// A copy of a golden file whose first bytes of one tensor are replaced.
std::string altered(const TempDir& dir, const std::string& name, const std::string& tensor,
                    const std::string& bytes) {
  std::string content = read_whole(golden(name));
  const SafetensorsFile file = SafetensorsFile::open(golden(name), DiskMode::buffered);
  content.replace(file.get(tensor).offset, bytes.size(), bytes);
  return dir.write(name + ".safetensors", content);
}

template <class T>
std::string bytes_of(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// The same with a part of the header's text replaced by as many characters.
std::string altered_header(const TempDir& dir, const std::string& name, const std::string& from,
                           const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  std::string content = read_whole(golden(name));
  const std::size_t at = content.find(from);
  EXPECT_NE(at, std::string::npos);
  content.replace(at, from.size(), to);
  return dir.write(name + ".safetensors", content);
}

TEST(Verify, FilesWithoutANetworkPassWithEveryResultCompared) {
  std::vector<std::string> arguments = {"verify", "--json"};
  for (const std::string& name : kNoNetwork) arguments.push_back(golden(name));
  const Finished f = run_ballast(arguments);
  EXPECT_EQ(f.exit_code, 0) << f.err;
  const auto rows = nlohmann::json::parse(f.out).at("rows");
  ASSERT_EQ(rows.size(), kNoNetwork.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::size_t results = 0;
    for (const auto& [name, t] : read_tiny_safetensors(golden(kNoNetwork[i]))) {
      results += is_result(name);
    }
    EXPECT_EQ(rows[i].at("verdict"), "ok") << rows[i].dump(1);
    EXPECT_EQ(rows[i].at("compared"), results) << kNoNetwork[i];
    EXPECT_EQ(rows[i].at("policy"), "-");
  }
}

TEST(Verify, TableHasARowPerFileAndNoNetworkRunsOnceForAllPolicies) {
  const Finished f =
      run_ballast({"verify", golden("optimizer"), golden("dtypes"), "--policy", "all"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(std::count(f.out.begin(), f.out.end(), '\n'), 3) << f.out;
  EXPECT_THAT(f.out, AllOf(HasSubstr("optimizer.safetensors"), HasSubstr("dtypes.safetensors"),
                           HasSubstr("exact"), Not(HasSubstr("MISS"))));
}

TEST(Verify, ThreadCountChangesNoBit) {
  const TempDir dir;
  for (const std::string& name : kNoNetwork) {
    run_ballast({"verify", golden(name), "--threads", "1", "--out", dir.path("one")});
    run_ballast({"verify", golden(name), "--threads=3", "--out", dir.path("three")});
    const std::string file = "/" + name + ".safetensors";
    const std::string one = read_whole(dir.path("one") + file);
    EXPECT_FALSE(one.empty());
    EXPECT_EQ(one, read_whole(dir.path("three") + file)) << name;
  }
}

TEST(Verify, OutHoldsEveryResultWithItsDtypeAndShape) {
  const TempDir dir;
  for (const std::string& name : kNoNetwork) {
    ASSERT_EQ(run_ballast({"verify", golden(name), "--out", dir.path("a/b")}).exit_code, 0);
    const auto ours = read_tiny_safetensors(dir.path("a/b/" + name + ".safetensors"));
    for (const auto& [tensor, stored] : read_tiny_safetensors(golden(name))) {
      if (!is_result(tensor)) continue;
      ASSERT_TRUE(ours.contains(tensor)) << tensor;
      EXPECT_EQ(ours.at(tensor).dtype, stored.dtype) << tensor;
      EXPECT_EQ(ours.at(tensor).shape, stored.shape) << tensor;
    }
  }
}

const std::vector<std::string> kNetworks = {"dit_t2v_hd32",
                                            "dit_t2v_hd48_batch2",
                                            "dit_t2v_hd128",
                                            "dit_i2v",
                                            "dit_ti2v",
                                            "dit_grad_t2v",
                                            "dit_grad_ti2v",
                                            "dit_lora",
                                            "pipeline_t2v_unipc",
                                            "pipeline_t2v_dpmpp",
                                            "pipeline_i2v_unipc",
                                            "pipeline_ti2v_image",
                                            "vae21",
                                            "vae22"};

const std::vector<std::string> kTextEncoders = {"umt5_encoder", "umt5_hf"};
const std::vector<std::string> kTextModels = {"t5_seq2seq", "t5_hf_gated", "t5_hf_relu_tied"};

TEST(Verify, NetworksPassWithTheSameBitsUnderEveryPolicy) {
  std::vector<std::string> names = kNetworks;
  names.insert(names.end(), kTextEncoders.begin(), kTextEncoders.end());
  names.insert(names.end(), kTextModels.begin(), kTextModels.end());
  for (const std::string& name : names) {
    const Finished f = run_ballast({"verify", golden(name), "--policy", "all", "--json"});
    EXPECT_EQ(f.exit_code, 0) << f.err;
    std::size_t results = 0;
    for (const auto& [tensor, t] : read_tiny_safetensors(golden(name)))
      results += is_result(tensor);
    const auto rows = nlohmann::json::parse(f.out).at("rows");
    EXPECT_EQ(rows.size(), 12u);
    for (const auto& row : rows) EXPECT_EQ(row.at("compared"), results) << name;
  }
}

TEST(Verify, NetworksPassInBf16) {
  std::vector<std::string> arguments = {"verify", "--dtype", "bf16"};
  for (const std::string& name : kNetworks) arguments.push_back(golden(name));
  for (const std::string& name : kTextEncoders) arguments.push_back(golden(name));
  const Finished f = run_ballast(arguments);
  EXPECT_EQ(f.exit_code, 0) << f.out << f.err;
}

TEST(Verify, ChangedWeightOfANetworkIsAMiss) {
  const TempDir dir;
  const std::string path = altered(dir, "dit_grad_ti2v", "blocks.0.ffn.2.weight", bytes_of(0.125f));
  const Finished f = run_ballast({"verify", path, "--policy", "stream2", "--json"});
  EXPECT_EQ(f.exit_code, 7);
  std::map<std::string, bool> pass;
  const auto report = nlohmann::json::parse(f.out);
  for (const auto& c : report.at("rows").at(0).at("tensors")) {
    pass[c.at("tensor")] = c.at("pass");
  }
  EXPECT_FALSE(pass.at("out.0"));
  EXPECT_FALSE(pass.at("grad.blocks.0.ffn.2.weight"));
}

TEST(Verify, FlippedValueIsAMissThatNamesTheTensor) {
  const TempDir dir;
  const std::string path = altered(dir, "optimizer", "out.config1.v", bytes_of(1.0f));
  const Finished f = run_ballast({"verify", golden("dtypes"), path, golden("half_formats")});
  EXPECT_EQ(f.exit_code, 7);
  EXPECT_THAT(f.out, AllOf(HasSubstr("MISS"), HasSubstr("out.config1.v"),
                           HasSubstr("half_formats.safetensors")));  // all rows come first
  EXPECT_THAT(f.err, AllOf(HasSubstr("out.config1.v"), HasSubstr("at [0, 0]"),
                           HasSubstr("1 of 3 comparisons")));
}

TEST(Verify, OneUnitInTheLastPlaceOfANarrowFormatIsAMiss) {
  const TempDir dir;
  auto stored = read_tiny_safetensors(golden("half_formats")).at("out.bf16").as<std::uint16_t>();
  const std::string path = altered(dir, "half_formats", "out.bf16",
                                   bytes_of(static_cast<std::uint16_t>(stored[0] ^ 0x8000)));
  const Finished f = run_ballast({"verify", path});  // the sign of zero counts
  EXPECT_EQ(f.exit_code, 7);
  EXPECT_THAT(f.out, HasSubstr("out.bf16 (bits)"));
}

TEST(Verify, AnyNanEqualsAnyNan) {
  const TempDir dir;
  std::string content = read_whole(golden("half_formats"));
  const SafetensorsFile file = SafetensorsFile::open(golden("half_formats"), DiskMode::buffered);
  const std::size_t offset = file.get("out.bf16").offset;
  const auto stored =
      read_tiny_safetensors(golden("half_formats")).at("out.bf16").as<std::uint16_t>();
  std::size_t nans = 0;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if ((stored[i] & 0x7fff) <= 0x7f80) continue;
    content.replace(offset + 2 * i, 2, bytes_of(std::uint16_t{0xffab}));
    ++nans;
  }
  ASSERT_GT(nans, 0u);
  EXPECT_EQ(run_ballast({"verify", dir.write("half_formats.safetensors", content)}).exit_code, 0);
}

TEST(Verify, OutIsComputedFromInputsWhateverTheStoredResultsSay) {
  const TempDir dir;
  const std::string path =
      altered(dir, "flow_matching", "out.x_t", bytes_of(std::numeric_limits<float>::quiet_NaN()));
  EXPECT_EQ(run_ballast({"verify", path, "--out", dir.path("a")}).exit_code, 7);
  EXPECT_EQ(run_ballast({"verify", golden("flow_matching"), "--out", dir.path("b")}).exit_code, 0);
  EXPECT_EQ(read_whole(dir.path("a/flow_matching.safetensors")),
            read_whole(dir.path("b/flow_matching.safetensors")));
}

TEST(Verify, ChangedInputIsAMiss) {
  const TempDir dir;
  const std::string path = altered(dir, "flow_matching", "in.pred", bytes_of(7.5f));
  const Finished f = run_ballast({"verify", path});
  EXPECT_EQ(f.exit_code, 7);
  EXPECT_THAT(f.err, AllOf(HasSubstr("out.loss "), HasSubstr("out.grad_pred")));
}

TEST(Verify, StoredResultThatIsNotRecomputedIsAMiss) {
  const TempDir dir;
  const std::string path = altered_header(dir, "flow_matching", "\"out.x_t\"", "\"out.xyz\"");
  const Finished f = run_ballast({"verify", path});
  EXPECT_EQ(f.exit_code, 7);
  EXPECT_THAT(f.err, AllOf(HasSubstr("out.xyz"), HasSubstr("not recomputed")));
}

TEST(Verify, FileWithoutResultsIsComputedWithOutAndRefusedWithoutIt) {
  const TempDir dir;
  const SafetensorsFile file = SafetensorsFile::open(golden("optimizer"), DiskMode::buffered);
  const auto tensors = read_tiny_safetensors(golden("optimizer"));
  SafetensorsWriter writer({.metadata = file.metadata()});
  for (const SafetensorsEntry& e : file.entries()) {
    const std::string name(e.name);
    if (!is_result(name)) writer.add(name, file.dtype(e), e.shape, tensors.at(name).data);
  }
  const std::string path = dir.path("optimizer.safetensors");
  writer.write(path);
  const Finished refused = run_ballast({"verify", path});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("no results"));
  EXPECT_EQ(run_ballast({"verify", path, "--out", dir.path("a")}).exit_code, 0);
  EXPECT_EQ(run_ballast({"verify", golden("optimizer"), "--out", dir.path("b")}).exit_code, 0);
  EXPECT_EQ(read_whole(dir.path("a/optimizer.safetensors")),
            read_whole(dir.path("b/optimizer.safetensors")));
}

TEST(Verify, OtherFilesAreInputErrors) {
  const TempDir dir;
  const std::string plain =
      dir.write("plain.safetensors", std::string_view("\2\0\0\0\0\0\0\0{}", 10));
  const Finished not_golden = run_ballast({"verify", golden("dtypes"), plain});
  EXPECT_EQ(not_golden.exit_code, 4);
  EXPECT_THAT(not_golden.err, HasSubstr("is not a golden file"));

  const std::string unknown =
      altered_header(dir, "dtypes", "\"case\":\"dtypes\"", "\"case\":\"btypes\"");
  const Finished unknown_case = run_ballast({"verify", unknown});
  EXPECT_EQ(unknown_case.exit_code, 4);
  EXPECT_THAT(unknown_case.err,
              AllOf(HasSubstr("\"btypes\""), HasSubstr("flow_matching"), HasSubstr("dit_forward")));
}

TEST(Verify, HostileConfigIsAnInputErrorThatNamesTheKey) {
  const TempDir dir;
  const std::vector<std::array<std::string, 3>> changes = {
      {"\\\"steps\\\": 6", "\\\"steps\\\":-6", "\"steps\""},
      {"\\\"steps\\\": 6", "\\\"steps\\\": 7", "in.config0.grads"},
      {"\\\"steps\\\": 6", "\\\"stepz\\\": 6", "\"steps\""},
      {"\\\"lr\\\": 0.01", "\\\"lr\\\": -0.1", "\"lr\""},
      {"\\\"lr\\\": 0.01", "\\\"lr\\\": null", "\"lr\""},
      {"\\\"max_norms\\\"", "\\\"max_gnoms\\\"", "\"max_norms\""},
  };
  for (const auto& [from, to, key] : changes) {
    const Finished f = run_ballast({"verify", altered_header(dir, "optimizer", from, to)});
    EXPECT_EQ(f.exit_code, 4) << to;
    EXPECT_THAT(f.err, HasSubstr(key)) << to;
  }
}

TEST(Verify, UnknownPolicyAndMissingDeviceAreRefused) {
  const Finished policy = run_ballast({"verify", golden("dtypes"), "--policy", "stream3"});
  EXPECT_EQ(policy.exit_code, 2);
  EXPECT_THAT(policy.err, AllOf(HasSubstr("did you mean stream"), HasSubstr("keep-attention")));
  EXPECT_EQ(run_ballast({"verify", golden("dtypes"), "--dtype", "f8"}).exit_code, 2);
  EXPECT_EQ(run_ballast({"verify", golden("dtypes"), "--device", "cuda"}).exit_code, 5);
}

}  // namespace
}  // namespace ballast::test
