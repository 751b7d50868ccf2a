#include "train/run/prompt_part.h"

#include "core/error.h"
#include "core/log.h"
#include "core/to_size.h"
#include "data/clean_text.h"
#include "data/tokenizer.h"
#include "infer/finite_output.h"

namespace ballast::train {

PromptPart::PromptPart(const std::string& encoder, const std::string& tokenizer,
                       const std::vector<std::string>& texts, const wan::Config& model,
                       infer::TextEncoderOptions options)
    : encoder_(encoder, std::move(options)) {
  if (encoder_.config().d_model != model.text_dim) {
    fail(ErrorCode::input, "{} gives rows of {} numbers, {} reads rows of {}", encoder,
         encoder_.config().d_model, model.name, model.text_dim);
  }
  const data::Tokenizer tokens = data::Tokenizer::open(tokenizer);
  if (tokens.vocab_size() > encoder_.config().vocabulary) {
    fail(ErrorCode::input, "{} has {} tokens, {} knows {}", tokenizer, tokens.vocab_size(), encoder,
         encoder_.config().vocabulary);
  }
  for (const std::string& text : texts) {
    const std::string clean = data::clean_text(text);
    const auto most = to_size(model.text_len);
    if (tokens.encode(clean).size() >= most) {
      log::warn("a prompt has more than {} tokens, the rest is not seen: {}", most - 1,
                printable(clean.substr(0, 60)));
    }
    ids_.push_back(tokens.encode(clean, most));
  }
}

infer::CommandPart PromptPart::part() const {
  std::vector<std::int64_t> lengths;
  for (const auto& ids : ids_) lengths.push_back(std::ssize(ids));
  return encoder_.part(lengths);
}

std::vector<std::vector<float>> PromptPart::run() const {
  std::vector<std::vector<float>> rows;
  for (infer::TextStates& s : encoder_.encode(ids_)) {
    infer::require_finite(s.values, fmt::format("the text states of prompt {}", rows.size() + 1));
    rows.push_back(std::move(s.values));
  }
  return rows;
}

std::int64_t PromptPart::tokens() const {
  std::int64_t sum = 0;
  for (const auto& ids : ids_) sum += std::ssize(ids);
  return sum;
}

}  // namespace ballast::train
