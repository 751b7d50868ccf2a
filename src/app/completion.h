#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ballast {

// What a shell may put in place of the last word of a command line.
struct Candidate {
  std::string word;  // a folder ends with a slash: more follows
  std::string help;  // one line, or none
  bool operator==(const Candidate&) const = default;
};

// words: those behind `ballast`, the last one unfinished ("" where a new word begins). bash splits
// words at "="; what is completed is then the value alone. What cannot be completed has no
// candidates, and nothing fails.
std::vector<Candidate> complete(std::vector<std::string> words);

// Answers `ballast __complete WORD...`, the call of every shell's script: a candidate a line, a tab
// before its explanation.
std::string completion_lines(const std::vector<std::string>& words);

// The script that a shell reads. nullptr: none for this shell.
const char* completion_script(std::string_view shell);

}  // namespace ballast
