#include "dist/control_report.h"

#include <gmock/gmock.h>
#include <signal.h>

#include "core/to_size.h"

namespace ballast::control_report_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class ControlReports : public testing::Test {
 protected:
  explicit ControlReports(int ranks = 3) : peers_(to_size(ranks)) {
    for (ControlPeer& p : peers_) {
      p.state = ControlPeer::State::here;
      put_text(p.beat.phase, "step");
      p.beat.step = 7;
      p.beat.total_steps = 20;
    }
    put_text(peers_[0].beat.folder, "out/run");
    peers_[0].beat.checkpoint = 6;
  }
  static ControlTime at(int milliseconds) {
    return ControlTime(std::chrono::milliseconds(milliseconds));
  }
  void fails(int rank, ErrorCode code, const std::string& text, int when) {
    peers_[to_size(rank)].failure = ControlFailure{.code = code, .text = text};
    peers_[to_size(rank)].told = at(when);
  }
  void goes(int rank, int when) {
    peers_[to_size(rank)].state = ControlPeer::State::gone;
    if (!peers_[to_size(rank)].failure) peers_[to_size(rank)].told = at(when);
  }
  ControlReport report(const ControlFindings& findings = {}) const {
    return make_report(find_cause(peers_).value(), peers_, findings);
  }

  std::vector<ControlPeer> peers_;
};

TEST_F(ControlReports, TheEarliestErrorOrEndIsTheCause) {
  EXPECT_FALSE(find_cause(peers_).has_value());
  fails(0, ErrorCode::lost, "rank 2 is gone", 1);
  EXPECT_EQ(find_cause(peers_)->kind, ControlCause::Kind::parted);
  goes(2, 5);
  EXPECT_EQ(find_cause(peers_)->rank, 2);
  EXPECT_EQ(find_cause(peers_)->kind, ControlCause::Kind::gone);
  fails(1, ErrorCode::io, "disk", 4);
  EXPECT_EQ(find_cause(peers_)->rank, 1);
  goes(1, 9);
  EXPECT_EQ(find_cause(peers_)->kind, ControlCause::Kind::failed) << "its end follows its error";
}

TEST_F(ControlReports, AKilledRankIsNamedWithItsSignalAndWhatMemoryHadToDoWithIt) {
  goes(1, 1);
  ControlFindings f = {
      .command = "ballast train x.toml --ranks 3",
      .end = RankLoss{.rank = 1, .cause = RankLoss::Cause::killed, .value = SIGKILL},
      .oom_kills = 0};
  const ControlReport innocent = report(f);
  EXPECT_EQ(innocent.code, ErrorCode::lost);
  EXPECT_THAT(innocent.text,
              AllOf(HasSubstr("ballast: rank 1 was killed by SIGKILL in step 8 of 20, phase step"),
                    HasSubstr("memory was not the cause"), HasSubstr("2 ranks stopped"),
                    HasSubstr("newest whole checkpoint: step 6"),
                    HasSubstr("1. ballast train x.toml --ranks 3 --resume: continues"),
                    HasSubstr("2. ballast doctor out/run"), Not(HasSubstr("dmesg"))));
  f.oom_kills = 2;
  EXPECT_THAT(report(f).text,
              AllOf(HasSubstr("the kernel has ended 2 processes"), HasSubstr("dmesg")));
  f.command += " --resume";
  EXPECT_THAT(report(f).text, Not(HasSubstr("--resume --resume")));
}

TEST_F(ControlReports, AnErrorBeforeTheRunIsSaidPlainly) {
  for (ControlPeer& p : peers_) p.beat = {};
  fails(1, ErrorCode::input, "x.toml: line 3", 1);
  EXPECT_EQ(report().text, "ballast: rank 1: x.toml: line 3\n");
  EXPECT_EQ(report().line, "stopped: rank 1 failed");
  for (int r : {0, 2}) fails(r, ErrorCode::input, "x.toml: line 3", 2);
  EXPECT_EQ(report().text, "ballast: x.toml: line 3\n");
  EXPECT_EQ(report().line, "") << "all have the same to say";
}

TEST_F(ControlReports, TheFirstOfThoseThatShareATerminalPrintsTheWhole) {
  peers_[2].hello.output_file = 9;
  EXPECT_EQ(choose_printers(peers_, {true, true, true}), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(choose_printers(peers_, {false, true, true}), (std::vector<bool>{false, true, true}));
}

TEST_F(ControlReports, ATableSaysWhoHasWhat) {
  const ControlFacts a = {.facts = {{"version", "1"}, {"model file", "00"}}};
  const ControlFacts b = {.facts = {{"version", "1"}, {"model file", "ff"}}};
  const ControlFacts c = {.facts = {{"version", "1"}}};
  EXPECT_EQ(table_of_differences(std::vector{a, a}), "");
  EXPECT_EQ(table_of_differences(std::vector{a, b, a}),
            "\n  model file\n    ranks 0, 2   00\n    rank 1       ff");
  EXPECT_THAT(table_of_differences(std::vector{a, c}), HasSubstr("model file"));
}

}  // namespace
}  // namespace ballast::control_report_test
