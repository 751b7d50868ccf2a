#pragma once

#include <gmock/gmock.h>

#include <optional>

#include "core/error.h"

namespace ballast::test {

// What `f` fails with; nullopt when it does not.
template <class F>
std::optional<Error> error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  return std::nullopt;
}

// EXPECT_FAILS(f(), ErrorCode::input, "st.offset"): the code, and a part of the message.
#define EXPECT_FAILS(expression, error_code, text)                              \
  do {                                                                          \
    const auto error_ = ::ballast::test::error_of([&] { (void)(expression); }); \
    ASSERT_TRUE(error_.has_value()) << #expression << " did not fail";          \
    EXPECT_EQ(error_->code(), error_code) << error_->what();                    \
    EXPECT_THAT(error_->what(), ::testing::HasSubstr(text));                    \
  } while (false)

}  // namespace ballast::test
