#include "memory/library_search.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kFile = "libballast_fake.so.9";
constexpr const char* kPart = "libballast_fake_part.so.9";

int call(void* library, const char* function) {
  return reinterpret_cast<int (*)()>(::dlsym(library, function))();
}

int version(const FoundLibrary& found) { return call(found.handle, "fake_version"); }

// The library, of version 2 or later where it says so.
WantedLibrary wanted(int least = 0) {
  return {.files = {kFile},
          .parts = {"libballast_fake_part.so"},
          .fault = [least](void* library) -> std::optional<std::string> {
            if (call(library, "fake_version") >= least) return std::nullopt;
            return "it is too old";
          }};
}

class LibrarySearch : public ::testing::Test {
 protected:
  // What a test has loaded is in no other.
  void TearDown() override {
    for (const char* name : {kFile, kPart}) {
      while (void* const loaded = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {
        ::dlclose(loaded);  // this handle, and one of the test's
        if (::dlclose(loaded) != 0) break;
      }
    }
  }

  // A folder with the library of this version.
  std::string folder(const std::string& name, const char* library) {
    const fs::path path = fs::path(temporary_.path()) / name;
    fs::create_directories(path);
    fs::copy_file(library, path / kFile);
    return path.string();
  }

 private:
  TempDir temporary_;
};

TEST_F(LibrarySearch, NamedFoldersComeBeforePackagesAndTheToolkit) {
  const std::string one = folder("one", BALLAST_FAKE_CUDA_1);
  const std::string two = folder("two", BALLAST_FAKE_CUDA_2);
  const FoundLibrary found =
      search_library(wanted(), {.variable = {"/nowhere", two}, .pip = {one}, .toolkit = {one}});
  ASSERT_NE(found.handle, nullptr) << found.tried;
  EXPECT_EQ(found.origin, LibraryOrigin::variable);
  EXPECT_EQ(found.path, two + "/" + kFile);
  EXPECT_EQ(version(found), 2);
}

TEST_F(LibrarySearch, PackagesComeBeforeTheToolkit) {
  const std::string one = folder("one", BALLAST_FAKE_CUDA_1);
  const std::string two = folder("two", BALLAST_FAKE_CUDA_2);
  const FoundLibrary found =
      search_library(wanted(), {.variable = {}, .pip = {one}, .toolkit = {two}});
  ASSERT_NE(found.handle, nullptr) << found.tried;
  EXPECT_EQ(found.origin, LibraryOrigin::pip);
  EXPECT_EQ(version(found), 1);
}

TEST_F(LibrarySearch, WhatCannotBeUsedIsNamedAndTheSearchGoesOn) {
  const std::string one = folder("one", BALLAST_FAKE_CUDA_1);
  const std::string two = folder("two", BALLAST_FAKE_CUDA_2);
  const FoundLibrary found =
      search_library(wanted(2), {.variable = {one}, .pip = {}, .toolkit = {two}});
  ASSERT_NE(found.handle, nullptr) << found.tried;
  EXPECT_EQ(found.origin, LibraryOrigin::toolkit);
  EXPECT_EQ(version(found), 2);
  EXPECT_THAT(found.tried, HasSubstr(one + "/" + kFile + ": it is too old"));
}

TEST_F(LibrarySearch, WhatTheProcessHasLoadedComesFirst) {
  const std::string one = folder("one", BALLAST_FAKE_CUDA_1);
  const std::string two = folder("two", BALLAST_FAKE_CUDA_2);
  void* const loaded = ::dlopen((two + "/" + kFile).c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(loaded, nullptr);
  const FoundLibrary found =
      search_library(wanted(), {.variable = {one}, .pip = {}, .toolkit = {}});
  EXPECT_EQ(found.handle, loaded);
  EXPECT_EQ(found.origin, LibraryOrigin::process);
  EXPECT_EQ(found.path, two + "/" + kFile);
}

TEST_F(LibrarySearch, PartsOfTheSameFolderAreFoundByName) {
  const std::string one = folder("one", BALLAST_FAKE_CUDA_1);
  EXPECT_EQ(::dlopen(kPart, RTLD_LAZY), nullptr) << "the loader knows the part by itself";
  fs::copy_file(BALLAST_FAKE_CUDA_PART, fs::path(one) / kPart);
  const FoundLibrary found =
      search_library(wanted(), {.variable = {}, .pip = {one}, .toolkit = {}});
  ASSERT_NE(found.handle, nullptr) << found.tried;
  EXPECT_EQ(call(found.handle, "fake_finds_part"), 1);
}

TEST_F(LibrarySearch, ADamagedFileIsNamedAndTheSearchGoesOn) {
  const std::string one = folder("one", BALLAST_FAKE_CUDA_1);
  const std::string damaged = folder("damaged", BALLAST_FAKE_CUDA_2);
  fs::resize_file(fs::path(damaged) / kFile, 100);
  const FoundLibrary found =
      search_library(wanted(), {.variable = {damaged}, .pip = {one}, .toolkit = {}});
  ASSERT_NE(found.handle, nullptr) << found.tried;
  EXPECT_EQ(found.origin, LibraryOrigin::pip);
  EXPECT_THAT(found.tried, HasSubstr(damaged + "/" + kFile));
}

TEST_F(LibrarySearch, NothingFoundSaysWhatWasTried) {
  const FoundLibrary found = search_library(wanted(), {});
  EXPECT_EQ(found.handle, nullptr);
  EXPECT_THAT(found.tried, HasSubstr(kFile));
}

TEST_F(LibrarySearch, RelativeFoldersOfTheVariableAreDropped) {
  ::setenv("BALLAST_CUDA_PATH", ":.:libs:/opt/one::/opt/two", 1);
  EXPECT_THAT(library_folders().variable, ElementsAre("/opt/one", "/opt/two"));
  ::setenv("BALLAST_CUDA_PATH", "", 1);
  EXPECT_THAT(library_folders().variable, IsEmpty());
  ::unsetenv("BALLAST_CUDA_PATH");
  EXPECT_THAT(library_folders().variable, IsEmpty());
}

}  // namespace
}  // namespace ballast
