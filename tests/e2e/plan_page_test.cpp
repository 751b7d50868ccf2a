#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/ballast_process.h"

namespace ballast::test {
namespace {

using ::testing::HasSubstr;

nlohmann::json plans_of(const std::string& page) {
  const std::string begin = "id=\"plans\">";
  const std::size_t from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from))["plans"];
}

std::vector<std::string> page_job(const std::string& gpu, const std::string& page,
                                  std::vector<std::string> more = {}) {
  std::vector<std::string> all = {"plan",    "--model",  "wan2.2-t2v-a14b",
                                  "--mode",  "lora",     "--frames",
                                  "25",      "--height", "512",
                                  "--width", "512",      "--ram",
                                  "32GB",    "--target", "rtx4090",
                                  "--gpu",   gpu,        "--json",
                                  "--html",  page};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(PlanPageFile, HasThePlansTotalsAndStaysSmall) {
  const TempDir dir;
  const std::string path = dir.path("plan.html");
  const Finished f = run_ballast(page_job("24GB", path, {"--versus", "--gpu 12GB"}));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const auto json = nlohmann::json::parse(f.out);
  const std::string page = read_whole(path);
  EXPECT_LT(page.size(), 3'000'000u);
  const auto plans = plans_of(page);
  ASSERT_EQ(plans.size(), 2u);
  std::size_t tier = 0;
  for (const char* name : {"device", "host", "disk"}) {
    EXPECT_EQ(plans[0]["tiers"][tier]["planned"], json[name]["peak_bytes"]) << name;
    EXPECT_EQ(plans[0]["tiers"][tier]["allowed"], json[name]["budget_bytes"]) << name;
    ++tier;
  }
  EXPECT_THAT(page, HasSubstr(std::to_string(json["device"]["peak_bytes"].get<std::uint64_t>())));
  for (const auto& phase : plans[0]["phases"]) {
    if (phase["name"] != "step") continue;
    EXPECT_EQ(phase["seconds"], json["step_seconds"]);
  }
  EXPECT_EQ(plans[1]["label"], "--gpu 12GB");
  EXPECT_LE(plans[1]["tiers"][0]["planned"], 12'000'000'000u);
}

TEST(PlanPageFile, OfARefusalShowsThePlanBehindEachLineOfAdvice) {
  const TempDir dir;
  const std::string path = dir.path("plan.html");
  const Finished f = run_ballast(page_job("1.8GB", path));
  EXPECT_EQ(f.exit_code, 3);
  const auto json = nlohmann::json::parse(f.out);
  const auto plans = plans_of(read_whole(path));
  ASSERT_EQ(plans.size(), 1 + json["advice"].size());
  EXPECT_EQ(plans[0]["tiers"][0]["planned"], json["device"]["peak_bytes"]);
  EXPECT_GT(plans[0]["tiers"][0]["planned"], plans[0]["tiers"][0]["allowed"]);
  for (std::size_t i = 0; i < json["advice"].size(); ++i) {
    EXPECT_EQ(plans[i + 1]["label"], json["advice"][i]["change"]);
    EXPECT_EQ(plans[i + 1]["tiers"][0]["planned"], json["advice"][i]["needed_bytes"]["device"]);
  }
}

TEST(PlanPageFile, AGridPlansEveryCombination) {
  const Finished f =
      run_ballast({"plan", "--model", "wan2.2-ti2v-5b", "--height", "512", "--width", "512",
                   "--ram", "32GB", "--target", "rtx4090", "--grid", "gpu=1GB,24GB frames=5,25"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("--gpu 24GB --frames 5 "));
  EXPECT_THAT(f.out, HasSubstr("--gpu 1GB --frames 25"));
  EXPECT_THAT(f.out, HasSubstr("does not fit"));
  const Finished wrong = run_ballast({"plan", "--model", "wan2.2-ti2v-5b", "--grid", "gpu"});
  EXPECT_EQ(wrong.exit_code, 2);
}

}  // namespace
}  // namespace ballast::test
