#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/where.h"

namespace ballast {

// The numbers are the exit codes of the command line.
enum class ErrorCode : int {
  internal = 1,
  usage = 2,
  refused = 3,
  input = 4,
  device = 5,
  io = 6,
  differ = 7,
  lost = 8,  // another rank of the run is gone
};

struct Advice {
  std::string change;  // "--policy stream2"
  std::string effect;  // "frees 6.2 GiB of GPU memory, about 9 % slower"
};

// Ends the run. Thrown by fail() and check(); caught once, in app/main.cpp.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, std::vector<Advice> advice = {})
      : code_(code), message_(std::move(message)), advice_(std::move(advice)) {}

  ErrorCode code() const noexcept { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }
  const std::vector<std::string>& trail() const noexcept { return trail_; }
  const std::vector<Advice>& advice() const noexcept { return advice_; }
  void add_trail(std::string doing) { trail_.push_back(std::move(doing)); }

 private:
  ErrorCode code_;
  std::string message_;
  std::vector<std::string> trail_;  // what the program was doing, innermost first
  std::vector<Advice> advice_;
};

[[noreturn]] void fail(ErrorCode code, std::string message, std::vector<Advice> advice = {});
// The message formatted.
template <class First, class... Rest>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<First, Rest...> message, First&& first,
                       Rest&&... rest) {
  fail(code, fmt::format(message, std::forward<First>(first), std::forward<Rest>(rest)...));
}

namespace detail {

template <class... Args>
struct FormatAt {
  template <class Text>
  consteval FormatAt(const Text& text, Where where = Where::here()) : text(text), where(where) {}

  fmt::format_string<Args...> text;
  Where where;
};

[[noreturn]] void fail_check(Where where, std::string message);

}  // namespace detail

// Our own invariants: a false condition is a bug in Ballast, not in the user's input.
template <class... Args>
void check(bool condition, detail::FormatAt<std::type_identity_t<Args>...> message,
           Args&&... args) {
  if (!condition) [[unlikely]] {
    detail::fail_check(message.where, fmt::format(message.text, std::forward<Args>(args)...));
  }
}

// Says what the program was doing, for the message the user reads.
template <class F>
decltype(auto) while_doing(std::string_view what, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (Error& e) {
    e.add_trail(std::string(what));
    throw;
  }
}

// Text that came from a file or a user, made safe to print. Characters that show stay as they are,
// in UTF-8; control characters and bytes that are no UTF-8 become \xNN, direction marks and
// characters without width \uNNNN; long text is cut with its length. Passing twice escapes once.
std::string printable(std::string_view text, std::size_t most = 120);

}  // namespace ballast
