#include "io/tar_archive.h"

#include <gmock/gmock.h>

#include <random>
#include <set>

#include "io/file_source.h"
#include "tests/support/errors.h"
#include "tests/support/tar_file.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::gnu_long_name;
using test::pax_header;
using test::pax_record;
using test::tar_end;
using test::tar_member;
using test::TempDir;
using ::testing::ElementsAre;

class TarArchive : public ::testing::Test {
 protected:
  TarListing list(const std::string& bytes) {
    return list_tar(DiskFile::open(dir_.write("a.tar", bytes), DiskMode::buffered));
  }
  std::string read(const TarMember& m) {
    FileSource source("a.tar/" + m.name);
    source.archive = dir_.path("a.tar");
    source.offset = m.offset;
    source.bytes = m.bytes;
    const SourceFile file = source.open();
    EXPECT_EQ(file.path(), "a.tar/" + m.name);
    std::string text(file.size(), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return text;
  }
  TempDir dir_;
};

std::string all_kinds() {
  const std::string deep = std::string(120, 'd') + "/" + std::string(90, 'n') + ".mp4";
  return tar_member({.name = "clips/", .type = '5'}) +
         tar_member({.name = "clips/a.mp4", .data = "first"}) +
         tar_member({.name = "b.mp4", .data = std::string(512, 'b'), .prefix = "front"}) +
         gnu_long_name(deep) + tar_member({.name = deep.substr(0, 100), .data = "long"}) +
         pax_header(pax_record("mtime", "1.5") + pax_record("path", "名前.mp4") +
                    pax_record("size", "7")) +
         tar_member({.name = "short", .data = "seventh", .size = "00000000000"}) +
         tar_member({.name = "256.txt",
                     .data = "in base 256",
                     .size = std::string("\x80\0\0\0\0\0\0\0\0\0\0\x0b", 12)}) +
         tar_member({.name = "old.txt", .data = "v7", .type = '\0', .magic = ""}) + tar_end();
}

TEST_F(TarArchive, GivesNamesAndPlacesOfAllFormats) {
  const TarListing found = list(all_kinds());
  std::vector<std::string> names, texts;
  for (const TarMember& m : found.members) {
    names.push_back(m.name);
    texts.push_back(read(m));
  }
  EXPECT_THAT(names, ElementsAre("clips/a.mp4", "front/b.mp4",
                                 std::string(120, 'd') + "/" + std::string(90, 'n') + ".mp4",
                                 "名前.mp4", "256.txt", "old.txt"));
  EXPECT_THAT(texts,
              ElementsAre("first", std::string(512, 'b'), "long", "seventh", "in base 256", "v7"));
  EXPECT_TRUE(found.left_out.empty());
}

TEST_F(TarArchive, EndsWithAndWithoutItsLastBlocks) {
  const std::string bytes = tar_member({.name = "a", .data = "x"});
  EXPECT_EQ(list(bytes).members.size(), 1u);
  EXPECT_EQ(list(bytes.substr(0, 513)).members.size(), 1u) << "padding may be missing";
  EXPECT_EQ(list(bytes + tar_end() + tar_member({.name = "b"})).members.size(), 1u);
  EXPECT_EQ(list("").members.size(), 0u);
}

TEST_F(TarArchive, LeavesOutWhatHasNoSafeNameOrNoData) {
  const TarListing found = list(
      tar_member({.name = "../up.mp4", .data = "x"}) +
      tar_member({.name = "a/../../up.mp4", .data = "x"}) +
      tar_member({.name = "/etc/passwd", .data = "x"}) +
      tar_member({.name = "\xff.mp4", .data = "x"}) + tar_member({.name = "", .data = "x"}) +
      pax_header(pax_record("path", std::string("a\0b", 3))) +
      tar_member({.name = "zero", .data = "x"}) +
      tar_member({.name = "link.mp4", .type = '2', .size = "77777777777"}) +
      tar_member({.name = "pipe", .type = '6'}) +
      tar_member({.name = "holes", .data = "x", .type = 'S'}) +
      pax_header(pax_record("GNU.sparse.major", "1")) +
      tar_member({.name = "more holes", .data = "x"}) +
      tar_member({.name = "twice", .data = "old"}) + tar_member({.name = "a..b", .data = "x"}) +
      tar_member({.name = "./twice", .data = "new"}) + tar_end());
  std::vector<std::string> names;
  for (const TarMember& m : found.members) names.push_back(m.name);
  EXPECT_THAT(names, ElementsAre("a..b", "twice"));
  EXPECT_EQ(read(found.members.back()), "new");
  std::vector<std::string> reasons;
  for (const auto& [name, reason] : found.left_out) reasons.push_back(reason);
  EXPECT_THAT(reasons,
              ElementsAre("its name leads upwards (..)", "its name leads upwards (..)",
                          "its name is absolute", "its name is not UTF-8", "it has no name",
                          "its name has a zero byte", "a link", "no regular file", "a sparse file",
                          "a sparse file", "a later member has the same name"));
}

TEST_F(TarArchive, RefusesWhatHidesWhereTheNextMemberIs) {
  const std::string good = tar_member({.name = "a", .data = "x"});
  std::string torn = tar_member({.name = "b", .data = "y"});
  torn[3] ^= 1;
  const struct {
    std::string bytes, said;
  } cases[] = {
      {good + torn, "damaged at byte 1024: the checksum of a header is wrong"},
      {good + good.substr(0, 100), "damaged at byte 1024: it ends in the middle of a header"},
      {tar_member({.name = "b", .size = "00000002000"}), "a member of 1024 bytes, and 0 follow"},
      {tar_member({.name = "b", .size = "77777777777"}), "and 0 follow"},
      {tar_member({.name = "b", .size = std::string(12, '\xff')}), "negative or too large"},
      {tar_member({.name = "b", .size = "\x80" + std::string(11, '\xff')}), "too large"},
      {tar_member({.name = "b", .size = "-0000000001"}), "is no number"},
      {tar_member({.name = "b", .size = "8"}), "is no number"},
      {pax_header(pax_record("size", "-1")) + good, "no number or negative"},
      {pax_header(pax_record("size", "99999999999999999999")) + good, "no number or negative"},
      {pax_header(pax_record("size", "18446744073709551615")) + good, "follow"},
      {pax_header("99 path=x\n") + good, "wrong length"},
      {pax_header("5 ab\n") + good, "has no value"},
      {pax_header("path") + good, "wrong length"},
      {tar_member({.name = "L", .data = std::string((1 << 20) + 1, 'n'), .type = 'L'}) + good,
       "at most 1048576"},
      {"this is no archive at all", "in the middle of a header"},
      {std::string(600, 'x'), "checksum"},
  };
  for (const auto& c : cases) EXPECT_FAILS(list(c.bytes), ErrorCode::input, c.said);
}

// Whatever a header says: an Error of input, or members that lie inside the file under safe names.
TEST_F(TarArchive, WithDamagedHeadersGivesSafeMembersOrAnError) {
  const std::string whole = all_kinds();
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  int listed = 0, refused = 0;
  for (int i = 0; i < 1200; ++i) {
    std::string bytes = whole;
    for (std::size_t k = 1 + below(4); k > 0; --k) {
      const std::size_t block = below(bytes.size() / 512) * 512;
      // Fields that decide: the size, the type, the names; else any byte.
      const std::size_t fields[] = {124 + below(12), 156, below(100), 345 + below(155), below(512)};
      bytes[block + fields[below(5)]] =
          static_cast<char>(below(3) == 0 ? below(256) : '0' + below(10));
      if (below(4) == 0) continue;  // a wrong checksum now and then
      std::string header = bytes.substr(block, 512);
      test::set_tar_checksum(header);
      bytes.replace(block, 512, header);
    }
    if (below(5) == 0) bytes.resize(below(bytes.size()));
    const auto error = test::error_of([&] {
      const TarListing found = list(bytes);
      std::set<std::string> names;
      for (const TarMember& m : found.members) {
        ASSERT_LE(m.offset, bytes.size());
        ASSERT_LE(m.bytes, bytes.size() - m.offset);
        ASSERT_TRUE(names.insert(m.name).second) << m.name;
        ASSERT_FALSE(m.name.empty() || m.name.front() == '/' || m.name.starts_with("../") ||
                     m.name.find("/../") != std::string::npos)
            << m.name;
      }
      ++listed;
    });
    if (!error) continue;
    ++refused;
    ASSERT_EQ(error->code(), ErrorCode::input) << error->what();
  }
  EXPECT_GT(listed, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace ballast
