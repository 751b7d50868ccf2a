#include "core/crash_handler.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <exception>
#include <new>
#include <stdexcept>

namespace ballast::crash_handler_test {
namespace {

void fail_with(bool memory) {
  if (memory) throw std::bad_alloc();
  throw std::runtime_error("another failure");
}
void throws_where_nothing_may_pass(bool memory) noexcept { fail_with(memory); }

// As operator new does when there is no memory.
void fail_to_allocate() {
  try {
    std::get_new_handler()();
  } catch (const std::bad_alloc&) {
  }
}

TEST(OutOfMemoryDeathTest, EndsWithACodeWhereNoExceptionMayPass) {
  EXPECT_EXIT(
      {
        exit_when_memory_is_out();
        throws_where_nothing_may_pass(true);
      },
      ::testing::ExitedWithCode(5), "ballast: the system has no memory left");
}

TEST(OutOfMemoryDeathTest, EndsWithACodeWhereALibraryGivesUp) {
  EXPECT_EXIT(
      {
        exit_when_memory_is_out();
        fail_to_allocate();
        std::terminate();
      },
      ::testing::ExitedWithCode(5), "ballast: the system has no memory left");
}

TEST(OutOfMemoryDeathTest, OtherFailuresEndAsBefore) {
  EXPECT_EXIT(
      {
        exit_when_memory_is_out();
        fail_to_allocate();
        throws_where_nothing_may_pass(false);
      },
      ::testing::KilledBySignal(SIGABRT), "another failure");
}

}  // namespace
}  // namespace ballast::crash_handler_test
