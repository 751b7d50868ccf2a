// JSON: skipped as a whole and read value by value must agree; a member that is set in an object
// leaves JSON that has it.

#include <string>

#include "fuzz.h"
#include "io/json_edit.h"
#include "io/json_reader.h"
#include "io/utf8.h"

namespace ballast::fuzz {
namespace {

JsonSource source(std::string_view text) { return {.text = text, .path = "fuzz", .rule = "fuzz"}; }

void walk(JsonReader& json) {
  switch (json.peek()) {
    case JsonReader::Kind::object:
      json.open_object();
      for (std::string_view key; json.next_key(key);) {
        require(!first_invalid_utf8(key));
        walk(json);
      }
      break;
    case JsonReader::Kind::array:
      json.open_array();
      while (json.next_element()) walk(json);
      break;
    case JsonReader::Kind::string:
      require(!first_invalid_utf8(json.string()));
      break;
    case JsonReader::Kind::number:
      json.number_text();
      break;
    case JsonReader::Kind::boolean:
      json.boolean();
      break;
    case JsonReader::Kind::null:
      json.null();
      break;
  }
}

// Of the first value in an array: as each kind of number.
void read_numbers(std::string_view text) {
  const auto first = [&](auto read) {
    accepts([&] {
      JsonReader json(source(text));
      json.open_array();
      if (json.next_element()) read(json);
    });
  };
  first([](JsonReader& json) { json.u64(); });
  first([](JsonReader& json) { json.i64(); });
  first([](JsonReader& json) { json.number(); });
}

void edit(std::string_view text) {
  const JsonMember member{.key = "dtype", .value = "\"float32\""};
  accepts([&] {
    const std::string edited = with_members(source(text), std::span(&member, 1));
    JsonReader json(source(edited));
    bool found = false;
    json.open_object();
    for (std::string_view key; json.next_key(key);) {
      const bool here = key == member.key;
      if (here) found = json.string() == "float32";
      if (!here) json.skip();
    }
    json.finish();
    require(found);
  });
}

}  // namespace

void one_input(Input input) {
  const std::string_view text = input.rest();
  const auto whole = [&](auto read) {
    return accepts([&] {
      JsonReader json(source(text));
      read(json);
      json.finish();
    });
  };
  const bool skipped = whole([](JsonReader& json) { json.skip(); });
  const bool walked = whole(walk);
  require(skipped == walked);
  if (!skipped) return;
  if (text.find('[') != text.npos) read_numbers(text);
  edit(text);
}

}  // namespace ballast::fuzz
