#pragma once

#include <future>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "core/system_limits.h"

namespace ballast {

// std::thread and std::async, whose failure is out_of_threads(). Every thread of the program is
// started by one of these. what: what it is for, "reading from disk".
template <class F>
std::thread start_thread(std::string_view what, F&& body) {
  try {
    return std::thread(std::forward<F>(body));
  } catch (const std::system_error& e) {
    throw out_of_threads(what, e.code().message());
  }
}

template <class F>
auto start_task(std::string_view what, F&& body) {
  try {
    return std::async(std::launch::async, std::forward<F>(body));
  } catch (const std::system_error& e) {
    throw out_of_threads(what, e.code().message());
  }
}

}  // namespace ballast
