#pragma once

namespace ballast {

// A source position; default arguments of here() are evaluated at the caller.
struct Where {
  const char* file = "";
  int line = 0;

  static constexpr Where here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace ballast
