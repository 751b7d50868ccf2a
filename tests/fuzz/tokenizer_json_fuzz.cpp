// A tokenizer.json, then texts with the tokenizer that it makes.

#include "data/tokenizer_json.h"
#include "fuzz.h"
#include "tokenizer_checks.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile file("tokenizer.json");
  file.write(input.rest());
  accepts([&] { check_tokenizer(data::Tokenizer::open(file.path())); });
}

}  // namespace ballast::fuzz
