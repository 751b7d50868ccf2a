#include "report/page/plan_page.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/sha256.h"
#include "plan/program_builder.h"

namespace ballast::plan_page_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kHostile = "</script><script>alert('x')</script>&\"\x01\xff";
constexpr auto kNothing = [](const Bindings&) {};

class PlanPage : public testing::Test {
 protected:
  PlanPage() {
    ProgramBuilder step(set_, "step");
    const Buffer w = step.persistent("w", {1'000'000}, DType::u8, Role::weights);
    const Buffer kept = step.temp(kHostile, {500'000}, DType::u8, Role::checkpoint);
    step.emit("make", {.reads = {w}, .writes = {kept}}, kNothing);
    plan_ = plan_memory(set_);
    title_ = {.model = kHostile,
              .mode = "lora",
              .shape = "rank 4",
              .weights = "bf16",
              .machine = kHostile,
              .budget = {.gpu = Bytes{4'000'000}, .host = Bytes{9'000'000}, .disk = {}}};
  }
  MappedPlan mapped(const std::string& label = "this plan") const {
    return map_plan({.label = label,
                     .title = title_,
                     .set = set_,
                     .plan = plan_,
                     .lines = lines_,
                     .times = times_,
                     .timeline = {},
                     .verdict = "fits: it does",
                     .policy = kHostile,
                     .step_seconds = 2});
  }
  // The data of the page, as a browser finds it.
  static nlohmann::json data_of(const std::string& page) {
    const std::string begin = "<script type=\"application/json\" id=\"plans\">";
    const std::size_t from = page.find(begin) + begin.size();
    return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
  }

  ProgramSet set_;
  MemoryPlan plan_;
  std::vector<PredictedTime> times_ = {{.seconds = 2}};
  std::vector<ProcessLine> lines_ = {{kHostile, Bytes{2'000'000}, "", Tier::device},
                                     {"heap", Bytes{1'000'000}, "", Tier::host}};
  PlanTitle title_;
};

TEST_F(PlanPage, NamesNeverBecomeMarkup) {
  const std::vector<MappedPlan> plans = {mapped(), mapped(kHostile)};
  const std::string page = plan_page(title_, plans, "Compared with");
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("alert('x')</script>")));
  std::size_t ends = 0;
  for (std::size_t at = 0; (at = page.find("</script>", at)) != page.npos; ++at) ++ends;
  EXPECT_EQ(ends, 2u) << "the data's and the script's own";
  EXPECT_EQ(data_of(page)["plans"][1]["label"],
            "</script><script>alert('x')</script>&\"\x01\xEF\xBF\xBD");
}

TEST_F(PlanPage, SumsAreThePlansToTheByte) {
  const MappedPlan plan = mapped();
  const Bytes device = plan_.peak_of(Tier::device) + Bytes{2'000'000};
  EXPECT_EQ(plan.needed[0], device);
  EXPECT_EQ(plan.needed[1], Bytes{1'000'000});
  EXPECT_TRUE(plan.fits());
  const std::string page = plan_page(title_, std::vector{plan}, "");
  EXPECT_THAT(page, HasSubstr(std::to_string(device.count)));
  const auto j = data_of(page)["plans"][0];
  std::uint64_t sum = j["tiers"][0]["arena"];
  for (const auto& band : j["tiers"][0]["below"]) sum += band[1].get<std::uint64_t>();
  EXPECT_EQ(sum, device.count);
  EXPECT_EQ(j["tiers"][0]["planned"], device.count);
  EXPECT_EQ(j["tiers"][0]["allowed"], 4'000'000u);
  EXPECT_EQ(j["phases"][0]["tiers"][0]["peak"], plan_.peak_of(Tier::device).count);
  EXPECT_EQ(j["phases"][0]["tiers"][0]["live"], 1'500'000u);
}

TEST_F(PlanPage, OnTheCpuRamHoldsTheComputeShare) {
  title_.shared_ram = true;
  const MappedPlan plan = mapped();
  const auto j = data_of(plan_page(title_, std::vector{plan}, ""))["plans"][0];
  EXPECT_EQ(j["tiers"][1]["planned"], plan.needed[0].count + plan.needed[1].count);
  title_.budget.host = plan.needed[0] + plan.needed[1];
  EXPECT_TRUE(mapped().fits());
  title_.budget.host -= Bytes{1};
  EXPECT_FALSE(mapped().fits());
}

TEST_F(PlanPage, LoadsNothingAndRunsItsOwnScriptOnly) {
  const std::string page = plan_page(title_, std::vector{mapped()}, "");
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("script-src 'sha256-" + sha256_base64(kPlanPageScript) + "'"));
  for (const char* load : {"src=", "href=", "@import", "url(http", "fetch(", "innerHTML"}) {
    EXPECT_THAT(page, Not(HasSubstr(load))) << load;
  }
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
}

TEST_F(PlanPage, TellsDifferencesInWords) {
  MappedPlan first = mapped(), other = mapped();
  EXPECT_EQ(difference_text(first, other), "same step time");
  other.step_seconds = 1;
  other.needed[0] += Bytes{400'000};
  other.needed[1] -= Bytes{250'000};
  EXPECT_EQ(difference_text(first, other),
            "step 50 % faster, 400.0 kB more GPU memory, 250.0 kB less RAM");
  other.needed[0] = Bytes{5'000'000};
  EXPECT_THAT(difference_text(first, other), testing::StartsWith("does not fit; step 50 % faster"));
}

}  // namespace
}  // namespace ballast::plan_page_test
