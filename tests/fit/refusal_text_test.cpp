#include "fit/refusal_text.h"

#include <gmock/gmock.h>

namespace ballast::fit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class RefusalText : public testing::Test {
 protected:
  PlanTitle title_ = {.model = "tiny",
                      .mode = "lora",
                      .shape = "17 frames",
                      .weights = "bf16 weights",
                      .machine = "this machine",
                      .budget = {.gpu = Bytes{4'000'000}, .host = Bytes{9'000'000}, .disk = {}}};
};

TEST_F(RefusalText, ARefusalSaysWhatIsShortALineEach) {
  const Refusal refusal = {.policy = "stream1",
                           .needed = {Bytes{6'600'000}, Bytes{10'000'000}, {}},
                           .shortages = {{.tier = Tier::device,
                                          .program = "step",
                                          .at = "blocks.3.backward.attention_backward",
                                          .needed = Bytes{6'600'000},
                                          .allowed = Bytes{4'000'000},
                                          .roles = {}},
                                         {.tier = Tier::host,
                                          .program = "update",
                                          .at = "",
                                          .needed = Bytes{10'000'000},
                                          .allowed = Bytes{9'000'000},
                                          .roles = {}}}};
  const std::vector<std::string> notes = {"a note"};
  const std::string text = refusal_text(refusal, title_, {.notes = notes});
  EXPECT_THAT(text, StartsWith("does not fit: 2.600 MB more GPU memory needed\n"
                               "does not fit: 1.000 MB more RAM needed\n"));
  EXPECT_THAT(text, AllOf(HasSubstr("in the step: attention backward of block 3"),
                          HasSubstr("even with the lowest-memory plan"), HasSubstr("  - a note")));
}

TEST_F(RefusalText, ARefusalForAFileNamesTheFile) {
  const Refusal refusal = {.policy = "resident",
                           .needed = {Bytes{}, Bytes{}, Bytes{7'500'000}},
                           .shortages = {{.tier = Tier::disk,
                                          .program = "step",
                                          .at = "",
                                          .needed = Bytes{7'500'000},
                                          .allowed = {},
                                          .roles = {},
                                          .outside = {{"merged base weights", Bytes{7'500'000}}}}}};
  const std::string text = refusal_text(refusal, title_);
  EXPECT_THAT(text,
              AllOf(StartsWith("does not fit: 7.500 MB more disk space needed\n"),
                    HasSubstr("most disk  merged base weights 7.500 MB"), Not(HasSubstr("()"))));
}

TEST_F(RefusalText, OnTheCpuOneRamBudgetIsOneShortage) {
  title_.shared_ram = true;
  title_.budget = {.gpu = Bytes{1'000'000}, .host = Bytes{1'000'000}, .disk = {}};
  const Refusal refusal = {.policy = "stream1",
                           .needed = {Bytes{2'000'000}, Bytes{1'000'000}, {}},
                           .shortages = {{.tier = Tier::device,
                                          .program = "step",
                                          .at = "",
                                          .needed = Bytes{2'000'000},
                                          .allowed = Bytes{1'000'000},
                                          .roles = {}},
                                         {.tier = Tier::host,
                                          .program = "step",
                                          .at = "",
                                          .needed = Bytes{3'000'000},
                                          .allowed = Bytes{1'000'000},
                                          .roles = {}}}};
  EXPECT_EQ(refusal_verdict(refusal, title_), "does not fit: 2.000 MB more RAM needed");
  title_.budget.gpu = Bytes{1'500'000};  // --gpu says something of its own
  EXPECT_THAT(refusal_verdict(refusal, title_), HasSubstr("RAM (compute share, --gpu)"));
}

}  // namespace
}  // namespace ballast::fit
