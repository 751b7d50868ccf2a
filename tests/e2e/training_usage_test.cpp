// What `ballast train` and `ballast plan` say to somebody who typed something wrong, or asks.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "report/last_run.h"
#include "tests/e2e/training_process.h"
#include "tests/support/http_server.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using support::TinyTraining;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainingUsage : public testing::Test {
 protected:
  TrainingUsage() { run_.add_clips(2, {4, 1, 4, 4}); }

  void expect_refused(const std::vector<std::string>& arguments, int exit_code,
                      const testing::Matcher<std::string>& message) {
    const Finished f = train(arguments);
    EXPECT_EQ(f.exit_code, exit_code) << f.err;
    EXPECT_THAT(f.err, message);
    EXPECT_FALSE(fs::exists(run_.path("out")));
  }

  TinyTraining run_;
};

TEST_F(TrainingUsage, AMistypedKeyIsNamedWithItsLineAndTheNearestOne) {
  expect_refused({run_.write_config("epochs = 1\nsave_every_n_epoch = 1")}, 4,
                 AllOf(HasSubstr("run.toml line 4"), HasSubstr("save_every_n_epoch"),
                       HasSubstr("save_every_n_epochs")));
}

TEST_F(TrainingUsage, AMistypedKeyOfASectionIsNamed) {
  expect_refused({run_.write_config("epochs = 1",
                                    "[adapter]\ntype = 'lora'\nrang = 4\n"
                                    "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n")},
                 4, AllOf(HasSubstr("line "), HasSubstr("rank")));
}

TEST_F(TrainingUsage, AMistypedKeyOfTheDatasetIsNamed) {
  const TempDir dir;
  const std::string dataset =
      dir.write("dataset.toml",
                fmt::format("resolutions = [32]\n\n[[directory]]\npath = '{}'\nnum_repeat = 2\n",
                            run_.path("clips")));
  const std::string config = run_.write_config();
  const std::string text = std::regex_replace(read_whole(config), std::regex("dataset = '[^']*'"),
                                              "dataset = '" + dataset + "'");
  std::ofstream(config) << text;
  expect_refused(
      {config}, 4,
      AllOf(HasSubstr("dataset.toml line 5"), HasSubstr("num_repeat"), HasSubstr("num_repeats")));
}

TEST_F(TrainingUsage, BrokenTomlIsNamedWithItsLine) {
  expect_refused({run_.write_config("epochs = = 1")}, 4, HasSubstr("run.toml line 3"));
}

TEST_F(TrainingUsage, AMistypedFlagIsNamedWithTheNearestOne) {
  expect_refused({run_.write_config(), "--max_step", "3"}, 2,
                 AllOf(HasSubstr("--max_step"), HasSubstr("max_steps")));
  expect_refused({run_.write_config(), "--ram", "plenty"}, 2, HasSubstr("--ram"));
  expect_refused({run_.write_config(), "--threads", "two"}, 2,
                 HasSubstr("--threads: expected an integer, found \"two\""));
}

TEST_F(TrainingUsage, AMissingConfigurationIsNamed) {
  expect_refused({run_.path("none.toml")}, 6,
                 AllOf(HasSubstr(run_.path("none.toml")), HasSubstr("No such file")));
}

TEST(TrainingHelp, WithoutArgumentsSaysWhatToType) {
  const Finished f = train({});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, AllOf(HasSubstr("there is no configuration"),
                           HasSubstr("ballast train config.toml"), HasSubstr("--dataset_path")));
}

// Ten options, how a run ends, and where the rest is.
TEST(TrainingHelp, IsShort) {
  const Finished f = run_ballast({"train", "--help"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  for (const char* part :
       {"ballast train CONFIG.toml", "--resume", "--ram", "--seed", "--threads", "--json", "--dit",
        "--dataset_path", "Ctrl-C", "ballast doctor", "examples/", "--help-all", "--help-musubi",
        "--help-diffusion-pipe", "--help-flow-matching", "--help-t5"}) {
    EXPECT_THAT(f.out, HasSubstr(part));
  }
  EXPECT_LT(std::ranges::count(f.out, '\n'), 50);
  const std::regex option("\n  --[a-z]");
  EXPECT_EQ(std::distance(std::sregex_iterator(f.out.begin(), f.out.end(), option),
                          std::sregex_iterator()),
            10);
  EXPECT_EQ(run_ballast({"help", "train"}).out, f.out);
}

TEST(TrainingHelp, PagesTellOfEveryFlag) {
  const auto page = [](const char* flag) {
    const Finished f = run_ballast({"train", flag});
    EXPECT_EQ(f.exit_code, 0) << f.err;
    return f.out;
  };
  EXPECT_THAT(page("--help-all"),
              AllOf(HasSubstr("General options:\n"), HasSubstr("Training options:\n"),
                    HasSubstr("--check_nan"), HasSubstr("--network_dim VALUE"),
                    HasSubstr("--use_8bit_adam"), HasSubstr("--dump_dataset"),
                    HasSubstr("--max_source_length")));
  EXPECT_THAT(page("--help-musubi"),
              AllOf(HasSubstr("--network_dim VALUE"), HasSubstr("\n  ignored: --"),
                    HasSubstr("\n  rejected: --"), HasSubstr("examples/musubi_lora.sh"),
                    Not(HasSubstr("--use_8bit_adam"))));
  EXPECT_THAT(page("--help-diffusion-pipe"),
              AllOf(HasSubstr("rejected: --dump_dataset"), Not(HasSubstr("--network_dim"))));
  EXPECT_THAT(page("--help-flow-matching"), HasSubstr("--use_8bit_adam"));
  EXPECT_THAT(page("--help-t5"),
              AllOf(HasSubstr("--max_source_length"), HasSubstr("examples/flan_t5")));
  const Finished none = run_ballast({"train", "--help-nothing"});
  EXPECT_EQ(none.exit_code, 2);
}

TEST(TrainingHelp, PlanTellsOfBothWaysToAsk) {
  const Finished f = run_ballast({"plan", "--help"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("ballast plan CONFIG.toml"), HasSubstr("ballast plan --model"),
                           HasSubstr("--target"), HasSubstr("--json"), HasSubstr("examples/"),
                           HasSubstr("ballast plan --help-musubi")));
  EXPECT_EQ(run_ballast({"help", "plan"}).out, f.out);
  EXPECT_THAT(run_ballast({"plan", "--help-musubi"}).out, HasSubstr("--network_dim VALUE"));
  const Finished none = run_ballast({"plan"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("ballast plan CONFIG.toml"), HasSubstr("--model")));
}

// --model is an option of plan's own and a flag of the flow-matching trainer.
TEST(TrainingHelp, PlanTakesWhatTrainTakes) {
  for (const char* const command : {"plan", "train"}) {
    const Finished f = run_ballast(
        {command, "--dataset-path", "clips", "--num_epochs", "1", "--model", "none.safetensors"});
    EXPECT_EQ(f.exit_code, 4) << f.err;
    EXPECT_THAT(f.err, HasSubstr("none.safetensors is not there"));
  }
}

TEST_F(TrainingUsage, ARunThatDoesNotFitIsRefusedAndLeavesNothing) {
  expect_refused({run_.write_config(), "--ram", "6MB"}, 3,
                 AllOf(HasSubstr("does not fit: "), HasSubstr("what would help"), HasSubstr("ram"),
                       Not(HasSubstr("swap space"))));
}

// Every line of what is printed; text goes to stderr.
std::vector<nlohmann::json> json_lines(const std::string& out) {
  std::vector<nlohmann::json> all;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

TEST_F(TrainingUsage, AsJsonNothingElseIsPrinted) {
  const Finished f = train({run_.write_config(), "--json"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const auto lines = json_lines(f.out);
  ASSERT_EQ(lines.size(), 2u) << f.out;
  EXPECT_TRUE(lines[0]["fits"]);
  EXPECT_EQ(lines[1]["outcome"], "finished");
  EXPECT_EQ(lines[1]["steps"], 2);
  EXPECT_EQ(lines[1]["run"], newest_run(run_.path("out")));
  EXPECT_GT(lines[1]["planned_ram_bytes"], 0);
  EXPECT_LE(lines[1]["ram_bytes"], lines[1]["planned_ram_bytes"]);
  const Finished refused = train({run_.write_config(), "--ram", "6MB", "--json"});
  EXPECT_EQ(refused.exit_code, 3);
  ASSERT_EQ(json_lines(refused.out).size(), 1u);
  EXPECT_FALSE(json_lines(refused.out)[0]["fits"]);
}

TEST_F(TrainingUsage, AsJsonWithStepsEachLineOfTheRunLogIsPrinted) {
  const Finished f = train({run_.write_config("epochs = 2"), "--json=steps"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const std::string run = newest_run(run_.path("out"));
  const std::size_t first = f.out.find('\n') + 1;  // behind the plan; the end is left out as well
  const std::string logged = f.out.substr(first, f.out.rfind('\n', f.out.size() - 2) + 1 - first);
  EXPECT_EQ(logged, read_whole(run + "/run_log.jsonl"));
  const auto lines = json_lines(f.out);
  EXPECT_EQ(lines.front()["kind"], "plan");
  EXPECT_TRUE(lines.front()["fits"]);
  EXPECT_EQ(std::ranges::count(lines, "step", [](const auto& l) { return l["kind"]; }), 4);
  const nlohmann::json& end = lines.back();
  EXPECT_EQ(end["kind"], "end");
  EXPECT_EQ(end["folder"], run);
  EXPECT_EQ(end["steps"], 4);
  EXPECT_EQ(end["stopped"], false);
  const auto last = std::ranges::find(lines.rbegin(), lines.rend(), "step",
                                      [](const auto& l) { return l["kind"]; });
  EXPECT_EQ(end["last_loss"], (*last)["loss"]);
}

TEST_F(TrainingUsage, AsJsonWithStepsAFailureIsALine) {
  const Finished refused = train({run_.write_config(), "--ram", "6MB", "--json=steps"});
  EXPECT_EQ(refused.exit_code, 3);
  const auto lines = json_lines(refused.out);
  ASSERT_EQ(lines.size(), 2u) << refused.out;
  EXPECT_EQ(lines[0]["kind"], "plan");
  EXPECT_FALSE(lines[0]["fits"]);
  EXPECT_EQ(lines[1]["kind"], "error");
  EXPECT_EQ(lines[1]["code"], 3);
  EXPECT_FALSE(lines[1]["advice"].empty());
  const Finished missing = train({run_.path("none.toml"), "--json=steps"});
  EXPECT_EQ(missing.exit_code, 6);
  ASSERT_EQ(json_lines(missing.out).size(), 1u) << missing.out;
  EXPECT_THAT(json_lines(missing.out)[0]["message"].get<std::string>(), HasSubstr("none.toml"));
  expect_refused({run_.write_config(), "--json=step"}, 2, HasSubstr("--json=steps"));
}

TEST_F(TrainingUsage, DoctorFindsTheRunByItself) {
  TrainingProcess process({run_.write_config()});
  const Finished f = process.finish();
  ASSERT_EQ(f.exit_code, 0) << f.err;
  ::setenv("XDG_STATE_HOME", process.state_folder().c_str(), 1);
  const Finished doctor = run_ballast({"doctor", "--no-disk-trial"});
  ::unsetenv("XDG_STATE_HOME");
  EXPECT_EQ(doctor.exit_code, 0) << doctor.err;
  EXPECT_THAT(doctor.out, AllOf(HasSubstr("last run: finished normally after step 2"),
                                HasSubstr(newest_run(run_.path("out")))));
}

TEST_F(TrainingUsage, AWebhookThatTurnsUsAwayDoesNotStopTheRun) {
  const HttpServer server({"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"});
  const Finished f = train({run_.write_config("epochs = 1\nwebhook = true")},
                           [&] { ::setenv("BALLAST_WEBHOOK_URL", server.url().c_str(), 1); });
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("finished after 2 steps"));
  EXPECT_FALSE(server.requests().empty());
  EXPECT_THAT(f.err, AllOf(HasSubstr("404"), Not(HasSubstr(HttpServer::kSecret))));
}

// webhook_every_minutes: a message after every step that comes later than that.
TEST_F(TrainingUsage, AWebhookIsToldOfProgress) {
  const auto told = [&](const std::string& minutes) {
    const HttpServer server({"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"});
    const Finished f = train({run_.write_config("epochs = 40\nsave_every_n_epochs = 100"),
                              "--webhook_every_minutes", minutes},
                             [&] { ::setenv("DISCORD_WEBHOOK", server.url().c_str(), 1); });
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_THAT(f.err, AllOf(HasSubstr("sent to the address in DISCORD_WEBHOOK (the environment)"),
                             Not(HasSubstr(HttpServer::kSecret))));
    std::vector<std::string> texts;
    for (const auto& r : server.requests()) {
      texts.push_back(nlohmann::json::parse(r.body)["embeds"][0]["description"]);
    }
    return texts;
  };
  const auto often = told("0.0000001");
  ASSERT_GE(often.size(), 3u);
  EXPECT_EQ(often.front(), "started, 80 steps");
  EXPECT_THAT(often[1], testing::MatchesRegex("step [0-9]+ of 80, epoch [0-9]+, loss .* per step, "
                                              ".* left"));
  EXPECT_THAT(often.back(), HasSubstr("finished after 80 steps"));
  EXPECT_EQ(told("0").size(), 2u);   // start and end
  EXPECT_EQ(told("30").size(), 2u);  // too short a run
}

// Of a job's own .env two keys are used; the rest of the file is nobody's business.
TEST_F(TrainingUsage, TheEnvFileOfAJobIsReadForTwoKeys) {
  const HttpServer server({"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"});
  const TempDir dir;
  dir.write(".env", "SECRET=hunter1\nWANDB_API_KEY=hunter2\nDISCORD_WEBHOOK='" + server.url() +
                        "'\nBALLAST_LOG=off\n");
  const Finished f = train({run_.write_config()}, [&] {
    if (::chdir(dir.path().c_str()) != 0) ::_exit(126);
  });
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(server.requests().size(), 2u);
  EXPECT_THAT(f.err, AllOf(HasSubstr("sent to the address in DISCORD_WEBHOOK (.env)"),
                           HasSubstr("WANDB_API_KEY (.env) is ignored: wandb is not supported"),
                           Not(HasSubstr("hunter")), Not(HasSubstr(HttpServer::kSecret))));
}

TEST_F(TrainingUsage, SecretsOfAConfigurationAreInNoRecord) {
  const std::string config =
      run_.write_config("epochs = 1",
                        "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                        "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n"
                        "[monitoring]\nenable_wandb = true\nwandb_api_key = 'hunter2'\n"
                        "wandb_tracker_name = 'shapes'\nwandb_run_name = 'first'\n");
  ASSERT_EQ(::chmod(config.c_str(), 0600), 0);
  const Finished f = train({config});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out + f.err, Not(HasSubstr("hunter2")));
  int copies = 0;
  for (const auto& [path, content] : contents_of(run_.path("out"))) {
    if (path.ends_with("/epoch1/run.toml")) {  // beside the model, which is given to others
      EXPECT_THAT(content, AllOf(HasSubstr("epochs = 1"), HasSubstr("(hidden)")));
      ++copies;
    } else if (path.ends_with("/run.toml")) {  // for the eyes of the user alone, as the file is
      struct stat mode {};
      ASSERT_EQ(::stat(path.c_str(), &mode), 0);
      EXPECT_EQ(mode.st_mode & 0777, 0600u);
      EXPECT_THAT(content, HasSubstr("wandb_api_key = \"(hidden)\""));
      ++copies;
    }
    EXPECT_THAT(content, Not(HasSubstr("hunter2"))) << path;
  }
  EXPECT_EQ(copies, 2);
  const std::string log = read_whole(newest_run(run_.path("out")) + "/run_log.jsonl");
  EXPECT_THAT(log, AllOf(HasSubstr("(hidden)"), HasSubstr("wandb_tracker_name = 'shapes'")));
}

}  // namespace
}  // namespace ballast::test
