#include "report/service_key.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

TEST(ServiceKey, LinesOfAnEnvFile) {
  const auto value = [](std::string_view text) { return value_in_env_text(text, "KEY"); };
  EXPECT_EQ(value("KEY=abc"), "abc");
  EXPECT_EQ(value("A=1\nKEY = abc \r\nB=2\n"), "abc");
  EXPECT_EQ(value("export KEY='a # b'\n"), "a # b");
  EXPECT_EQ(value("KEY=\"https://x/y?a=b\" # mine\n"), "https://x/y?a=b");
  EXPECT_EQ(value("KEY=abc # mine"), "abc");
  EXPECT_EQ(value("KEY=https://x/#part"), "https://x/#part");
  EXPECT_EQ(value("KEY=one\nKEY=two"), "two");
  EXPECT_EQ(value("KEY="), "");
  EXPECT_EQ(value("KEY='open"), "open");
  for (const char* text : {"", "\n\n", "#KEY=abc", "MY_KEY=abc", "KEY", "KEY abc", "=KEY"}) {
    EXPECT_EQ(value(text), std::nullopt) << text;
  }
}

TEST(ServiceKey, TheEnvironmentWinsOverTheFileOfTheWorkingDirectory) {
  const test::TempDir dir;
  dir.write(".env", "BALLAST_TEST_KEY=of the file\n");
  const std::filesystem::path before = std::filesystem::current_path();
  ::unsetenv("BALLAST_TEST_KEY");
  EXPECT_FALSE(find_service_key("BALLAST_TEST_KEY"));
  std::filesystem::current_path(dir.path());
  const auto of_file = find_service_key("BALLAST_TEST_KEY");
  ::setenv("BALLAST_TEST_KEY", "of the environment", 1);
  const auto of_environment = find_service_key("BALLAST_TEST_KEY");
  ::unsetenv("BALLAST_TEST_KEY");
  std::filesystem::current_path(before);
  ASSERT_TRUE(of_file && of_environment);
  EXPECT_EQ(of_file->value, "of the file");
  EXPECT_EQ(of_file->from, ".env");
  EXPECT_EQ(of_environment->value, "of the environment");
  EXPECT_EQ(of_environment->from, "the environment");
}

}  // namespace
}  // namespace ballast
