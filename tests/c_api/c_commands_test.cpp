#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <regex>
#include <set>
#include <thread>

#include "tests/c_api/c_api_support.h"
#include "tests/support/temp_dir.h"

namespace ballast::c_tests {
namespace {

using testing::HasSubstr;

const std::string kDemo = std::string(BALLAST_SOURCE_DIR) + "/examples/demo_model/model";

Answer command(const std::vector<const char*>& words) {
  return ask([&](char** text, char** err) {
    return ballast_command(words.data(), words.size(), text, err);
  });
}

Answer plan(const Json& request) {
  return ask(
      [&](char** json, char** err) { return ballast_plan(request.dump().c_str(), json, err); });
}

TEST(CCommands, SayWhatTheyAre) {
  EXPECT_EQ(ballast_abi(), BALLAST_ABI);
  const Json v = Json::parse(ballast_version_json());
  EXPECT_EQ(v.at("abi"), BALLAST_ABI);
  EXPECT_TRUE(
      std::regex_match(v.at("version").get<std::string>(), std::regex("\\d+\\.\\d+\\.\\d+")));
  EXPECT_EQ("ballast " + v.at("version").get<std::string>() + "\n", command({"--version"}).text);
}

TEST(CCommands, PlanWithoutAFile) {
  const Json flags = {
      {"model", "wan2.2-t2v-a14b"}, {"gpu", "24GB"}, {"ram", "64GB"}, {"target", "rtx4090"}};
  const Answer a = plan({{"flags", flags}});
  ASSERT_EQ(a.code, 0) << a.error.dump();
  const Json p = Json::parse(a.text);
  EXPECT_TRUE(p.at("fits"));
  EXPECT_EQ(p.at("model"), "wan2.2-t2v-a14b");
}

TEST(CCommands, APlanThatDoesNotFitIsAnAnswer) {
  const Answer a = plan({{"flags",
                          {{"model", "wan2.1-t2v-1.3b"},
                           {"frames", 5},
                           {"height", 64},
                           {"width", 64},
                           {"gpu", "1MB"},
                           {"ram", "64GB"},
                           {"target", "rtx4090"}}}});
  ASSERT_EQ(a.code, 0) << a.error.dump();
  const Json p = Json::parse(a.text);
  EXPECT_FALSE(p.at("fits"));
  EXPECT_FALSE(p.at("advice").empty());
}

TEST(CCommands, NameWhatIsWrong) {
  EXPECT_EQ(plan({{"flag", 1}}).code, 2);
  EXPECT_EQ(plan({{"flags", 1}}).code, 2);
  const Answer a = plan({{"flags", {{"modell", "x"}, {"model", "wan2.2-ti2v-5b"}}}});
  EXPECT_EQ(a.code, 2);
  EXPECT_THAT(a.error.value("message", ""), HasSubstr("modell"));
  EXPECT_EQ(command({"nothing"}).code, 2);
  EXPECT_EQ(command({}).code, 2);
  EXPECT_EQ(command({"inspect", "/not/there"}).code, 6);
  EXPECT_EQ(command({"plan", nullptr}).code, 2);
  EXPECT_EQ(ballast_command(nullptr, 2, nullptr, nullptr), 2);
  // What needs a process of its own says where it is done.
  const Answer train = command({"train", "x.toml"});
  EXPECT_EQ(train.code, 2);
  EXPECT_THAT(train.error.dump(), HasSubstr("ballast_train()"));
}

TEST(CCommands, InspectAFile) {
  const Answer a =
      ask([&](char** json, char** err) { return ballast_inspect(kDemo.c_str(), json, err); });
  ASSERT_EQ(a.code, 0) << a.error.dump();
  EXPECT_EQ(Json::parse(a.text).at("kind"), "model folder");
}

// Lines and progress go to the function, and to stderr again without one.
TEST(CCommands, LogGoesToAFunction) {
  std::vector<std::pair<int, std::string>> said;
  ballast_set_log(
      [](int level, const char* text, void* user) {
        static_cast<std::vector<std::pair<int, std::string>>*>(user)->emplace_back(level, text);
      },
      &said);
  const std::string weights = kDemo + "/vae.safetensors";
  EXPECT_EQ(command({"inspect", weights.c_str()}).code, 0);
  const std::size_t count = said.size();
  ASSERT_GE(count, 2u);
  for (const auto& [level, text] : said) EXPECT_EQ(level, 3) << text;
  const Json first = Json::parse(said.front().second), last = Json::parse(said.back().second);
  EXPECT_EQ(first.at("what"), "reading values");
  EXPECT_EQ(first.at("done"), 0);
  EXPECT_EQ(first.at("unit"), "bytes");
  EXPECT_FALSE(first.at("ended"));
  EXPECT_EQ(last.at("done"), last.at("total"));
  EXPECT_TRUE(last.at("ended"));
  ballast_set_log(nullptr, nullptr);
  EXPECT_EQ(command({"inspect", weights.c_str()}).code, 0);
  EXPECT_EQ(said.size(), count);
}

TEST(CCommands, TwoThreadsGetTheirOwnAnswers) {
  std::vector<std::thread> threads;
  std::vector<std::string> models = {"wan2.1-t2v-1.3b", "wan2.2-ti2v-5b"};
  for (const std::string& m : models) {
    threads.emplace_back([m] {
      const Answer a = plan({{"flags",
                              {{"model", m},
                               {"frames", 5},
                               {"height", 64},
                               {"width", 64},
                               {"gpu", "24GB"},
                               {"ram", "64GB"},
                               {"target", "rtx4090"}}}});
      EXPECT_EQ(Json::parse(a.text).at("model"), m);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(CCommands, AForkedChildIsRefused) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(ballast_inspect(kDemo.c_str(), nullptr, nullptr));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

TEST(CCommands, NullsAreErrorsOfTheCaller) {
  DLTensor t = {};
  EXPECT_EQ(ballast_inspect(nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_plan(nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_train(nullptr, nullptr, 0, nullptr, nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_model_open(nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_model_open(kDemo.c_str(), nullptr, nullptr), 2);
  EXPECT_EQ(ballast_model_info(nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_model_settings(nullptr, "{}", nullptr), 2);
  EXPECT_EQ(ballast_model_plan(nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_model_start(nullptr, nullptr), 2);
  EXPECT_EQ(ballast_model_step(nullptr, nullptr, 0, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_model_predict(nullptr, nullptr, 0, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_model_save(nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_model_load_checkpoint(nullptr, nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_model_measured(nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_vae_open(nullptr, nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_vae_info(nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_vae_encode(nullptr, &t, &t, nullptr), 2);
  EXPECT_EQ(ballast_vae_decode(nullptr, &t, &t, nullptr), 2);
  EXPECT_EQ(ballast_text_open(nullptr, nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_text_info(nullptr, nullptr, nullptr), 2);
  EXPECT_EQ(ballast_text_states(nullptr, "a", &t, nullptr, nullptr), 2);
  ballast_stop_set(nullptr);
  ballast_stop_free(nullptr);
  ballast_model_close(nullptr);
  ballast_vae_close(nullptr);
  ballast_text_close(nullptr);
  ballast_free(nullptr);
}

std::string output_of(const std::string& line) {
  std::string text;
  std::FILE* const pipe = ::popen((line + " 2>&1").c_str(), "r");
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  const int status = ::pclose(pipe);
  EXPECT_EQ(status, 0) << line << "\n" << text;
  return text;
}

// The library gives away the header's functions and nothing else: not those of the libraries
// inside.
TEST(CInterface, ExportsTheHeadersFunctions) {
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/src/ballast/ballast_c.h");
  const std::string header((std::istreambuf_iterator<char>(file)), {});
  const std::regex declared("BALLAST_API [^;(]*?(ballast_[a-z_]+)\\(");
  std::set<std::string> expected;
  for (std::sregex_iterator i(header.begin(), header.end(), declared), end; i != end; ++i) {
    expected.insert((*i)[1]);
  }
  EXPECT_GT(expected.size(), 25u);
  std::istringstream names(output_of("nm -D --defined-only '" BALLAST_SHARED "'"));
  std::set<std::string> found;
  std::string address, kind, name;
  while (names >> address >> kind >> name) {
    if (kind != "A") found.insert(name.substr(0, name.find('@')));
  }
  EXPECT_EQ(found, expected);
}

TEST(CInterface, HeaderIsCAndCpp) {
  const test::TempDir dir;
  std::ofstream(dir.path("a.c"))
      << "#include <ballast/ballast_c.h>\nint main(void) { return 0; }\n";
  const std::string flags = " -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I" +
                            std::string(BALLAST_SOURCE_DIR) + "/src '" + dir.path("a.c") + "'";
  output_of("cc -std=c99" + flags);
  output_of("c++ -x c++ -std=c++11" + flags);
}

}  // namespace
}  // namespace ballast::c_tests
