// Keys and addresses that a run is given stand in no file and no message of it.

#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/e2e/training_process.h"
#include "tests/support/http_server.h"
#include "tests/support/tiny_text_model.h"

namespace ballast::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kKey = "hunter2hunter2hunter2";

class SecretsOfARun : public ::testing::Test {
 protected:
  Finished train_with_secrets(const std::vector<std::string>& arguments) const {
    const auto secrets = [&] {
      ::setenv("BALLAST_WEBHOOK_URL", server_.url().c_str(), 1);
      ::setenv("WANDB_API_KEY", kKey, 1);
      ::setenv("HF_TOKEN", kKey, 1);
    };
    TrainingProcess process(arguments, secrets);
    Finished f = process.finish();
    expect_none_in(process.state_folder(), 1);
    return f;
  }
  static void expect_none_in(const std::string& folder, std::size_t files) {
    const auto all = contents_of(folder);
    EXPECT_GE(all.size(), files);
    for (const auto& [path, content] : all) {
      EXPECT_EQ(content.find(kKey), std::string::npos) << path;
      EXPECT_EQ(content.find(HttpServer::kSecret), std::string::npos) << path;
    }
  }

  const HttpServer server_{{"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"}};
};

TEST_F(SecretsOfARun, StandInNoFileOfATraining) {
  support::TinyTraining training(support::trainable_config(1));
  training.add_clips(2, {4, 1, 4, 4});
  const std::string config = training.write_config(
      fmt::format("epochs = 1\ncheckpoint_every_n_steps = 1\nsave_every_n_steps = 1\n"
                  "# wandb_api_key = '{}'\n# ask at {} first\n# hf_{}",
                  kKey, server_.url(), kKey));
  const Finished f = train_with_secrets({config});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_FALSE(server_.requests().empty());
  EXPECT_THAT(f.out + f.err, Not(HasSubstr(kKey)));
  EXPECT_THAT(f.out + f.err, Not(HasSubstr(HttpServer::kSecret)));
  expect_none_in(training.path("out"), 10);
}

TEST_F(SecretsOfARun, StandInNoFileOfATextTraining) {
  const TempDir dir;
  const std::string model = support::write_text_model(dir, "model");
  const std::string texts = dir.write("train.csv", "text,summary\ncount one,two\nsay red,red\n");
  const Finished f =
      train_with_secrets({"--pretrained-model", model, "--model-output", dir.path("out"),
                          "--train-file", texts, "--max_steps", "2", "--save-steps", "1",
                          "--device", "cpu", "--discord-webhook", server_.url()});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_FALSE(server_.requests().empty());
  EXPECT_THAT(f.out + f.err, Not(HasSubstr(HttpServer::kSecret)));
  expect_none_in(dir.path("out"), 10);
}

}  // namespace
}  // namespace ballast::test
