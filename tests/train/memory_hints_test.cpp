// Keys of other trainers that ask for less memory and more time are hints. A plan that does less of
// it says so and names what forces it; what it names does.

#include <gmock/gmock.h>

#include "tests/support/applied_advice.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/config/read_config.h"
#include "train/run/run_plan.h"

namespace ballast::train::memory_hints_test {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

struct Planned {
  PreparedRun run;
  fit::PlannedRun plan;
  std::vector<std::string> notes;
};

class MemoryHints : public ::testing::Test {
 protected:
  MemoryHints() { training_.add_clips(2, {4, 2, 4, 4}); }

  static Planned planned(const Words& words) {
    Planned p = {prepare_run(read_config(words), support::small_machine(), Purpose::train), {}, {}};
    auto outcome = fit::find_plan(p.run.request);
    p.plan = std::move(std::get<fit::PlannedRun>(outcome));
    p.notes = view_of(p.run.request, p.plan, &p.run).notes;
    return p;
  }
  // "x is a hint: y, which is faster; z forces it": z
  static std::string forcing(const std::vector<std::string>& notes, const std::string& hint) {
    for (const std::string& n : notes) {
      std::smatch parts;
      const std::regex text(R"((.*) is a hint: .*; (.*) (forces it|streams \d+ of them))");
      if (n.starts_with(hint) && std::regex_match(n, parts, text)) return parts[2];
    }
    ADD_FAILURE() << hint << " has no note";
    return "";
  }
  Words flow_matching() const {
    return {"--dataset_path",   training_.path("clips"), "--model", training_.model_path(),
            "--checkpoint_dir", training_.path("out"),   "--ram",   "1GB"};
  }
  Words musubi() const {
    return {"--dit",
            training_.model_path(),
            "--dataset_config",
            training_.path("clips"),
            "--output_dir",
            training_.path("out"),
            "--ram",
            "1GB"};
  }

  support::TinyTraining training_;
};

TEST_F(MemoryHints, ACheckpointingFlagThatIsNotNeededIsNotedWithWhatForcesIt) {
  for (const auto& [words, flag] :
       {std::pair(flow_matching(), std::string("--gradient_checkpointing")),
        std::pair(musubi(), std::string("--gradient_checkpointing")),
        std::pair(musubi(), std::string("--gradient_checkpointing_cpu_offload"))}) {
    SCOPED_TRACE(words[0] + " " + flag);
    const Planned plain = planned(words);
    EXPECT_EQ(plain.plan.policy.activations, Activations::kept);
    EXPECT_THAT(plain.notes, Each(Not(HasSubstr("is a hint"))));
    const Words asked = support::with_flags(words, flag);
    const Planned hinted = planned(asked);
    EXPECT_EQ(hinted.plan.policy.activations, Activations::kept);
    EXPECT_THAT(hinted.notes, Contains(HasSubstr("activations fit and are kept")));
    const std::string forced = forcing(hinted.notes, flag + " ");
    const Planned done = planned(support::with_flags(asked, forced));
    EXPECT_NE(done.plan.policy.activations, Activations::kept) << forced;
    EXPECT_EQ(done.plan.policy.offload, flag.ends_with("offload")) << forced;
    EXPECT_THAT(done.notes, Each(Not(HasSubstr("is a hint"))));
  }
}

TEST_F(MemoryHints, KeysOfAFileAreNotedWithTheKeyThatForcesThem) {
  const auto with = [&](const std::string& extra) {
    return planned({training_.write_config("epochs = 1\n" + extra)});
  };
  const auto forced_by = [&](const std::string& extra, const std::string& key) {
    const std::string text = training_.write_config("epochs = 1\n" + extra);
    const std::string toml = support::with_keys(test::read_whole(text), key);
    std::ofstream(text) << toml;
    return planned({text});
  };
  for (const std::string hint :
       {"activation_checkpointing = true", "activation_checkpointing = 'unsloth'"}) {
    const std::string forced = forcing(with(hint).notes, hint);
    EXPECT_TRUE(forced.starts_with("[memory] policy = '")) << forced;
    const Planned done = forced_by(hint, forced);
    EXPECT_NE(done.plan.policy.activations, Activations::kept) << forced;
    EXPECT_EQ(done.plan.policy.offload, hint.ends_with("'unsloth'")) << forced;
  }
  const Planned swap = with("blocks_to_swap = 1");
  EXPECT_THAT(swap.notes,
              Contains("blocks_to_swap = 1 is a hint: 2 of 2 blocks stay resident, "
                       "which is faster; [memory] stream_blocks = 1 streams 1 of them"));
  const Planned done = forced_by("blocks_to_swap = 1", forcing(swap.notes, "blocks_to_swap = 1"));
  EXPECT_EQ(fit::streamed_blocks(*done.plan.job, done.plan.policy), 1);
  EXPECT_THAT(done.notes, Each(Not(HasSubstr("is a hint"))));
}

TEST_F(MemoryHints, APolicyBesideANumberOfBlocksIsAContradiction) {
  const Words asked = support::with_flags(musubi(), "--stream_blocks 1");
  EXPECT_NO_THROW(planned(asked));
  EXPECT_FAILS(planned(support::with_flags(asked, "--policy stream2")), ErrorCode::usage,
               "stream_blocks = 1 and policy = 'stream2' contradict each other");
}

TEST_F(MemoryHints, AFlagForBlocksIsNotedWithTheFlagThatForcesIt) {
  const Words asked = support::with_flags(musubi(), "--blocks_to_swap 2");
  const std::string forced = forcing(planned(asked).notes, "blocks_to_swap = 2");
  EXPECT_EQ(forced, "--stream_blocks 2");
  const Planned done = planned(support::with_flags(asked, forced));
  EXPECT_EQ(fit::streamed_blocks(*done.plan.job, done.plan.policy), 2);
}

}  // namespace
}  // namespace ballast::train::memory_hints_test
