#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "report/run_log.h"
#include "tests/e2e/background_process.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_text_model.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TextTraining : public ::testing::Test {
 protected:
  TextTraining() {
    std::string csv = "text,summary\n";
    for (std::size_t i = 0; i < 9; ++i) {
      csv +=
          fmt::format("\"count\n{}\",{}\n", support::tiny_words()[i], support::tiny_words()[i + 1]);
    }
    texts_ = dir_.write("train.csv", csv);
  }
  // The command line of the FLAN-T5 job.
  std::vector<std::string> arguments(const std::string& output,
                                     std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"train",          "--pretrained-model", model_,
                                    "--model-output", dir_.path(output),    "--train-file",
                                    texts_,           "--device",           "cpu"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  const TempDir dir_;
  const std::string model_ = support::write_text_model(dir_, "model");
  std::string texts_;
};

// The line of a step is that of all its micro-batches, as in JSON.
TEST_F(TextTraining, PlansTheWholeStep) {
  std::vector<std::string> plan = arguments(
      "out", {"--batch-size", "2", "--gradient-accumulation-steps", "4", "--epochs", "1"});
  plan[0] = "plan";
  const Finished f = run_ballast(plan);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  std::smatch step;
  const std::regex line("\nstep +([0-9.]+) (ms|s) \\(([0-9]+) passes of ");
  ASSERT_TRUE(std::regex_search(f.out, step, line)) << f.out;
  EXPECT_EQ(step[3], "4");
  plan.push_back("--json");
  const double seconds = nlohmann::json::parse(run_ballast(plan).out)["seconds_per_step"];
  EXPECT_NEAR(std::stod(step[1]) * (step[2] == "ms" ? 1e-3 : 1), seconds, 0.06 * seconds);
}

TEST_F(TextTraining, SurvivesKillsToTheSameBits) {
  const std::vector<std::string> how = {
      "--epochs",     "8", "--batch-size", "2", "--gradient-accumulation-steps", "2",
      "--save-steps", "4"};
  const Finished whole = run_ballast(arguments("whole", how));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.out, AllOf(HasSubstr("finished after 24 steps"), HasSubstr("RAM: planned")));
  int kills = 0;
  for (; kills < 2; ++kills) {
    std::vector<std::string> more = how;
    const bool begun = fs::exists(dir_.path("parts"));
    if (begun) more.push_back("--resume-from-checkpoint");
    BackgroundBallast run(arguments("parts", more));
    const std::string next = dir_.path(fmt::format("parts/checkpoint-{}", 4 + 8 * kills));
    ASSERT_TRUE(wait_until([&] { return fs::exists(next) || run.finished(); })) << run.err();
    run.send(SIGKILL);
    run.wait();
  }
  std::vector<std::string> more = how;
  more.push_back("--resume-from-checkpoint");
  const Finished last = run_ballast(arguments("parts", more));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(read_whole(dir_.path("parts/model.safetensors")),
            read_whole(dir_.path("whole/model.safetensors")));
  const Finished text =
      run_ballast({"generate", dir_.path("parts"), "count four", "--device", "cpu"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
}

// Every checkpoint holds the history of all steps before it; what is built for that goes back.
TEST_F(TextTraining, MemoryIsFlatHoweverManyStepsThereAre) {
  const Finished f = run_ballast(arguments("out", {"--max_steps", "1500", "--save-steps", "500",
                                                   "--batch-size", "1", "--threads", "1"}));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const RunHistory h = read_run_log(dir_.path("out/run_log.jsonl"));
  ASSERT_EQ(h.steps.size(), 1500u);
  const auto ram = [&](std::size_t step) { return h.steps[step - 1].measured.ram.count; };
  EXPECT_LE(ram(1450), ram(450) + 300'000);
  EXPECT_EQ(h.steps[1449].measured.device, h.steps[449].measured.device);
}

TEST_F(TextTraining, TellsItsSpeedInSamplesAndBatches) {
  const Finished f = run_ballast(arguments(
      "out", {"--max_steps", "2", "--batch-size", "2", "--gradient-accumulation-steps", "2"}));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, ::testing::ContainsRegex("speed: [0-9.e+]+ samples/s, [0-9.e+]+ batches/s\n"));
  EXPECT_THAT(f.err, ::testing::ContainsRegex("/step, [0-9.e+]+ samples/s, [0-9.e+]+ batches/s"));
  const RunHistory h = read_run_log(dir_.path("out/run_log.jsonl"));
  ASSERT_EQ(h.steps.size(), 2u);
  EXPECT_EQ(h.steps[0].batches, 2);
  EXPECT_EQ(h.steps[0].samples.size(), 4u);
  EXPECT_THAT(read_whole(dir_.path("out/run_log.jsonl")),
              AllOf(HasSubstr("\"samples_per_second\":"), HasSubstr("samples/s, ")));
}

TEST_F(TextTraining, SaysThatAStoppedRunHasSavedNoModel) {
  dir_.write("out/save_quit", "");
  const Finished f = run_ballast(arguments("out", {"--max_steps", "50"}));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("stopped after 1 steps"), HasSubstr("not saved yet")));
  EXPECT_FALSE(fs::exists(dir_.path("out/model.safetensors")));
}

TEST_F(TextTraining, AFileThatMayNotGrowIsExplained) {
  std::vector<std::string> limited = {"-c", "ulimit -f 60; exec \"$0\" \"$@\"", BALLAST_BINARY};
  const std::vector<std::string> command = arguments("out", {"--max_steps", "1"});
  limited.insert(limited.end(), command.begin(), command.end());
  const Finished f = run_program("/bin/sh", limited);
  EXPECT_EQ(f.exit_code, 3) << f.err;
  EXPECT_THAT(f.err, HasSubstr("ulimit -f allows files of"));
}

// In a file, as transformers does with its own lines.
TEST_F(TextTraining, ProgressIsSaidEveryLoggingStep) {
  const Finished f = run_ballast({"train", "--model_name_or_path", model_, "--output_dir",
                                  dir_.path("out"), "--train_file", texts_, "--device", "cpu",
                                  "--max_steps", "12", "--logging_steps", "6"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("step 6/12"), HasSubstr("step 12/12")));
  for (const char* other : {"step 5/12", "step 7/12"}) {
    EXPECT_EQ(f.err.find(other), std::string::npos) << f.err;
  }
}

TEST_F(TextTraining, PlansRefusesAndPredicts) {
  std::vector<std::string> plan = arguments("out");
  plan[0] = "plan";
  plan.push_back("--details");
  const Finished planned = run_ballast(plan);
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, AllOf(HasSubstr("fine-tune"), HasSubstr("index of samples")));
  const Finished refused = run_ballast(arguments("out", {"--gpu", "30KB"}));
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("what would help"), HasSubstr("--gpu")));
  const Finished slip = run_ballast(arguments("out", {"--epoch", "2"}));
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_THAT(slip.err, HasSubstr("epochs"));
  const Finished done =
      run_ballast(arguments("out", {"--epochs", "2", "--validation_file", texts_,
                                    "--predict_with_generate", "--max_target_length", "4"}));
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("of 9 are the target"), HasSubstr("rougeLsum")));
  EXPECT_THAT(done.err, HasSubstr("rouge1")) << "evaluated after each epoch";
  EXPECT_THAT(read_whole(dir_.path("out/generated_predictions.jsonl")),
              HasSubstr("\"input\": \"count zero\""));
  const Finished adapter = run_ballast(arguments("lora", {"--epochs", "1", "--lora_rank", "4"}));
  ASSERT_EQ(adapter.exit_code, 0) << adapter.err;
  EXPECT_THAT(adapter.out, HasSubstr(" LoRA: "));
  const Finished text = run_ballast({"generate", "--lora", dir_.path("lora") + ":0.5", "--prompt",
                                     "count one", "--device", "cpu"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(
      run_ballast({"generate", "--model", model_, "--lora", model_, "--prompt", "one"}).exit_code,
      4);
  dir_.write("train.csv", "text,summary\na,b\n\"open,c\n");
  const Finished broken = run_ballast(arguments("other"));
  EXPECT_EQ(broken.exit_code, 4);
  EXPECT_THAT(broken.err, HasSubstr("line 3"));
}

}  // namespace
}  // namespace ballast::test
