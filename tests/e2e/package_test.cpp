#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/tiny_training.h"

// Ballast installed somewhere, and a program of somebody else's that finds and uses it.

namespace ballast {
namespace {

struct Ran {
  int exit_code = -1;
  std::string output;
};

Ran run(const test::TempDir& dir, const std::string& command) {
  const std::string log = dir.path("log");
  const int status = std::system((command + " > '" + log + "' 2>&1").c_str());
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          .output = test::read_whole(log)};
}

TEST(Package, IsInstalledFoundAndUsed) {
  if (std::string(BALLAST_SANITIZE) != "")
    GTEST_SKIP() << "the library needs a sanitizer's runtime";
  const test::TempDir dir;
  const std::string prefix = dir.path("prefix"), build = dir.path("build");
  const std::string cmake = std::string("'") + BALLAST_CMAKE + "' ";
  const Ran installed =
      run(dir, cmake + "--install '" + BALLAST_BUILD_DIR + "' --prefix '" + prefix + "'");
  ASSERT_EQ(installed.exit_code, 0) << installed.output;
  EXPECT_TRUE(std::filesystem::exists(prefix + "/include/ballast/ballast.h"));
  EXPECT_EQ(run(dir, "'" + prefix + "/bin/ballast' --version").exit_code, 0);

  // The user's own flags: no warning may come from the header either.
  const Ran configured =
      run(dir, cmake + "-S '" + BALLAST_SOURCE_DIR + "/examples/library' -B '" + build +
                   "' -G Ninja -DCMAKE_PREFIX_PATH='" + prefix +
                   "' -DCMAKE_CXX_FLAGS='-Wall -Wextra -Wpedantic -Wconversion -Werror'");
  ASSERT_EQ(configured.exit_code, 0) << configured.output;
  const Ran built = run(dir, cmake + "--build '" + build + "'");
  ASSERT_EQ(built.exit_code, 0) << built.output;

  const support::TinyCheckpoint model(support::trainable_config(2, 2));
  const Ran ran =
      run(dir, "'" + build + "/train_lora' '" + model.path() + "' '" + dir.path() + "'");
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_THAT(ran.output, testing::HasSubstr("both ways give the same loss: yes"));
  EXPECT_TRUE(std::filesystem::exists(dir.path("lora.safetensors")));

  // The same in C, through the shared library, as any compiler finds it.
  const std::string c_program = dir.path("train_lora_c"), lib = prefix + "/lib";
  const Ran compiled =
      run(dir, "cc -std=c99 -Wall -Wextra -Wpedantic -Werror -I'" + prefix + "/include' '" +
                   BALLAST_SOURCE_DIR + "/examples/c/train_lora.c' -L'" + lib + "' -Wl,-rpath,'" +
                   lib + "' -lballast -lm -o '" + c_program + "'");
  ASSERT_EQ(compiled.exit_code, 0) << compiled.output;
  const Ran in_c = run(dir, "'" + c_program + "' '" + model.path() + "' '" + dir.path() + "'");
  EXPECT_EQ(in_c.exit_code, 0) << in_c.output;
  EXPECT_THAT(in_c.output, testing::HasSubstr("\"step\":3"));
  EXPECT_TRUE(std::filesystem::exists(dir.path("lora_c.safetensors")));

  const Ran wrong = run(dir, "'" + build + "/train_lora' '" + dir.path("nothing") + "'");
  EXPECT_EQ(wrong.exit_code, 6) << wrong.output;
}

}  // namespace
}  // namespace ballast
