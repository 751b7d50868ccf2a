#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "report/http_post.h"

namespace ballast {

// Whose chat it is decides the form of the body; the address tells.
enum class WebhookDialect : std::uint8_t { discord, slack, generic };
WebhookDialect dialect_of(std::string_view url);

struct WebhookMessage {
  enum class Kind : std::uint8_t { start, progress, sample, warning, stop };
  Kind kind = Kind::progress;
  std::string title, text;
  std::vector<std::pair<std::string, std::string>> fields;
};

// The JSON to post. All texts are cut to what a chat accepts (counted in UTF-16 units, with an
// ellipsis), empty ones are replaced, and nobody is mentioned. unix_seconds: when it happened.
std::string webhook_payload(WebhookDialect dialect, const WebhookMessage& message,
                            double unix_seconds);

struct WebhookOptions {
  std::chrono::milliseconds timeout{10'000};        // of one request
  std::chrono::milliseconds first_pause{1'000};     // after a failed one, doubling
  std::chrono::milliseconds longest_pause{60'000};  // up to this
  std::chrono::milliseconds jitter{250};         // at most so much more after "too many requests"
  std::chrono::milliseconds last_wait{600'000};  // a server that asks for more is given up
  std::chrono::milliseconds finish{10'000};      // the destructor waits so long for what is left
  int tries = 5;                                 // of one message
  std::size_t queue = 64;
};

// How time passes. Tests give one that they move themselves.
struct WebhookTime {
  using Point = std::chrono::steady_clock::time_point;
  std::function<Point()> now = std::chrono::steady_clock::now;
  // Returns at `until`, or sooner when it is notified.
  std::function<void(std::condition_variable&, std::unique_lock<std::mutex>&, Point until)> wait =
      [](std::condition_variable& wake, std::unique_lock<std::mutex>& lock, Point until) {
        wake.wait_until(lock, until);
      };
};

// Sends messages to the chat whose address is in the environment, from a thread of its own: send()
// never waits and never fails, and whatever happens is one warning. The address is a secret and is
// in no message of ours.
class Webhook {
 public:
  // The address is in BALLAST_WEBHOOK_URL, else in DISCORD_WEBHOOK, of the environment or of the
  // file .env. Null when there is none, it is no http(s) address or this build cannot send; the
  // last two are said.
  static std::unique_ptr<Webhook> from_environment(const WebhookOptions& options = {});

  explicit Webhook(std::string url, const WebhookOptions& options = {}, WebhookTime time = {});
  ~Webhook();  // takes at most finish + timeout
  Webhook(const Webhook&) = delete;
  Webhook& operator=(const Webhook&) = delete;

  // Warnings and the final message go first. A progress message takes the place of one that still
  // waits; when the queue is full the oldest message of the least kind is dropped.
  void send(WebhookMessage message);

  struct Count {
    std::int64_t sent = 0, dropped = 0;
  };
  Count count() const;

 private:
  using Point = WebhookTime::Point;
  struct Entry {
    WebhookMessage message;
    double time = 0;
  };

  void work();
  bool deliver(const Entry& entry, std::unique_lock<std::mutex>& lock);
  // False when the wait was cut short because there is no time left.
  bool pause(std::chrono::duration<double> seconds, std::unique_lock<std::mutex>& lock);
  void warn_once(std::string_view why);

  const std::string url_;
  const WebhookOptions options_;
  const WebhookTime time_;
  const WebhookDialect dialect_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Entry> queue_;
  Point not_before_{}, deadline_ = Point::max();
  Count count_;
  bool closing_ = false, disabled_ = false, warned_ = false;
  std::uint32_t random_ = 1;
  std::thread thread_;  // last: everything is there when it starts
};

}  // namespace ballast
