#pragma once

#include <string>
#include <vector>

namespace ballast::demo {

// One picture of clips that `ballast sample` has made: a line for each prompt, with frames of its
// clip before on the left and after on the right; the prompt stands above, as the file says it.
// Clips are given in the same order, all of one size.
void write_sheet(const std::string& output, const std::vector<std::string>& before,
                 const std::vector<std::string>& after);

}  // namespace ballast::demo
