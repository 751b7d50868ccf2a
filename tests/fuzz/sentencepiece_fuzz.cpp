// A spiece.model, then texts with the tokenizer that it makes.

#include "data/sentencepiece_model.h"
#include "fuzz.h"
#include "tokenizer_checks.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile file("spiece.model");
  file.write(input.rest());
  accepts([&] {
    check_tokenizer(data::Tokenizer(data::read_sentencepiece_model(file.path()), file.path()));
  });
}

}  // namespace ballast::fuzz
