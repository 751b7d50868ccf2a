#pragma once

#include <string>

#include "data/tokenizer_model.h"

namespace ballast::data {

// A unigram tokenizer.json with the normalizers and pre-tokenizers that T5, FLAN-T5 and UMT5 files
// have in any of their versions; old ones do not name the model's type. Fails with ErrorCode::input
// and a rule: tok.json, tok.limit, and tok.unsupported for what is well formed but not one of
// these.
TokenizerModel read_tokenizer_json(const std::string& path);

}  // namespace ballast::data
