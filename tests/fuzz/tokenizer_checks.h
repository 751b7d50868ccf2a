#pragma once

#include "data/tokenizer.h"
#include "fuzz.h"

namespace ballast::fuzz {

// Ids are below the vocabulary's size, whatever the text; they decode.
inline void check_tokenizer(const data::Tokenizer& tokenizer) {
  for (const std::string_view text : {"", "a", " Hello  world ", "\xe2\x96\x81x", "\xff\xfe bytes",
                                      "e\xcc\x81 <extra_id_0></s>"}) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text);
    for (const std::int32_t id : ids) require(id >= 0 && id < tokenizer.vocab_size());
    tokenizer.decode(ids);
    const std::vector<std::int32_t> cut = tokenizer.encode(text, 3);
    require(!cut.empty() && cut.size() <= 3 && cut.back() == tokenizer.eos_id());
  }
}

}  // namespace ballast::fuzz
