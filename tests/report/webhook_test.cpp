#include "report/webhook.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/log.h"
#include "tests/support/http_server.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Kind = WebhookMessage::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSecret = test::HttpServer::kSecret;

using Server = test::HttpServer;

std::string reply(const std::string& status, const std::string& headers = "",
                  const std::string& body = "") {
  return "HTTP/1.1 " + status + "\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}

const std::string kOk = reply("204 No Content");

class WebhookSender : public testing::Test {
 protected:
  void SetUp() override {
    if (!http_available()) GTEST_SKIP() << "no libcurl on this machine";
    log::set_level(log::Level::debug);
    log::set_file(log_);
    options_.first_pause = milliseconds(10);
    options_.longest_pause = milliseconds(20);
    options_.jitter = milliseconds(5);
    options_.finish = milliseconds(5000);
    options_.timeout = milliseconds(5000);
  }
  void TearDown() override {
    log::set_file(nullptr);
    log::set_level(log::Level::info);
    std::fclose(log_);
    EXPECT_THAT(std::string(text_, size_), Not(HasSubstr(kSecret)));
    EXPECT_THAT(std::string(text_, size_), Not(HasSubstr("127.0.0.1")));
    std::free(text_);
  }
  std::string log_text() {
    std::fflush(log_);
    return {text_, size_};
  }
  int warnings() {
    int count = 0;
    const std::string all = log_text();
    for (std::size_t at = 0; (at = all.find("warning:", at)) != std::string::npos; ++at) ++count;
    return count;
  }

  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* log_ = open_memstream(&text_, &size_);
  WebhookOptions options_;
};

WebhookMessage message(Kind kind, std::string title) { return {kind, std::move(title), "", {}}; }

std::vector<std::string> titles(const std::vector<Server::Request>& requests) {
  std::vector<std::string> all;
  for (const auto& r : requests) all.push_back(json::parse(r.body)["embeds"][0]["title"]);
  return all;
}

TEST_F(WebhookSender, PostsJsonAndDeliversTheLastMessageBeforeItEnds) {
  Server server({kOk});
  {
    Webhook hook(server.url(), options_);
    hook.send({Kind::stop, "done", "all 100 steps", {{"loss", "0.08"}}});
  }
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_THAT(requests[0].head, HasSubstr("POST /api/webhooks/1/s3cr3t-t0ken HTTP/1.1\r\n"));
  EXPECT_THAT(requests[0].head, HasSubstr("Content-Type: application/json\r\n"));
  const json body = json::parse(requests[0].body);
  EXPECT_EQ(body["allowed_mentions"], json::parse("{\"parse\":[]}"));
  EXPECT_EQ(body["embeds"][0]["description"], "all 100 steps");
  EXPECT_EQ(body["embeds"][0]["fields"][0]["value"], "0.08");
  EXPECT_EQ(log_text(), "");
}

TEST_F(WebhookSender, WaitsAsLongAsTooManyRequestsAsksAndSendsItAgain) {
  Server server({reply("429 Too Many Requests", "Retry-After: 0.2\r\n"),
                 reply("429 Too Many Requests", "", "{\"retry_after\": 0.15, \"global\": false}"),
                 kOk});
  {
    Webhook hook(server.url(), options_);
    hook.send(message(Kind::start, "start"));
  }
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_GE(requests[1].at - requests[0].at, milliseconds(200));
  EXPECT_GE(requests[2].at - requests[1].at, milliseconds(150));
  EXPECT_EQ(requests[0].body, requests[2].body);
  EXPECT_EQ(warnings(), 0);
}

TEST_F(WebhookSender, HoldsBackWhenTheLimitIsUsedUp) {
  Server server(
      {reply("204 No Content", "X-RateLimit-Remaining: 0\r\nX-RateLimit-Reset-After: 0.25\r\n"),
       kOk});
  {
    Webhook hook(server.url(), options_);
    hook.send(message(Kind::start, "one"));
    while (hook.count().sent == 0) std::this_thread::sleep_for(milliseconds(1));
    hook.send(message(Kind::sample, "two"));
  }
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_GE(requests[1].at - requests[0].at, milliseconds(240));
}

TEST_F(WebhookSender, ProgressCoalescesAndUrgentMessagesGoFirst) {
  Server server(
      {reply("204 No Content", "X-RateLimit-Remaining: 0\r\nX-RateLimit-Reset-After: 1.0\r\n"),
       kOk});
  {
    Webhook hook(server.url(), options_);
    hook.send(message(Kind::start, "start"));
    while (hook.count().sent == 0) std::this_thread::sleep_for(milliseconds(1));
    hook.send(message(Kind::progress, "step 1"));
    hook.send(message(Kind::sample, "sample"));
    hook.send(message(Kind::progress, "step 2"));
    hook.send(message(Kind::progress, "step 3"));
    hook.send(message(Kind::warning, "loss is NaN"));
  }
  EXPECT_THAT(titles(server.requests()), ElementsAre("start", "loss is NaN", "sample", "step 3"));
}

TEST_F(WebhookSender, FullQueueDropsTheLeastAndNeverBlocks) {
  Server server(
      {reply("204 No Content", "X-RateLimit-Remaining: 0\r\nX-RateLimit-Reset-After: 1.0\r\n"),
       kOk});
  options_.queue = 2;
  {
    Webhook hook(server.url(), options_);
    hook.send(message(Kind::start, "start"));
    while (hook.count().sent == 0) std::this_thread::sleep_for(milliseconds(1));
    for (int i = 0; i < 1000; ++i) hook.send(message(Kind::sample, "sample"));
    hook.send(message(Kind::stop, "stop"));
    EXPECT_EQ(hook.count().dropped, 999);
  }
  EXPECT_THAT(titles(server.requests()), ElementsAre("start", "stop", "sample"));
}

TEST_F(WebhookSender, TriesFiveTimesWhenTheServerFailsThenDropsItWithOneWarning) {
  Server server({reply("500 Oops")});
  {
    Webhook hook(server.url(), options_);
    hook.send(message(Kind::start, "one"));
    hook.send(message(Kind::sample, "two"));
  }
  EXPECT_EQ(server.requests().size(), 10u);
  EXPECT_EQ(warnings(), 1);
  EXPECT_THAT(log_text(), HasSubstr("the server answered 500"));
}

TEST_F(WebhookSender, IsOffForTheRunAfterARefusal) {
  for (const char* status : {"401 Unauthorized", "403 Forbidden", "404 Not Found"}) {
    Server server({reply(status)});
    {
      Webhook hook(server.url(), options_);
      hook.send(message(Kind::start, "one"));
      while (hook.count().dropped == 0) std::this_thread::sleep_for(milliseconds(1));
      hook.send(message(Kind::stop, "two"));
      EXPECT_EQ(hook.count().dropped, 2);
    }
    EXPECT_EQ(server.requests().size(), 1u);
  }
  EXPECT_EQ(warnings(), 3);
}

TEST_F(WebhookSender, BadRequestIsNotRepeated) {
  Server server({reply("400 Bad Request", "", "{\"errors\":{}}")});
  {
    Webhook hook(server.url(), options_);
    hook.send(message(Kind::start, "one"));
  }
  EXPECT_EQ(server.requests().size(), 1u);
  EXPECT_EQ(warnings(), 1);
}

TEST_F(WebhookSender, ServerThatIsDownIsOneWarning) {
  std::string url;
  {
    Server server({kOk});
    url = server.url();
  }
  const auto start = std::chrono::steady_clock::now();
  {
    Webhook hook(url, options_);
    for (int i = 0; i < 3; ++i) hook.send(message(Kind::sample, "lost"));
  }
  EXPECT_EQ(warnings(), 1);
  EXPECT_THAT(log_text(), HasSubstr("webhook: "));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(4000));
}

TEST_F(WebhookSender, ServerThatNeverAnswersCostsOneTimeoutAtTheEndAndSendNeverWaits) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);  // nobody accepts
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  // Ten tries of this would be made if the end did not cut them short.
  options_.timeout = milliseconds(1000);
  options_.finish = milliseconds(100);
  const auto start = std::chrono::steady_clock::now();
  {
    Webhook hook("http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/" + kSecret,
                 options_);
    hook.send(message(Kind::stop, "stop"));
    hook.send(message(Kind::sample, "more"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, options_.timeout);
  }
  ::close(listener);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5 * options_.timeout);
  EXPECT_EQ(warnings(), 1);
}

TEST_F(WebhookSender, ComesFromTheEnvironmentOnly) {
  Server server({kOk});
  ::unsetenv("BALLAST_WEBHOOK_URL");
  EXPECT_EQ(Webhook::from_environment(), nullptr);
  EXPECT_EQ(warnings(), 0);
  ::setenv("BALLAST_WEBHOOK_URL", (std::string("file:///etc/passwd") + kSecret).c_str(), 1);
  EXPECT_EQ(Webhook::from_environment(), nullptr);
  EXPECT_EQ(warnings(), 1);
  ::setenv("BALLAST_WEBHOOK_URL", server.url("/hook/").c_str(), 1);
  Webhook::from_environment(options_)->send({Kind::warning, "slow disk", "", {}});
  ::unsetenv("BALLAST_WEBHOOK_URL");
  const json body = json::parse(server.requests().at(0).body);
  EXPECT_EQ(body["kind"], "warning");  // no chat we know: our own event
  EXPECT_EQ(body["title"], "slow disk");
}

// BALLAST_WEBHOOK_URL, then DISCORD_WEBHOOK, then DISCORD_WEBHOOK of .env.
TEST_F(WebhookSender, TakesTheAddressOfATrainingJob) {
  Server of_ballast({kOk}), of_job({kOk}), of_file({kOk});
  const test::TempDir dir;
  dir.write(".env", "OTHER=1\nDISCORD_WEBHOOK=" + of_file.url("/hook/") + "\n");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  const auto send = [&] {
    Webhook::from_environment(options_)->send({Kind::warning, "slow disk", "", {}});
  };
  ::unsetenv("BALLAST_WEBHOOK_URL");
  ::unsetenv("DISCORD_WEBHOOK");
  send();
  ::setenv("DISCORD_WEBHOOK", of_job.url("/hook/").c_str(), 1);
  send();
  ::setenv("BALLAST_WEBHOOK_URL", of_ballast.url("/hook/").c_str(), 1);
  send();
  ::unsetenv("BALLAST_WEBHOOK_URL");
  ::unsetenv("DISCORD_WEBHOOK");
  std::filesystem::current_path(before);
  EXPECT_EQ(of_file.requests().size(), 1u);
  EXPECT_EQ(of_job.requests().size(), 1u);
  EXPECT_EQ(of_ballast.requests().size(), 1u);
  EXPECT_EQ(warnings(), 0);
}

std::size_t utf16_units(const std::string& text) {
  std::size_t units = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) != 0x80) units += byte >= 0xF0 ? 2 : 1;
  }
  return units;
}

TEST(WebhookPayload, KeepsToTheLimitsOfTheChat) {
  std::string wide;
  for (int i = 0; i < 9000; ++i) wide += "🚀";
  WebhookMessage m = {Kind::start, wide, "@everyone " + wide, {}};
  for (int i = 0; i < 40; ++i) m.fields.emplace_back(wide, i == 0 ? "" : wide);
  m.fields[0].first = "";
  const json body = json::parse(webhook_payload(WebhookDialect::discord, m, 1700000000));
  const json& embed = body["embeds"][0];
  std::size_t all = utf16_units(embed["title"]) + utf16_units(embed["description"]);
  EXPECT_LE(utf16_units(embed["title"]), 256u);
  EXPECT_THAT(embed["title"].get<std::string>(), ::testing::EndsWith("🚀…"));
  EXPECT_LE(utf16_units(embed["description"]), 4096u);
  EXPECT_LE(embed["fields"].size(), 25u);
  EXPECT_EQ(embed["fields"][0]["name"], "-");
  EXPECT_EQ(embed["fields"][0]["value"], "-");
  for (const json& f : embed["fields"]) {
    const std::size_t name = utf16_units(f["name"]), value = utf16_units(f["value"]);
    EXPECT_TRUE(name >= 1 && name <= 256) << name;
    EXPECT_TRUE(value >= 1 && value <= 1024) << value;
    all += name + value;
  }
  EXPECT_LE(all, 6000u);
  EXPECT_EQ(embed["timestamp"], "2023-11-14T22:13:20Z");
}

TEST(WebhookPayload, ManyShortFieldsAreTwentyFive) {
  WebhookMessage m = {Kind::progress, "t", "", {}};
  for (int i = 0; i < 40; ++i) m.fields.emplace_back("n", "v");
  const json body = json::parse(webhook_payload(WebhookDialect::discord, m, 0));
  EXPECT_EQ(body["embeds"][0]["fields"].size(), 25u);
  EXPECT_FALSE(body["embeds"][0].contains("description"));
}

TEST(WebhookPayload, SpeaksTheDialectOfTheAddress) {
  EXPECT_EQ(dialect_of("https://discord.com/api/webhooks/1/x"), WebhookDialect::discord);
  EXPECT_EQ(dialect_of("https://hooks.slack.com/services/x"), WebhookDialect::slack);
  EXPECT_EQ(dialect_of("https://example.org/x"), WebhookDialect::generic);
  const WebhookMessage m = {Kind::stop, "done \"now\"", "text\n\xff", {{"step", "7"}}};
  const json slack = json::parse(webhook_payload(WebhookDialect::slack, m, 0));
  EXPECT_EQ(slack["text"], "*done \"now\"*\ntext\n\xEF\xBF\xBD\nstep: 7");
  const json generic = json::parse(webhook_payload(WebhookDialect::generic, m, 0));
  EXPECT_EQ(generic["kind"], "stop");
  EXPECT_EQ(generic["fields"][0]["value"], "7");
}

}  // namespace
}  // namespace ballast
