#include <gtest/gtest.h>

#include <set>

#include "io/safetensors.h"
#include "tests/support/errors.h"
#include "tests/support/hostile_safetensors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::hostile_safetensors;
using test::HostileFile;
using test::TempDir;

SafetensorsHeader parse(std::string_view bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(bytes)), bytes.size(), "memory.st");
}

TEST(HostileSafetensors, EveryFileIsRefusedByItsOwnRule) {
  const TempDir folder;
  std::set<std::string> names;
  for (const HostileFile& hostile : hostile_safetensors()) {
    EXPECT_TRUE(names.insert(hostile.name).second) << hostile.name << " is there twice";
    const std::string path = folder.write("model.safetensors", hostile.bytes);
    const auto error = test::error_of([&] { SafetensorsFile::open(path); });
    ASSERT_TRUE(error.has_value()) << hostile.name << " was accepted";
    EXPECT_EQ(error->code(), ErrorCode::input) << hostile.name << ": " << error->what();
    EXPECT_THAT(error->what(), testing::StartsWith(path + ": " + hostile.rule + ": "))
        << hostile.name;
    const auto in_memory = test::error_of([&] { parse(hostile.bytes); });
    ASSERT_TRUE(in_memory.has_value()) << hostile.name;
    EXPECT_THAT(in_memory->what(), testing::StartsWith("memory.st: " + hostile.rule + ": "))
        << hostile.name;
  }
  EXPECT_GE(names.size(), 70u);
}

TEST(HostileSafetensors, EveryCutOfAGoodFileIsRefused) {
  const std::string good = test::safetensors(
      "{\"__metadata__\":{\"k\\n\":\"v\\u00e9\"}," + test::tensor("a", "I32", "[2,3]", "[0,24]") +
          "," + test::tensor("\\ud83d\\ude00", "F16", "[]", "[24,26]") + "}",
      std::string(26, '\1'));
  EXPECT_EQ(parse(good).entries().size(), 2u);
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_FAILS(parse(good.substr(0, n)), ErrorCode::input, "memory.st: st.");
  }
}

TEST(HostileSafetensors, NoChangedByteIsFatal) {
  const std::string good = test::safetensors(
      "{\"__metadata__\":{\"k\":\"v\"}," + test::tensor("a", "I32", "[2]", "[0,8]") + "}",
      std::string(8, '\1'));
  int accepted = 0, refused = 0;
  for (std::size_t at = 0; at < good.size() - 8; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = good;
      changed[at] = static_cast<char>(value);
      try {
        const SafetensorsHeader header = parse(changed);
        for (const SafetensorsEntry& e : header.entries()) {
          EXPECT_LE(e.offset + e.bytes, changed.size());
        }
        ++accepted;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::input) << e.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(accepted, 256);  // other names, other metadata
  EXPECT_GT(refused, 256);
}

TEST(HostileSafetensors, MessagesNameTensorPlaceAndValue) {
  const auto message = [](std::string_view bytes) {
    return std::string(test::error_of([&] { parse(bytes); }).value().what());
  };
  using testing::HasSubstr;
  EXPECT_THAT(message(test::one("I32", "[2,2]", "[0,4]", 4)),
              testing::AllOf(HasSubstr("tensor \"a\""), HasSubstr("[2, 2]"), HasSubstr("16 bytes"),
                             HasSubstr("[0, 4]")));
  EXPECT_THAT(message(test::one("I32", "[4]", "[16,0]", 16)), HasSubstr("reversed"));
  EXPECT_THAT(message(test::one("I32", "[1]", "[4,8]", 8)), HasSubstr("a hole"));
  EXPECT_THAT(message(test::safetensors("{" + test::tensor("a", "U8", "[8]", "[0,8]") + "," +
                                            test::tensor("b", "U8", "[2]", "[6,8]") + "}",
                                        "12345678")),
              testing::AllOf(HasSubstr("an overlap"), HasSubstr("tensor \"b\"")));
  EXPECT_THAT(message(test::safetensors("{\n\"w\":{\"dtype\":\"I32\",\n \"shape\":[-1]}}")),
              testing::AllOf(HasSubstr("line 3, column 11"), HasSubstr("\"w\" / \"shape\""),
                             HasSubstr("found -1")));
  // A name is data: it cannot draw on the terminal that shows the message.
  EXPECT_THAT(message(test::safetensors(
                  "{" + test::tensor("\\u001b[2J", "I32", "[1]", "[0,8]") + "}", "12345678")),
              testing::AllOf(HasSubstr("\\x1b[2J"), testing::Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace ballast
