#include "plan/buffer_list.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

std::vector<Buffer> numbered(std::uint32_t count) {
  std::vector<Buffer> all;
  for (std::uint32_t i = 0; i < count; ++i) all.push_back({i});
  return all;
}

TEST(BufferList, HoldsFewAndManyInOrder) {
  for (const std::uint32_t count : {0u, 1u, 6u, 7u, 12u, 13u, 100u}) {
    const std::vector<Buffer> all = numbered(count);
    BufferList list;
    for (const Buffer b : all) list.push_back(b);
    ASSERT_EQ(list.size(), count);
    EXPECT_EQ(list.empty(), count == 0);
    EXPECT_TRUE(std::ranges::equal(list, all));
    EXPECT_EQ(list, BufferList(all));
    EXPECT_EQ(list.heap_bytes() > 0, count > 6);
  }
}

TEST(BufferList, ACopyIsItsOwnAndAMovedOneIsEmpty) {
  for (const std::uint32_t count : {3u, 50u}) {
    BufferList list = numbered(count);
    BufferList copy = list;
    copy.push_back({7});
    EXPECT_EQ(list, BufferList(numbered(count)));
    EXPECT_EQ(copy.size(), count + 1);
    const BufferList moved = std::move(list);
    EXPECT_EQ(moved, BufferList(numbered(count)));
    EXPECT_TRUE(list.empty());  // NOLINT: what is left of it may be filled again
    list.push_back({1});
    EXPECT_EQ(list, BufferList(std::vector<Buffer>{{1}}));
  }
}

TEST(BufferList, LeavesOutWhatIsNotThere) {
  BufferList list = {Buffer(), {4}, Buffer(), {5}, Buffer()};
  list.append({{6}, Buffer()});
  list.drop_absent();
  EXPECT_EQ(list, BufferList(std::vector<Buffer>{{4}, {5}, {6}}));
}

}  // namespace
}  // namespace ballast
