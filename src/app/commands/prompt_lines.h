#pragma once

#include <string>
#include <vector>

namespace ballast {

// The prompts of a text file, one on each line, empty lines left out; "-": of standard input. At
// least one and at most so many, each of 1 MiB at most: anything else is wrong input.
std::vector<std::string> read_prompts(const std::string& path, std::size_t max_prompts);

}  // namespace ballast
