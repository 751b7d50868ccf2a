// A diffusion-pipe run as its author wrote it, paths aside: two experts of 14B, a 24 GB card.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "data/latent_cache.h"
#include "models/wan/config.h"
#include "models/wan/params.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/cpu_time.h"
#include "tests/support/sparse_checkpoint.h"

namespace ballast::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

using Flags = std::map<std::string, std::string>;

constexpr const char* kBigger = "24GB";

struct Answer {
  Finished finished;
  double cpu_seconds = 0;
  json out() const { return json::parse(finished.out); }
};

class DiffusionPipe24Gb : public ::testing::Test {
 protected:
  DiffusionPipe24Gb() {
    const wan::Config model = *wan::find_preset("wan2.2-i2v-a14b");
    support::SparseCheckpoint expert;
    each_parameter(model, [&](int, const std::string& name, const Shape& shape) {
      expert.add(name, DType::bf16, shape);
    });
    for (const char* folder : {"low_noise_model", "high_noise_model"}) {
      expert.write_below(dir_, fmt::format("model/{}/model.safetensors", folder));
    }
    dir_.write("data/clip.mp4", "not read before it is cached");
    dir_.write("data/clip.txt", "a squished thing");
    main_ = placed(golden_toml("main"), {{"models/Wan2.2-I2V-A14B", dir_.path("model")},
                                         {"dataset.toml", dir_.path("dataset.toml")},
                                         {"output/wan22_squish_i2v", dir_.path("out")}});
    dataset_ = placed(golden_toml("dataset"), {{"data/squish", dir_.path("data")}});
  }

  static std::string golden_toml(const std::string& name) {
    return read_whole(std::string(BALLAST_GOLDEN_DIR) + "/diffusion_pipe_24gb/" + name + ".toml");
  }
  static std::string placed(std::string text,
                            const std::vector<std::pair<std::string, std::string>>& paths) {
    for (const auto& [from, to] : paths) {
      text.replace(text.find("'" + from + "'"), from.size() + 2, "'" + to + "'");
    }
    return text;
  }

  Answer run(const std::string& command, const Flags& flags, bool as_json = true) const {
    std::vector<std::string> words = {command, dir_.write("main.toml", main_)};
    dir_.write("dataset.toml", dataset_);
    for (const auto& [flag, value] : flags) words.insert(words.end(), {flag, value});
    if (as_json) words.emplace_back("--json");
    const double before = children_cpu_seconds();
    Answer a{run_ballast(words)};
    a.cpu_seconds = children_cpu_seconds() - before;
    return a;
  }

  // Does what a line of advice says.
  void apply(const std::string& change, Flags& flags) {
    if (change.starts_with("--")) {  // "--gpu 2GB --ram 3GB"
      std::istringstream words(change);
      for (std::string flag, value; words >> flag >> value;) flags[flag] = value;
      return;
    }
    const std::regex line(R"((?:\[(\w+)\] )?(\w+) = (.*?)( in dataset\.toml)?)");
    std::smatch parts;
    ASSERT_TRUE(std::regex_match(change, parts, line)) << change;
    const std::regex key("(^|\n)" + parts[2].str() + " = [^\n]*");
    std::string& file = parts[4].matched ? dataset_ : main_;
    ASSERT_TRUE(std::regex_search(file, key)) << change;
    file = std::regex_replace(file, key, "$1" + parts[2].str() + " = " + parts[3].str());
  }

  TempDir dir_;
  std::string main_, dataset_;
};

std::uint64_t bytes(const json& j, const char* tier) {
  return j[tier]["peak_bytes"].get<std::uint64_t>();
}

TEST_F(DiffusionPipe24Gb, IsAcceptedWithLittleHostMemory) {
  const Flags flags = {{"--target", "rtx4090"}, {"--gpu", kBigger}, {"--ram", kBigger}};
  const Answer a = run("plan", flags);
  ASSERT_EQ(a.finished.exit_code, 0) << a.finished.err;
  RecordProperty("cpu_seconds", std::to_string(a.cpu_seconds));  // goal: 1
  const json j = a.out();
  EXPECT_TRUE(j["fits"]);
  EXPECT_LT(bytes(j, "host"), 8'000'000'000u);
  EXPECT_LE(bytes(j, "device"), 24'000'000'000u);
  const auto notes = j["notes"].get<std::vector<std::string>>();
  EXPECT_THAT(notes,
              Contains(AllOf(HasSubstr("low_noise_model'"), HasSubstr("high_noise_model'"))));
  EXPECT_THAT(notes, Contains(HasSubstr("not cached yet: planned for the largest bucket")));
  EXPECT_THAT(notes, Contains(HasSubstr("blocks_to_swap = 36 is a hint: 40 of 40 blocks stay")));
  const Answer text = run("plan", flags, false);
  EXPECT_THAT(text.finished.out,
              HasSubstr(fmt::format("{} of 24.00 GB RAM", Bytes{bytes(j, "host")})));
}

TEST_F(DiffusionPipe24Gb, IsPlannedBeforeThereAreClips) {
  std::filesystem::remove(dir_.path("data/clip.mp4"));
  std::filesystem::remove(dir_.path("data/clip.txt"));
  const Answer a = run("plan", {{"--target", "rtx4090"}, {"--gpu", kBigger}, {"--ram", kBigger}});
  ASSERT_EQ(a.finished.exit_code, 0) << a.finished.err;
  const auto notes = a.out()["notes"].get<std::vector<std::string>>();
  EXPECT_THAT(notes, Contains(HasSubstr("a latent of 6 x 64 x 64")));
  EXPECT_THAT(notes, Contains(HasSubstr("the data set is empty")));
  EXPECT_THAT(notes, Contains(HasSubstr("ar_buckets (line 4): has no effect")));
}

TEST_F(DiffusionPipe24Gb, FitsItsAuthorsMachineWithEveryBlockStreamedToo) {
  const Answer a = run(
      "plan",
      {{"--target", "rtx4090"}, {"--gpu", kBigger}, {"--ram", kBigger}, {"--stream_blocks", "36"}});
  ASSERT_EQ(a.finished.exit_code, 0) << a.finished.err;
  EXPECT_EQ(a.out()["streamed_blocks"], 36);
  EXPECT_LT(bytes(a.out(), "host"), 24'000'000'000u);
}

TEST_F(DiffusionPipe24Gb, IsRefusedWithAdviceThatIsTrue) {
  const Flags flags = {{"--target", "rtx4090"}, {"--gpu", "1GB"}, {"--ram", "2GB"}};
  const Answer refused = run("plan", flags);
  ASSERT_EQ(refused.finished.exit_code, 3) << refused.finished.err;
  RecordProperty("cpu_seconds", std::to_string(refused.cpu_seconds));  // goal: 5
  EXPECT_THAT(refused.finished.err,
              AllOf(HasSubstr("more GPU memory needed\n"), HasSubstr("more RAM needed\n"),
                    HasSubstr("in the step: "), HasSubstr("what would help")));
  const json j = refused.out();
  ASSERT_FALSE(j["advice"].empty());
  const double now = j["seconds_per_step"];
  std::vector<std::string> changes;
  const std::string main = main_, dataset = dataset_;
  for (const json& a : j["advice"]) {
    const std::string change = a["change"];
    EXPECT_THAT(change, Not(HasSubstr("swap")));
    changes.push_back(change);
    Flags with = flags;
    main_ = main, dataset_ = dataset;
    for (std::size_t at = 0; at < change.size();) {  // pairs are joined by " and "
      const std::size_t end = std::min(change.find(" and ", at), change.size());
      apply(change.substr(at, end - at), with);
      at = end + 5;
    }
    const Answer again = run("plan", with);
    SCOPED_TRACE(change);
    EXPECT_EQ(again.finished.exit_code, a["fits"] ? 0 : 3);
    const json k = again.out();
    for (const char* tier : {"device", "host", "disk"}) {
      EXPECT_EQ(a["needed_bytes"][tier], k[tier]["peak_bytes"]) << tier;
    }
    EXPECT_EQ(a["seconds_per_step"], k["seconds_per_step"]);
    EXPECT_DOUBLE_EQ(a["step_factor"], k["seconds_per_step"].get<double>() / now);
    std::uint64_t missing = 0;
    if (!a["fits"]) {
      for (const json& s : k["shortages"]) {
        missing += s["needed_bytes"].get<std::uint64_t>() - s["allowed_bytes"].get<std::uint64_t>();
      }
    }
    EXPECT_EQ(a["missing_bytes"], missing);
  }
  for (const char* expected : {"--gpu ", "--ram ", "[adapter] rank = 8",
                               "frame_buckets = ", "resolutions = [384] in dataset.toml"}) {
    EXPECT_THAT(changes, Contains(HasSubstr(expected)));
  }
}

TEST_F(DiffusionPipe24Gb, AdviceContainsWhatTheConfigurationDoesNotUseYet) {
  apply("transformer_dtype = 'bfloat16'", *std::make_unique<Flags>());
  apply("micro_batch_size_per_gpu = 2", *std::make_unique<Flags>());
  apply("gradient_accumulation_steps = 2", *std::make_unique<Flags>());
  const Answer a =
      run("plan",
          {{"--target", "rtx4090"}, {"--gpu", "3GB"}, {"--ram", "24GB"}, {"--policy", "resident"}});
  ASSERT_EQ(a.finished.exit_code, 3);
  std::vector<std::string> changes;
  const json j = a.out();
  for (const json& c : j["advice"]) changes.push_back(c["change"]);
  for (const char* expected : {"--policy auto", "transformer_dtype = 'float8'",
                               "micro_batch_size_per_gpu = 1", "gradient_accumulation_steps = 1"}) {
    EXPECT_THAT(changes, Contains(HasSubstr(expected)));
  }
}

TEST_F(DiffusionPipe24Gb, ForcedBlocksThatDoNotFitAreAdvisedToStream) {
  const Answer a =
      run("plan",
          {{"--target", "rtx4090"}, {"--gpu", "6GB"}, {"--ram", "24GB"}, {"--stream_blocks", "4"}});
  ASSERT_EQ(a.finished.exit_code, 3);
  const json j = a.out();
  EXPECT_EQ(j["advice"][0]["fits"], true);
  std::vector<std::string> changes;
  for (const json& c : j["advice"]) changes.push_back(c["change"]);
  EXPECT_THAT(changes, Contains("--stream_blocks 40"));
}

TEST_F(DiffusionPipe24Gb, TrainingStopsWithBothLines) {
  const Answer a = run("train", {}, false);
  EXPECT_EQ(a.finished.exit_code, 4);
  EXPECT_THAT(a.finished.err, AllOf(HasSubstr("low_noise_model'"), HasSubstr("high_noise_model'"),
                                    HasSubstr("experts = \"both\"")));
}

}  // namespace
}  // namespace ballast::test
