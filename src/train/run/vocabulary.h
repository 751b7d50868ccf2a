#pragma once

#include <string>

#include "data/tokenizer.h"
#include "plan/process_lines.h"

namespace ballast::train {

// A tokenizer with what it takes of the heap: that of UMT5 has 256,000 pieces.
struct Vocabulary {
  static Vocabulary open(const std::string& path);  // as Tokenizer::open()

  // For a plan beside which it stays.
  ProcessLine line(std::string reason) const;

  data::Tokenizer tokenizer;
  Bytes bytes;  // what stays, and what it takes to read its file
};

}  // namespace ballast::train
