#include "report/webhook.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "core/log.h"
#include "tests/support/http_server.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace ballast {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Kind = WebhookMessage::Kind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;

constexpr const char* kSecret = test::HttpServer::kSecret;

using Server = test::HttpServer;

std::string reply(const std::string& status, const std::string& headers = "",
                  const std::string& body = "") {
  return "HTTP/1.1 " + status + "\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}

const std::string kOk = reply("204 No Content");

// Time that passes only by waiting, and then at once. While it is held, waits last until the
// webhook is notified. The webhook's mutex guards it while one lives.
class FakeTime {
 public:
  WebhookTime time() {
    return {[this] { return now_; },
            [this](std::condition_variable& wake, std::unique_lock<std::mutex>& lock,
                   WebhookTime::Point until) {
              if (held_) return wake.wait(lock);
              waits_.push_back(until - now_);
              now_ = until;
            }};
  }
  void hold(bool held) { held_ = held; }
  const std::vector<std::chrono::nanoseconds>& waits() const { return waits_; }
  std::chrono::nanoseconds passed() const {
    return std::accumulate(waits_.begin(), waits_.end(), std::chrono::nanoseconds(0));
  }

 private:
  WebhookTime::Point now_{std::chrono::hours(1)};
  std::vector<std::chrono::nanoseconds> waits_;
  std::atomic<bool> held_{false};
};

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
  FakeTime time_;
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
    Webhook hook(server.url(), options_, time_.time());
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
    Webhook hook(server.url(), options_, time_.time());
    hook.send(message(Kind::start, "start"));
  }
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 3u);
  const auto with_jitter = [&](milliseconds least) {
    return AllOf(Ge(least), Le(least + options_.jitter));
  };
  EXPECT_THAT(time_.waits(),
              ElementsAre(with_jitter(milliseconds(200)), with_jitter(milliseconds(150))));
  EXPECT_EQ(requests[0].body, requests[2].body);
  EXPECT_EQ(warnings(), 0);
}

TEST_F(WebhookSender, HoldsBackWhenTheLimitIsUsedUp) {
  Server server(
      {reply("204 No Content", "X-RateLimit-Remaining: 0\r\nX-RateLimit-Reset-After: 0.25\r\n"),
       kOk});
  {
    Webhook hook(server.url(), options_, time_.time());
    hook.send(message(Kind::start, "one"));
    ASSERT_TRUE(test::wait_until([&] { return hook.count().sent == 1; }));
    hook.send(message(Kind::sample, "two"));
  }
  EXPECT_EQ(server.requests().size(), 2u);
  EXPECT_THAT(time_.waits(), ElementsAre(milliseconds(250)));
}

TEST_F(WebhookSender, ProgressCoalescesAndUrgentMessagesGoFirst) {
  Server server(
      {reply("204 No Content", "X-RateLimit-Remaining: 0\r\nX-RateLimit-Reset-After: 1.0\r\n"),
       kOk});
  time_.hold(true);
  {
    Webhook hook(server.url(), options_, time_.time());
    hook.send(message(Kind::start, "start"));
    ASSERT_TRUE(test::wait_until([&] { return hook.count().sent == 1; }));
    hook.send(message(Kind::progress, "step 1"));
    hook.send(message(Kind::sample, "sample"));
    hook.send(message(Kind::progress, "step 2"));
    hook.send(message(Kind::progress, "step 3"));
    hook.send(message(Kind::warning, "loss is NaN"));
    time_.hold(false);
  }
  EXPECT_THAT(titles(server.requests()), ElementsAre("start", "loss is NaN", "sample", "step 3"));
}

TEST_F(WebhookSender, FullQueueDropsTheLeastAndNeverBlocks) {
  Server server(
      {reply("204 No Content", "X-RateLimit-Remaining: 0\r\nX-RateLimit-Reset-After: 1.0\r\n"),
       kOk});
  options_.queue = 2;
  time_.hold(true);
  {
    Webhook hook(server.url(), options_, time_.time());
    hook.send(message(Kind::start, "start"));
    ASSERT_TRUE(test::wait_until([&] { return hook.count().sent == 1; }));
    for (int i = 0; i < 1000; ++i) hook.send(message(Kind::sample, "sample"));
    hook.send(message(Kind::stop, "stop"));
    EXPECT_EQ(hook.count().dropped, 999);
    time_.hold(false);
  }
  EXPECT_THAT(titles(server.requests()), ElementsAre("start", "stop", "sample"));
}

TEST_F(WebhookSender, TriesFiveTimesWhenTheServerFailsThenDropsItWithOneWarning) {
  Server server({reply("500 Oops")});
  {
    Webhook hook(server.url(), options_, time_.time());
    hook.send(message(Kind::start, "one"));
    hook.send(message(Kind::sample, "two"));
  }
  EXPECT_EQ(server.requests().size(), 10u);
  const milliseconds first = options_.first_pause, longest = options_.longest_pause;
  EXPECT_THAT(time_.waits(),
              ElementsAre(first, longest, longest, longest, first, longest, longest, longest));
  EXPECT_EQ(warnings(), 1);
  EXPECT_THAT(log_text(), HasSubstr("the server answered 500"));
}

TEST_F(WebhookSender, IsOffForTheRunAfterARefusal) {
  for (const char* status : {"401 Unauthorized", "403 Forbidden", "404 Not Found"}) {
    Server server({reply(status)});
    {
      Webhook hook(server.url(), options_, time_.time());
      hook.send(message(Kind::start, "one"));
      ASSERT_TRUE(test::wait_until([&] { return hook.count().dropped == 1; }));
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
    Webhook hook(server.url(), options_, time_.time());
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
  {
    Webhook hook(url, options_, time_.time());
    for (int i = 0; i < 3; ++i) hook.send(message(Kind::sample, "lost"));
  }
  EXPECT_EQ(warnings(), 1);
  EXPECT_THAT(log_text(), HasSubstr("webhook: "));
  EXPECT_LT(time_.passed(), options_.finish);
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
  options_.timeout = milliseconds(200);
  options_.finish = milliseconds(0);
  time_.hold(true);
  {
    Webhook hook("http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/" + kSecret,
                 options_, time_.time());
    hook.send(message(Kind::stop, "stop"));
    pollfd called = {listener, POLLIN, 0};
    ASSERT_EQ(::poll(&called, 1, 60'000), 1);
    hook.send(message(Kind::sample, "more"));
    EXPECT_EQ(hook.count().dropped, 0) << "send has waited for what becomes of it";
  }
  ::fcntl(listener, F_SETFL, O_NONBLOCK);
  int calls = 0;
  for (int client; (client = ::accept(listener, nullptr, nullptr)) >= 0; ::close(client)) ++calls;
  ::close(listener);
  EXPECT_EQ(calls, 1);
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
