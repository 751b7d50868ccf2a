#include "report/plan_table.h"

#include <gmock/gmock.h>

#include <sstream>

#include "plan/program_builder.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr auto kNothing = [](const Bindings&) {};

// A step and its update, with one line outside the arenas.
class PlanTable : public testing::Test {
 protected:
  PlanTable() {
    ProgramBuilder step(set_, "step");
    const Buffer w = step.persistent("w", {1'000'000}, DType::u8, Role::weights);
    const Buffer kept = step.temp("kept", {500'000}, DType::u8, Role::checkpoint);
    step.emit("make", {.reads = {w}, .writes = {kept}}, kNothing);
    ProgramBuilder update(set_, "update");
    const Buffer scratch = update.temp("scratch", {1000}, DType::u8, Role::workspace);
    update.emit("apply", {.reads = {w}, .writes = {scratch}}, kNothing);
    plan_ = plan_memory(set_);
    title_ = {.model = "tiny",
              .mode = "lora",
              .shape = "rank 4",
              .weights = "bf16",
              .machine = "a machine",
              .budget = {.gpu = Bytes{4'000'000}, .host = Bytes{9'000'000}, .disk = {}}};
  }

  PlanView view() const {
    return {.plan = plan_,
            .times = times_,
            .lines = lines_,
            .policy = "resident",
            .policy_text = "weights resident",
            .step_seconds = {9.96},
            .passes = {{.count = 4, .shortest = 2.49, .longest = 2.49}},
            .notes = {"one note", "another note", "one note"}};
  }
  std::string table(const PlanStyle& style = {}) const { return plan_table(title_, view(), style); }

  ProgramSet set_;
  MemoryPlan plan_;
  std::vector<PredictedTime> times_ = {{.seconds = 2.49}, {.seconds = 0.001}};
  std::vector<ProcessLine> lines_ = {{"process baseline", Bytes{2'000'000}, "heap of the program"}};
  PlanTitle title_;
};

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST_F(PlanTable, BeginsWithTheVerdictThenTotalsThenTheRunThenNotes) {
  const std::string text = table();
  EXPECT_THAT(text,
              StartsWith("fits: 1.500 MB of 4.000 MB GPU memory, 2.000 MB of 9.000 MB RAM\n"));
  std::size_t last = 0;
  for (const char* part : {"memory  ", "GPU memory  ", "RAM  ", "disk  ", "run  ", "machine  ",
                           "policy     resident: weights resident", "step  ", "notes\n"}) {
    const std::size_t at = text.find(std::string("\n") + part);
    ASSERT_NE(at, text.npos) << part << "\n" << text;
    EXPECT_GT(at, last) << part;
    last = at;
  }
}

TEST_F(PlanTable, SaysANoteOnce) {
  EXPECT_EQ(count(table(), "one note"), 1u);
  EXPECT_EQ(count(table(), "another note"), 1u);
}

TEST_F(PlanTable, NotesWithOneReasonAreOneNote) {
  const std::vector<std::string> notes = {"--a: ignored: launcher option", "a note",
                                          "--b: ignored: launcher option"};
  EXPECT_EQ(notes_text(notes, 0), "\nnotes\n  - --a, --b: ignored: launcher option\n  - a note\n");
}

TEST_F(PlanTable, ThePhasesStandBehindDetails) {
  const std::string brief = table(), all = table({.details = true});
  EXPECT_THAT(brief, AllOf(Not(HasSubstr("saved activations")), Not(HasSubstr("process baseline")),
                           HasSubstr("--details")));
  EXPECT_THAT(all, AllOf(HasSubstr("saved activations 500.0 kB"), HasSubstr("process baseline"),
                         HasSubstr("one pass"), Not(HasSubstr("--details"))));
}

TEST_F(PlanTable, TheStepIsAllOfItsPasses) {
  EXPECT_THAT(table(), HasSubstr("step       9.96 s (4 passes of 2.49 s)\n"));
  EXPECT_EQ(step_text(1.18, {.count = 1, .shortest = 1.1, .longest = 1.1}), "1.18 s");
  EXPECT_EQ(step_text(3, {.count = 2, .shortest = 0.5, .longest = 2.5}),
            "3.00 s (2 passes of 500.0 ms to 2.50 s)");
  EXPECT_EQ(step_text(4, {.count = 2, .shortest = 2, .longest = 2, .waiting = 1}),
            "4.00 s (2 passes of 2.00 s), of which 1.00 s waiting for data");
}

TEST_F(PlanTable, NoLineIsWiderThanItsColumns) {
  title_.shape = "81 frames of 832 x 480, 32760 tokens, both experts, and a great many more words";
  for (const std::size_t columns : {60u, 80u}) {
    std::istringstream lines(table({.details = true, .columns = columns}));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), columns) << line;
  }
}

TEST_F(PlanTable, OnTheCpuItSpeaksOfRamAlone) {
  title_.shared_ram = true;
  EXPECT_THAT(table(),
              AllOf(StartsWith("fits: 3.500 MB of 9.000 MB RAM\n"),
                    HasSubstr("RAM (compute share, --gpu)"), Not(HasSubstr("GPU memory"))));
}

TEST_F(PlanTable, AStageThatNeedsMoreDecidesTheTotals) {
  PlanView v = view();
  v.stages = {{.name = "decoding", .how = "in bands", .device = Bytes{3'000'000}, .host = {}}};
  EXPECT_THAT(plan_table(title_, v),
              AllOf(StartsWith("fits: 3.000 MB of 4.000 MB GPU memory"),
                    HasSubstr("decoding   3.000 MB of GPU memory, 0 B of RAM; in bands")));
}

TEST(PlanEffects, SayWhetherAChangeIsEnoughAndWhatItCosts) {
  PlannedChange c = {.text = "--frames 41", .missing = Bytes{1'700'000}, .step_factor = 0.94};
  EXPECT_EQ(effect_of(c), "not enough alone: 1.700 MB short; step 6 % faster");
  c.fits = true;
  c.needed = {Bytes{4'900'000}, Bytes{1'200'000}, {}};
  c.step_factor = 1.1;
  EXPECT_EQ(effect_of(c), "fits: 4.900 MB of GPU memory, 1.200 MB of RAM; step 10 % slower");
  c.step_factor = 1;
  EXPECT_EQ(effect_of(c, true), "fits: 6.100 MB of RAM; same step time");
  c.step_factor = 2.5;
  EXPECT_THAT(effect_of(c), HasSubstr("step takes 2.5 times as long"));
}

}  // namespace
}  // namespace ballast
