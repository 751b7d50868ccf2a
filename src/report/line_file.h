#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ballast {

struct FileLine {
  std::string_view text;  // without its line break; empty when too_long
  std::uint64_t end = 0;  // where the next line begins
  bool complete = true;   // false: the file ends without a line break
  bool too_long = false;
};

// Goes through a text file line by line until visit returns false. Lines beyond `longest` are not
// kept. Fails with ErrorCode::io.
void for_each_line(const std::string& path, const std::function<bool(const FileLine&)>& visit,
                   std::size_t longest = 16 << 20);

}  // namespace ballast
