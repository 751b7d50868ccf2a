#pragma once

#include <string>

#include "data/tokenizer_model.h"

namespace ballast::data {

// A unigram spiece.model (a protobuf ModelProto). Sentinels <extra_id_n> are no pieces of it: as
// many as a tokenizer_config.json beside it says follow the last piece. Fails with ErrorCode::input
// and a rule (spm.format, spm.limit, spm.pieces, tok.*), ErrorCode::io where the system refuses.
TokenizerModel read_sentencepiece_model(const std::string& path);

}  // namespace ballast::data
