#include "io/json_edit.h"

#include <algorithm>
#include <vector>

#include "core/to_size.h"
#include "io/json_writer.h"

namespace ballast {

std::string with_members(const JsonSource& source, std::span<const JsonMember> members) {
  const std::string_view text = source.text;
  JsonReader json(source);
  const auto here = [&] { return to_size(json.file_offset() - source.file_offset); };
  std::vector<bool> found(members.size());
  std::string out;
  std::size_t copied = 0;
  bool empty = true;
  json.open_object();
  std::size_t last = here();  // behind the last member
  for (std::string_view key; json.next_key(key);) {
    const auto member = std::ranges::find(members, key, &JsonMember::key);
    json.peek();  // where the value begins
    const std::size_t begin = here();
    json.skip();
    last = here();
    empty = false;
    if (member == members.end()) continue;
    found[to_size(member - members.begin())] = true;
    out += text.substr(copied, begin - copied);
    out += member->value;
    copied = last;
  }
  json.finish();
  out += text.substr(copied, last - copied);
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (found[i]) continue;
    out += empty ? "\n  " : ",\n  ";
    append_json_string(out, members[i].key);
    out += ": " + members[i].value;
    empty = false;
  }
  out += text.substr(last);
  return out;
}

}  // namespace ballast
