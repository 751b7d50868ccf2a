#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ballast::demo {

// Clips that `ballast sample` has made, under a heading.
struct SheetColumn {
  std::string heading;  // small letters
  std::vector<std::string> clips;
};
struct SheetSize {
  std::int64_t frames = 5, picture = 96;  // of each clip so many, so many pixels wide
};

// One image of columns side by side: a line for each prompt, with frames of its clip in every
// column; the prompt stands above, as the file says it. Clips are given in the same order, all of
// one size.
void write_sheet(const std::string& output, const std::vector<SheetColumn>& columns,
                 const SheetSize& size = {});

}  // namespace ballast::demo
