#include "train/run/text_states.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace ballast::train::text_states_test {
namespace {

TEST(TextStates, AreComparedWithTheirChecksumWhenTheyAreRead) {
  const test::TempDir dir;
  const TextStates states(dir.path("states"), "encoder", 4);
  infer::TextStates rows = {.tokens = 3, .width = 4, .values = std::vector<float>(12)};
  for (std::size_t i = 0; i < 12; ++i) rows.values[i] = static_cast<float>(i);
  states.put("a prompt", rows);
  std::vector<float> all(16, 7.0f), two(8, 7.0f);
  EXPECT_EQ(states.read("a prompt", all), 3);
  EXPECT_EQ(all[11], 11.0f);
  EXPECT_EQ(all[12], 0.0f);
  EXPECT_EQ(states.read("a prompt", two), 2);
  EXPECT_EQ(two[7], 7.0f);

  const std::string path = std::filesystem::directory_iterator(states.folder())->path().string();
  std::string bytes = test::read_whole(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // of a row that `two` has no space for
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_FAILS(states.read("a prompt", all), ErrorCode::input, "not those that were written");
  EXPECT_FAILS(states.read("a prompt", two), ErrorCode::input, path);
}

TEST(TextStates, OfVersion01StillLoad) {
  const TextStates states(test::golden_path("cache_0.1/states"), "encoder", 8);
  std::vector<float> rows(24);
  EXPECT_EQ(states.read("a prompt", rows), 3);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i], 0.5f * static_cast<float>(i) - 2);
  }
}

}  // namespace
}  // namespace ballast::train::text_states_test
