#include "app/rank_session.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "app/output.h"
#include "core/to_size.h"
#include "plan/program.h"

namespace ballast {
namespace {

std::unique_ptr<RankSession> session;

constexpr const char* kHangLimit = "BALLAST_HANG_SECONDS";

std::chrono::milliseconds hang_limit() {
  constexpr std::chrono::milliseconds kDefault{60000};
  const char* const text = std::getenv(kHangLimit);
  if (text == nullptr || *text == '\0') return kDefault;
  const std::string_view given = text;
  int seconds = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), seconds);
  constexpr int kMost = 24 * 3600;
  if (error != std::errc() || end != given.data() + given.size() || seconds < 1 ||
      seconds > kMost) {
    fail(ErrorCode::usage, fmt::format("{} is \"{}\", expected seconds from 1 to {}", kHangLimit,
                                       printable(given), kMost));
  }
  return std::chrono::seconds(seconds);
}

}  // namespace

RankSession::RankSession(const RankPlace& place)
    : place_(place),
      memory_(place.memory_fd, place.token, place.local_ranks, HostMemory::Part::control) {
  ControlOptions options = {.rank = place.rank, .ranks = place.ranks, .token = place.token};
  options.hang = hang_limit();
  options.network_lane = to_size(Lane::network);
  options.end_of = [this](int rank) { return memory_.end_of(rank); };
  options.on_report = [this](const ControlReport& report) {
    memory_.set_reported(static_cast<int>(report.code));
    memory_.lose({.rank = static_cast<int>(report.rank), .cause = RankLoss::Cause::failed});
  };
  options.words = without_rule_ids;
  channel_ = std::make_unique<ControlChannel>(std::move(options));
}

RankSession* RankSession::current() { return session.get(); }

void RankSession::begin(const RankPlace& place) { session = std::make_unique<RankSession>(place); }

void RankSession::end(bool finished) {
  if (session && finished) session->channel().finish();
  session.reset();
}

std::optional<int> RankSession::explain(const Error& error, bool shown) {
  channel_->tell(error, shown);
  const auto report = channel_->await_report();
  if (!report) return std::nullopt;
  return static_cast<int>(report->code);
}

}  // namespace ballast
