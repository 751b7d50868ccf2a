#include "report/webhook.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "core/log.h"
#include "core/start_thread.h"
#include "report/service_key.h"

namespace ballast {
namespace {

using Seconds = std::chrono::duration<double>;

double seconds_of_epoch() {
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Which messages go first, and which are dropped last.
int rank_of(WebhookMessage::Kind kind) {
  using Kind = WebhookMessage::Kind;
  return kind == Kind::stop || kind == Kind::warning ? 2 : kind == Kind::progress ? 0 : 1;
}

// A thread that takes no signals: they belong to the loop that ends the run in good order.
std::thread quiet_thread(auto&& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread = start_thread("webhook messages", body);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace

std::unique_ptr<Webhook> Webhook::from_environment(const WebhookOptions& options) {
  std::optional<ServiceKey> key;
  // BALLAST_WEBHOOK_URL is a variable of the environment alone.
  if (const char* const url = std::getenv("BALLAST_WEBHOOK_URL"); url != nullptr && *url != '\0') {
    key = {"BALLAST_WEBHOOK_URL", url, "the environment"};
  } else {
    key = find_service_key("DISCORD_WEBHOOK");
  }
  if (!key) return nullptr;
  if (!key->value.starts_with("https://") && !key->value.starts_with("http://")) {
    log::warn("{} ({}) is no http or https address: nothing will be sent", key->name, key->from);
    return nullptr;
  }
  if (!http_available()) {
    log::warn("{} is set, but there is no libcurl: nothing will be sent", key->name);
    return nullptr;
  }
  if (key->name == "DISCORD_WEBHOOK") {
    log::info("progress of the run is sent to the address in DISCORD_WEBHOOK ({})", key->from);
  }
  return std::make_unique<Webhook>(key->value, options);
}

Webhook::Webhook(std::string url, const WebhookOptions& options, WebhookTime time)
    : url_(std::move(url)),
      options_(options),
      time_(std::move(time)),
      dialect_(dialect_of(url_)),
      random_(static_cast<std::uint32_t>(time_.now().time_since_epoch().count()) | 1),
      thread_(quiet_thread([this] { work(); })) {}

Webhook::~Webhook() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    deadline_ = time_.now() + options_.finish;
  }
  wake_.notify_all();
  thread_.join();
}

Webhook::Count Webhook::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

void Webhook::send(WebhookMessage message) {
  {
    const std::lock_guard lock(mutex_);
    if (disabled_) {
      ++count_.dropped;
      return;
    }
    const int rank = rank_of(message.kind);
    if (rank == 0) {
      count_.dropped += static_cast<std::int64_t>(
          std::erase_if(queue_, [](const Entry& e) { return rank_of(e.message.kind) == 0; }));
    }
    const auto at = std::ranges::find_if(
        queue_, [&](const Entry& e) { return rank_of(e.message.kind) < std::max(rank, 1); });
    queue_.insert(at, {std::move(message), seconds_of_epoch()});
    if (queue_.size() > options_.queue) {
      queue_.erase(std::ranges::min_element(
          queue_, {}, [](const Entry& e) { return rank_of(e.message.kind); }));
      ++count_.dropped;
    }
  }
  wake_.notify_all();
}

void Webhook::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const bool in_time =
        !disabled_ && pause(not_before_ - time_.now(), lock) && time_.now() < deadline_;
    if (!in_time) {
      if (!disabled_) warn_once("no time was left for the last messages");
      count_.dropped += static_cast<std::int64_t>(queue_.size());
      queue_.clear();
      continue;
    }
    const Entry entry = std::move(queue_.front());  // perhaps a more urgent one by now
    queue_.pop_front();
    ++(deliver(entry, lock) ? count_.sent : count_.dropped);
  }
}

bool Webhook::pause(Seconds wait, std::unique_lock<std::mutex>& lock) {
  const auto until = time_.now() + std::chrono::duration_cast<Point::duration>(wait);
  while (time_.now() < until) {
    if (until > deadline_) return false;
    time_.wait(wake_, lock, until);
  }
  return true;
}

bool Webhook::deliver(const Entry& entry, std::unique_lock<std::mutex>& lock) {
  const std::string body = webhook_payload(dialect_, entry.message, entry.time);
  Seconds back_off = options_.first_pause;
  for (int attempt = 1;; ++attempt) {
    lock.unlock();
    const HttpAnswer answer = http_post(url_, body, static_cast<int>(options_.timeout.count()));
    lock.lock();
    if (answer.status >= 200 && answer.status < 300) {
      if (answer.remaining == 0 && answer.reset_after) {
        const Seconds hold = std::min<Seconds>(Seconds(*answer.reset_after), options_.last_wait);
        not_before_ = time_.now() + std::chrono::duration_cast<Point::duration>(hold);
      }
      return true;
    }
    if (answer.status == 401 || answer.status == 403 || answer.status == 404) {
      disabled_ = true;  // repeating it would get this address banned
      warn_once(
          fmt::format("the server answered {}; it is off for the rest of the run", answer.status));
      return false;
    }
    Seconds wait = back_off;
    if (answer.status == 429) {
      random_ = random_ * 1664525u + 1013904223u;
      const double share = static_cast<double>(random_ >> 8) / (1 << 24);
      wait = Seconds(answer.retry_after.value_or(back_off.count())) + share * options_.jitter;
    } else if (answer.status != 0 && answer.status < 500) {
      warn_once(fmt::format("the server answered {}", answer.status));
      return false;
    } else {
      back_off = std::min<Seconds>(2 * back_off, options_.longest_pause);
    }
    const bool again = attempt < options_.tries && wait <= options_.last_wait && pause(wait, lock);
    if (again) continue;
    warn_once(answer.status == 0 ? answer.problem
                                 : fmt::format("the server answered {}", answer.status));
    return false;
  }
}

void Webhook::warn_once(std::string_view why) {
  if (warned_) return;
  warned_ = true;
  log::warn("webhook: {}; messages are lost, the run is not affected", why);
}

}  // namespace ballast
