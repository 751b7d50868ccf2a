#include <gmock/gmock.h>

#include "io/safetensors.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_text_model.h"

namespace ballast::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class GenerateCommand : public ::testing::Test {
 protected:
  Finished generate(std::vector<std::string> more) const {
    std::vector<std::string> all = {"generate", "--device", "cpu", "--max-new-tokens", "6"};
    all.insert(all.end(), more.begin(), more.end());
    return run_ballast(all);
  }
  static std::int64_t lines(const std::string& text) { return std::ranges::count(text, '\n'); }

  const TempDir dir_;
  const std::string model_ = support::write_text_model(dir_, "model");
};

TEST_F(GenerateCommand, WritesALineForEveryPromptWhateverThePolicy) {
  const std::string prompts = dir_.write("prompts.txt", "count to five\n\nsay red and blue\r\n");
  const Finished f = generate({"--model", model_, "--prompt-file", prompts});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(lines(f.out), 2);
  EXPECT_THAT(f.err, AllOf(HasSubstr("2 prompts"), HasSubstr("measured")));
  const Finished g = generate({"--model", model_, "--prompt-file", prompts, "--policy", "stream1",
                               "--threads", "1", "--output", dir_.path("texts")});
  ASSERT_EQ(g.exit_code, 0) << g.err;
  EXPECT_EQ(read_whole(dir_.path("texts")), f.out);
  const Finished one = generate({model_, "count to five"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out, f.out.substr(0, f.out.find('\n') + 1)) << "texts do not depend on others";
  const Finished json =
      generate({model_, "count to five", "--json", "--num-beams", "3", "--source-prefix", "say "});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  EXPECT_THAT(json.out, AllOf(HasSubstr("\"texts\""), HasSubstr("\"measured\""),
                              HasSubstr("\"device_bytes\"")));
}

// Weights that are numbers, and scores that are not.
TEST_F(GenerateCommand, EndsWithAnErrorWhereNoTokenCanBeChosen) {
  const std::string path = model_ + "/model.safetensors";
  const SafetensorsFile file = SafetensorsFile::open(path);
  const SafetensorsEntry& norm = file.get("decoder.final_layer_norm.weight");
  const std::vector<float> huge(norm.bytes / sizeof(float), 3e38f);
  std::fstream to(path, std::ios::in | std::ios::out | std::ios::binary);
  to.seekp(static_cast<std::streamoff>(norm.offset));
  to.write(reinterpret_cast<const char*>(huge.data()), static_cast<std::streamsize>(norm.bytes));
  to.close();
  for (const char* beams : {"1", "3"}) {
    const Finished f = generate({model_, "count to five", "--num-beams", beams});
    EXPECT_EQ(f.exit_code, 4) << f.out;
    EXPECT_EQ(f.out, "");
    EXPECT_THAT(f.err, HasSubstr("scores of token 1 hold NaN or infinity"));
  }
}

TEST_F(GenerateCommand, SaysWhatIsMissing) {
  EXPECT_EQ(generate({}).exit_code, 2);
  const Finished budget = generate({model_, "say red", "--gpu", "2KB"});
  EXPECT_EQ(budget.exit_code, 3);
  EXPECT_THAT(budget.err,
              AllOf(HasSubstr("more RAM (compute share, --gpu) needed"), HasSubstr("2.000 kB"),
                    HasSubstr("generate: 1 prompt, at most 6 tokens each"),
                    ContainsRegex("--gpu [0-9]+MB: fits: "), HasSubstr("--max-new-tokens 3")));
  const Finished nothing = generate({model_, "say red", "--ram", "0B"});
  EXPECT_EQ(nothing.exit_code, 3) << nothing.err;
  const Finished gone = generate({dir_.path("nothing"), "say red"});
  EXPECT_EQ(gone.exit_code, 6);
  EXPECT_THAT(gone.err, HasSubstr("nothing is downloaded"));
  const Finished slip = generate({model_, "say red", "--num-beam", "2"});
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_THAT(slip.err, HasSubstr("--num-beams"));
}

}  // namespace
}  // namespace ballast::test
