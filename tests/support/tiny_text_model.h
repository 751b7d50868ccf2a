#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "tests/support/tiny_t5.h"

namespace ballast::support {

// The words of a tokenizer with ids from 3 on; 0 is <pad>, 1 </s>, 2 <unk>.
inline const std::vector<std::string>& tiny_words() {
  static const std::vector<std::string> words = {
      "zero", "one",  "two",   "three", "four", "five", "six",   "seven", "eight", "nine",
      "red",  "blue", "green", "cat",   "dog",  "say",  "count", "of",    "and",   "to"};
  return words;
}

inline std::string tiny_tokenizer_json() {
  std::string vocab = R"(["<pad>",0],["</s>",0],["<unk>",0])";
  for (const std::string& w : tiny_words()) vocab += fmt::format(R"(,["▁{}",-3])", w);
  vocab += R"(,["▁",-5])";
  return fmt::format(
      R"({{"added_tokens":[{{"id":0,"content":"<pad>","special":true}},)"
      R"({{"id":1,"content":"</s>","special":true}}],"normalizer":null,)"
      R"("pre_tokenizer":{{"type":"Sequence","pretokenizers":[{{"type":"WhitespaceSplit"}},)"
      R"({{"type":"Metaspace","replacement":"▁","prepend_scheme":"always"}}]}},)"
      R"("model":{{"type":"Unigram","unk_id":2,"vocab":[{}]}}}})",
      vocab);
}

inline std::string config_json(const t5::Config& c) {
  return fmt::format(
      R"({{"architectures":["T5ForConditionalGeneration"],"model_type":"t5","d_model":{},"d_kv":{},)"
      R"("d_ff":{},"num_heads":{},"num_layers":{},"num_decoder_layers":{},"vocab_size":{},)"
      R"("feed_forward_proj":"{}","tie_word_embeddings":{},"dropout_rate":0.1,)"
      R"("decoder_start_token_id":0,"pad_token_id":0,"eos_token_id":1,"n_positions":512}})",
      c.d_model, c.d_kv, c.d_ff, c.heads, c.layers, c.decoder_layers, c.vocabulary,
      c.gated ? "gated-gelu" : "relu", c.tied ? "true" : "false");
}

// A folder as Hugging Face has it: random weights, config.json and tokenizer.json.
inline std::string write_text_model(const test::TempDir& dir, const std::string& name,
                                    const t5::Config& c = tiny_t5(), DType stored = DType::f32) {
  const std::string file = write_t5(dir, c, stored);
  dir.write(name + "/config.json", config_json(c));
  dir.write(name + "/tokenizer.json", tiny_tokenizer_json());
  std::filesystem::rename(file, dir.path(name + "/model.safetensors"));
  return dir.path(name);
}

}  // namespace ballast::support
