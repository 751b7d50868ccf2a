// The live page: `ballast watch` and `ballast train --serve` as processes.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/background_process.h"
#include "tests/e2e/training_process.h"

namespace ballast::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// What a server at this port answers, head and body; "" where it closes the connection.
std::string answer_to(int port, const std::string& request) {
  const FileDescriptor s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(s.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return {};
  if (::send(s.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return {};
  std::string all;
  std::array<char, 4096> piece{};
  for (ssize_t n = 0; (n = ::recv(s.get(), piece.data(), piece.size(), 0)) > 0;) {
    all.append(piece.data(), static_cast<std::size_t>(n));
  }
  return all;
}

struct PageAddress {
  int port = 0;
  std::string token;

  // From "live page: http://127.0.0.1:8080/?token=..."; none: port 0.
  static PageAddress in(const std::string& text) {
    const std::string begin = "live page: http://127.0.0.1:", middle = "/?token=";
    const std::size_t at = text.find(begin), token = text.find(middle);
    if (at == text.npos || token == text.npos || text.find('\n', token) == text.npos) return {};
    return {std::stoi(text.substr(at + begin.size())), text.substr(token + middle.size(), 32)};
  }
  std::string get(const std::string& target, const std::string& more = {}) const {
    return answer_to(
        port, "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                  "Cookie: ballast_" + std::to_string(port) + "=" + token + "\r\n" + more + "\r\n");
  }
};

std::string body_of(const std::string& answer) {
  return answer.substr(answer.find("\r\n\r\n") + 4);
}

class LivePage : public ::testing::Test {
 protected:
  LivePage() : training_(support::trainable_config(1)) { training_.add_clips(4, {4, 1, 4, 4}); }

  void SetUp() override {
    const Finished f = run_ballast({"watch", training_.path("none"), "--port", "0"});
    ASSERT_EQ(f.exit_code, 4) << f.err;
    const Finished probe = run_ballast({"watch", training_.path(""), "--host", "300.0.0.1"});
    for (const char* missing : {"headers of libmicrohttpd", "libmicrohttpd.so.12"}) {
      if (probe.err.find(missing) != std::string::npos) GTEST_SKIP() << "missing: " << missing;
    }
  }
  PageAddress address_of(BackgroundBallast& watch) const {
    PageAddress a;
    EXPECT_TRUE(wait_until([&] {
      a = PageAddress::in(watch.out());
      return a.port != 0 || watch.finished();
    })) << watch.err();
    return a;
  }

  support::TinyTraining training_;
};

TEST_F(LivePage, AsksForItsTokenAndEndsOnASignal) {
  ASSERT_EQ(
      train({training_.write_config("epochs = 100\nmax_steps = 3"), "--threads", "1"}).exit_code,
      0);
  BackgroundBallast watch({"watch", training_.path("out"), "--port", "0"});
  const PageAddress page = address_of(watch);
  ASSERT_NE(page.port, 0) << watch.err();
  EXPECT_THAT(
      answer_to(page.port, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
      HasSubstr("HTTP/1.1 403 "));
  EXPECT_THAT(page.get("/?token=" + page.token), HasSubstr("HTTP/1.1 303 "));
  EXPECT_THAT(page.get("/"), HasSubstr("<!doctype html>"));
  EXPECT_THAT(page.get("/", "Host: evil.example\r\n"), HasSubstr("HTTP/1.1 4"));
  const Json run = Json::parse(body_of(page.get("/api/run")));
  EXPECT_EQ(run["state"]["state"], "finished");
  EXPECT_EQ(run["steps"].size(), 3u);
  const Json plan = Json::parse(body_of(page.get("/api/plan")));
  EXPECT_TRUE(plan["fits"].get<bool>());
  EXPECT_FALSE(plan["map"]["plans"][0]["phases"].empty());
  EXPECT_THAT(page.get("/metrics"), HasSubstr("ballast_alive{"));
  watch.send(SIGTERM);
  EXPECT_EQ(watch.wait(), 0);
}

TEST_F(LivePage, CallsAKilledRunDeadWithDoctorsReason) {
  TrainingProcess process({training_.write_config("epochs = 100000"), "--threads", "1"});
  ASSERT_TRUE(process.wait_for([&] { return steps_logged(training_.path("out")) >= 3; }));
  BackgroundBallast watch({"watch", training_.path("out"), "--port", "0"});
  const PageAddress page = address_of(watch);
  ASSERT_NE(page.port, 0) << watch.err();
  const auto state = [&] { return Json::parse(body_of(page.get("/api/run")))["state"]; };
  EXPECT_EQ(state()["state"], "training");
  process.send(SIGKILL);
  process.finish();
  ASSERT_TRUE(wait_until([&] { return state()["state"] == "dead"; }));
  const Finished doctor =
      run_ballast({"doctor", newest_run(training_.path("out")), "--no-disk-trial", "--json"});
  EXPECT_THAT(Json::parse(doctor.out)["last_run"]["headline"].get<std::string>(),
              HasSubstr(state()["cause"].get<std::string>()));
  EXPECT_THAT(page.get("/healthz"), HasSubstr("HTTP/1.1 503 "));
}

TEST_F(LivePage, OfTheTrainingItselfChangesNoByte) {
  std::vector<std::string> results;
  for (const std::string serve : {"", "--serve=:0"}) {
    std::filesystem::remove_all(training_.path("out"));
    std::vector<std::string> arguments = {training_.write_config("epochs = 100\nmax_steps = 5"),
                                          "--threads", "1"};
    if (!serve.empty()) arguments.push_back(serve);
    const Finished f = train(arguments);
    ASSERT_EQ(f.exit_code, 0) << f.err;
    EXPECT_EQ(PageAddress::in(f.err).port != 0, !serve.empty()) << f.err;
    const std::string run = newest_run(training_.path("out"));
    results.push_back(read_whole(run + "/step5/adapter_model.safetensors"));
    EXPECT_FALSE(results.back().empty());
    const Json plan = Json::parse(read_whole(run + "/plan.json"));
    const auto is_page = [](const Json& line) { return line["name"] == "live page"; };
    EXPECT_EQ(std::ranges::any_of(plan["outside_arenas"], is_page), !serve.empty());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(LivePage, SaysWhatIsWrongWithAPort) {
  BackgroundBallast watch({"watch", training_.path(""), "--port", "0"});
  const PageAddress page = address_of(watch);
  ASSERT_NE(page.port, 0);
  const Finished taken =
      run_ballast({"watch", training_.path(""), "--port", std::to_string(page.port)});
  EXPECT_EQ(taken.exit_code, 6);
  EXPECT_THAT(taken.err, HasSubstr("is taken by another program"));
  EXPECT_THAT(taken.err, HasSubstr("--port 0"));
  const Finished f = run_ballast({"train", training_.write_config("epochs = 1"), "--serve=x"});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, HasSubstr("expected a port such as :8080"));
}

}  // namespace
}  // namespace ballast::test
