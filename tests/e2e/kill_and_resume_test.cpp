// kill -9 at random points of a run: whatever comes after it is as if it had never happened.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/e2e/background_process.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/run/run_folder.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using support::RunTrace;

// 30 in every test run; BALLAST_KILLS sets another number (scripts/kill_resume.sh: 1,000).
int kills_wanted() {
  const char* text = std::getenv("BALLAST_KILLS");
  return text ? std::atoi(text) : 30;
}

bool is_being_written(const std::string& name) {
  return name.find("step-") == 0 && name.find(".tmp-") != std::string::npos;
}

// A run with every kind of state: random numbers of noise, dropout and captions' order, moments in
// 8 bits, compensation, an average of the weights, a schedule, evaluations, saved models.
class KillAndResume : public ::testing::Test {
 protected:
  KillAndResume() : training_(support::trainable_config(1)) {
    training_.add_clips(6, {4, 1, 4, 4}, "small");
    training_.add_clips(4, {4, 2, 4, 6}, "wide");
    training_.add_clips(1, {4, 1, 6, 6}, "held_out", "eval");
    config_ = training_.write_config(
        fmt::format("epochs = 8\ngradient_accumulation_steps = 2\nwarmup_steps = 5\n"
                    "lr_scheduler = 'cosine'\nsave_every_n_steps = 11\n"
                    "checkpoint_every_n_steps = 3\nkeep_checkpoints = 2\n"
                    "eval_every_n_steps = 10\neval_datasets = ['{}']\n",
                    training_.path("eval")),
        "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'bfloat16'\ndropout = 0.1\n"
        "[optimizer]\ntype = 'AdamW8bitKahan'\nlr = 1e-2\nema_decay = 0.9\n");
  }

  // Arguments that go on with whatever is in the folder. on_disk: the optimizer's state is.
  std::vector<std::string> arguments(const std::string& output, int threads,
                                     bool on_disk = false) const {
    std::vector<std::string> a = {"train", config_,     "--output_dir",
                                  output,  "--threads", std::to_string(threads)};
    if (!train::runs_in(output).empty()) a.push_back("--resume");
    if (on_disk) a.insert(a.end(), {"--policy", "state-on-disk", "--disk", "1GB"});
    return a;
  }
  static std::string folder_in(const std::string& output) {
    return output + "/" + train::runs_in(output).at(0);
  }
  static std::string checkpoint_being_written(const std::string& output) {
    const auto runs = train::runs_in(output);
    if (runs.empty()) return "";
    std::error_code error;
    for (fs::directory_iterator it(output + "/" + runs[0] + "/checkpoints", error), end;
         !error && it != end; it.increment(error)) {
      if (is_being_written(it->path().filename().string())) return it->path().string();
    }
    return "";
  }

  support::TinyTraining training_;
  std::string config_;
};

TEST_F(KillAndResume, EndsInTheBitsOfAnUninterruptedRun) {
  const std::string whole = training_.path("whole");
  const auto begin = std::chrono::steady_clock::now();
  const Finished undisturbed = run_ballast(arguments(whole, 2));
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
  const auto duration = std::chrono::steady_clock::now() - begin;
  const RunTrace expected = support::read_trace(folder_in(whole));
  ASSERT_EQ(expected.steps.size(), 40u);
  ASSERT_EQ(expected.evals.size(), 5u);
  ASSERT_EQ(expected.files.size(), 5u);  // after 11, 22, 33 steps, at the end; a checkpoint

  std::mt19937_64 random(std::random_device{}());
  const auto seed = random();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  random.seed(seed);
  int kills = 0, while_saving = 0;
  for (int round = 0; kills < kills_wanted(); ++round) {
    const std::string output = training_.path(fmt::format("round{}", round));
    for (bool done = false; !done;) {
      BackgroundBallast process(
          arguments(output, 1 + static_cast<int>(random() % 2), random() % 2 == 0));
      const std::chrono::nanoseconds after(static_cast<std::int64_t>(
          random() % static_cast<std::uint64_t>(std::chrono::nanoseconds(duration).count())));
      const auto at = std::chrono::steady_clock::now() + after;
      const bool in_a_save = random() % 3 == 0;
      wait_until([&] {
        done = process.finished().has_value();
        if (done) return true;
        if (in_a_save && !checkpoint_being_written(output).empty()) return true;
        return std::chrono::steady_clock::now() >= at;
      });
      if (done) {
        ASSERT_EQ(process.wait(), 0) << process.err();
        break;
      }
      process.send(SIGKILL);
      process.wait();
      ++kills;
      while_saving += !checkpoint_being_written(output).empty();
    }
    const std::string differs =
        support::difference(expected, support::read_trace(folder_in(output)));
    ASSERT_EQ(differs, "") << "after " << kills << " kills, round " << round;
    fs::remove_all(output);
  }
  EXPECT_GT(while_saving, 0) << "of " << kills << " kills";
  RecordProperty("kills_while_saving", while_saving);
}

TEST_F(KillAndResume, ACheckpointThatWasBeingWrittenIsNotUsed) {
  const std::string output = training_.path("out");
  std::string half;
  for (int attempt = 0; half.empty() && attempt < 100; ++attempt) {
    fs::remove_all(output);
    BackgroundBallast process(arguments(output, 1));
    // Behind the first two, so that there is one to go back to.
    ASSERT_TRUE(wait_until([&] {
      if (process.finished()) return true;
      const std::string found = checkpoint_being_written(output);
      return found.find("step-00000009") != std::string::npos;
    }));
    process.send(SIGKILL);
    process.wait();
    half = checkpoint_being_written(output);
    if (half.find("step-00000009") == std::string::npos) half.clear();
  }
  ASSERT_NE(half, "") << "never met a checkpoint being written";
  const Finished resumed = run_ballast(arguments(output, 1));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("step-00000006 at step 6"), std::string::npos) << resumed.err;
  EXPECT_FALSE(fs::exists(half));
  EXPECT_EQ(support::read_trace(folder_in(output)).steps.size(), 40u);
}

}  // namespace
}  // namespace ballast::test
