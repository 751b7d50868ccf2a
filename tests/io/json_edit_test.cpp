#include "io/json_edit.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ballast {
namespace {

std::string edited(const std::string& text, std::vector<JsonMember> members) {
  return with_members({.text = text, .path = "config.json", .rule = "test"}, members);
}

TEST(JsonEdit, ChangesValuesWhereTheyStandAndAddsOthersLast) {
  EXPECT_EQ(edited("{\n  \"a\" : [1, {\"b\": 2}],\n  \"b\": null\n}\n", {{"b", "true"}}),
            "{\n  \"a\" : [1, {\"b\": 2}],\n  \"b\": true\n}\n");
  EXPECT_EQ(edited("{\n  \"a\": 1.50\n}\n", {{"b", "\"x\""}, {"a", "[]"}}),
            "{\n  \"a\": [],\n  \"b\": \"x\"\n}\n");
  EXPECT_EQ(edited("{}", {{"b", "1"}, {"c", "2"}}), "{\n  \"b\": 1,\n  \"c\": 2}");
  EXPECT_EQ(edited("{\"a\": 1, \"a\": 2}", {{"a", "3"}}), "{\"a\": 3, \"a\": 3}");
  EXPECT_EQ(edited(" {\"\\u0061\":1 } ", {{"a", "7"}}), " {\"\\u0061\":7 } ");
  EXPECT_EQ(edited("{\"a\": 1}", {}), "{\"a\": 1}");
}

TEST(JsonEdit, RefusesWhatIsNoObject) {
  for (const char* text : {"", "[]", "{\"a\": 1", "{\"a\": 1} x", "{\"a\" 1}"}) {
    EXPECT_FAILS(edited(text, {{"a", "1"}}), ErrorCode::input, "config.json");
  }
}

}  // namespace
}  // namespace ballast
