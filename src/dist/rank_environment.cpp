#include "dist/rank_environment.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "core/to_size.h"
#include "dist/host_memory.h"

namespace ballast {
namespace {

constexpr std::array<const char*, 6> kVariables = {"BALLAST_RANK",        "BALLAST_RANKS",
                                                   "BALLAST_LOCAL_RANK",  "BALLAST_LOCAL_RANKS",
                                                   "BALLAST_RANK_MEMORY", "BALLAST_JOB_TOKEN"};
constexpr std::size_t kTokenAt = 5, kTokenDigits = 32;

[[noreturn]] void fail_environment(std::string_view why) {
  std::string all;
  for (const char* const name : kVariables) {
    const char* const value = std::getenv(name);
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ", name,
                       value == nullptr ? "not set" : fmt::format("= {}", printable(value, 40)));
  }
  fail(ErrorCode::usage,
       fmt::format("the environment does not say which rank this is: {} ({})", why, all),
       {{"unset " + std::string(kVariables[0]) + " and the others", "runs alone"},
        {"ballast train --ranks N", "starts ranks and sets them"}});
}

int number_of(std::size_t variable) {
  const std::string_view text = std::getenv(kVariables[variable]);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    fail_environment(fmt::format("{} is no number", kVariables[variable]));
  }
  return value;
}

void check_token(std::string_view token) {
  const bool digits = std::ranges::all_of(
      token, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (token.size() != kTokenDigits || !digits) {
    fail_environment(fmt::format("{} is no token", kVariables[kTokenAt]));
  }
}

}  // namespace

std::optional<RankPlace> this_rank() {
  const auto set = std::ranges::count_if(kVariables, [](const char* n) { return std::getenv(n); });
  if (set == 0) return std::nullopt;
  if (to_size(set) < kVariables.size()) fail_environment("some variables are missing");
  RankPlace p = {.rank = number_of(0),
                 .ranks = number_of(1),
                 .local_rank = number_of(2),
                 .local_ranks = number_of(3),
                 .memory_fd = number_of(4),
                 .token = std::getenv(kVariables[kTokenAt])};
  if (p.rank >= p.ranks || p.local_rank >= p.local_ranks || p.local_ranks > p.ranks ||
      p.local_rank > p.rank || p.local_ranks > HostMemory::kMaxRanks) {
    fail_environment("the numbers do not fit together");
  }
  check_token(p.token);
  if (::fcntl(p.memory_fd, F_SETFD, FD_CLOEXEC) != 0) {
    fail_environment(fmt::format("{} names no open file", kVariables[4]));
  }
  return p;
}

std::vector<std::pair<std::string, std::string>> environment_of(const RankPlace& place) {
  return {{kVariables[0], std::to_string(place.rank)},
          {kVariables[1], std::to_string(place.ranks)},
          {kVariables[2], std::to_string(place.local_rank)},
          {kVariables[3], std::to_string(place.local_ranks)},
          {kVariables[4], std::to_string(place.memory_fd)},
          {kVariables[5], place.token}};
}

}  // namespace ballast
