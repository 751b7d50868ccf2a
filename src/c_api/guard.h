#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "ballast/ballast_c.h"
#include "core/error.h"

namespace ballast::c_api {

using Json = nlohmann::ordered_json;

// As one line of UTF-8; what is no UTF-8 is replaced.
std::string text_of(const Json& json);

// For the caller, who frees it. Null where there is no memory.
char* copied(std::string_view text) noexcept;
// The same into a place that may be null.
void give(char** to, std::string_view text);

// The exception that is being handled: its text to *err, its exit code back.
int explain(char** err) noexcept;

// Fails in a process that was forked after the library was loaded.
void require_own_process();

// Fails with ErrorCode::usage where a pointer that is needed is null.
void require(const void* pointer, const char* what);

// What a function of the interface does: nothing is thrown out of it.
template <class F>
int guarded(char** err, F&& work) noexcept {
  if (err != nullptr) *err = nullptr;
  try {
    require_own_process();
    work();
    return 0;
  } catch (...) {
    return explain(err);
  }
}

}  // namespace ballast::c_api
