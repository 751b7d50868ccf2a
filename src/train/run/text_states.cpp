#include "train/run/text_states.h"

#include <algorithm>

#include "core/error.h"
#include "core/path_kind.h"
#include "core/progress.h"
#include "core/random.h"
#include "core/to_size.h"
#include "data/cache_file.h"
#include "data/clean_text.h"
#include "data/latent_cache.h"
#include "data/tokenizer.h"
#include "io/safetensors_writer.h"

namespace ballast::train {
namespace {

constexpr const char* kTensor = "embeddings";
constexpr std::size_t kPromptsAtOnce = 32;  // prompts encoded, then written

}  // namespace

TextStates::TextStates(std::string folder, std::string encoder, std::int64_t width)
    : folder_(std::move(folder)), encoder_(std::move(encoder)), width_(width) {}

std::string TextStates::path_of(const std::string& prompt) const {
  return fmt::format("{}/{:016x}.safetensors", folder_, hash_of(encoder_ + "\n" + prompt));
}

bool TextStates::has(const std::string& prompt) const { return is_file(path_of(prompt)); }

void TextStates::put(const std::string& prompt, const infer::TextStates& states) const {
  check(states.width == width_, "states of {} numbers where {} are kept", states.width, width_);
  SafetensorsWriter writer({.metadata = {{"prompt", prompt}}});
  writer.add(kTensor, DType::f32, {states.tokens, states.width},
             std::as_bytes(std::span(states.values)));
  data::write_cache_file(path_of(prompt), std::move(writer), Durability::process);
}

std::int64_t TextStates::read(const std::string& prompt, std::span<float> to) const {
  const data::CacheFile file = data::CacheFile::open(path_of(prompt));
  const SafetensorsEntry& entry = file.get(kTensor);
  if (file.metadata("prompt") != prompt || entry.dtype != FileDType::f32 ||
      entry.shape.rank() != 2 || entry.shape[1] != width_) {
    fail(ErrorCode::input,
         fmt::format("{} does not hold the states of \"{}\": expected {} [tokens, {}] f32",
                     file.path(), printable(prompt, 60), kTensor, width_),
         {{"remove it", "the prompt is encoded again"}});
  }
  const auto values = std::min<std::size_t>(entry.bytes / sizeof(float), to.size());
  file.read_start(entry, to.first(values));
  std::ranges::fill(to.subspan(values), 0.0f);
  return std::min(entry.shape[0], std::ssize(to) / width_);
}

void encode_missing(const TextStates& states, std::int64_t count,
                    const std::function<std::string(std::int64_t)>& prompt,
                    const infer::ModelFiles& files, std::int64_t most,
                    const infer::TextEncoderOptions& options) {
  std::vector<std::string> waiting;
  std::optional<infer::TextEncoder> encoder;
  std::optional<data::Tokenizer> tokenizer;
  std::int64_t missing = 0;
  for (std::int64_t i = 0; i < count; ++i) missing += !states.has(prompt(i));
  if (missing == 0) return;
  const auto require = [&](const std::string& path, const char* what, const char* flag) {
    if (!path.empty()) return;
    fail(ErrorCode::input,
         fmt::format("{} prompts have no text states yet, and there is no {} to make them", missing,
                     what),
         {{flag, fmt::format("where the {} is", what)}});
  };
  infer::require_one(files.text_encoder_choices, "text encoder", "--text_encoder FILE");
  require(files.text_encoder, "text encoder", "--text_encoder FILE");
  require(files.tokenizer, "tokenizer", "--tokenizer FILE");
  encoder.emplace(files.text_encoder, options);
  tokenizer.emplace(data::Tokenizer::open(files.tokenizer));
  Progress progress("encoding prompts", missing);
  const auto encode = [&] {
    if (waiting.empty()) return;
    std::vector<std::vector<std::int32_t>> ids;
    for (const std::string& text : waiting) {
      ids.push_back(tokenizer->encode(data::clean_text(text), to_size(most)));
    }
    const std::vector<infer::TextStates> made = encoder->encode(ids);
    for (std::size_t i = 0; i < waiting.size(); ++i) states.put(waiting[i], made[i]);
    progress.add(std::ssize(waiting));
    waiting.clear();
  };
  for (std::int64_t i = 0; i < count; ++i) {
    std::string text = prompt(i);
    if (states.has(text) || std::ranges::find(waiting, text) != waiting.end()) continue;
    waiting.push_back(std::move(text));
    if (waiting.size() == kPromptsAtOnce) encode();
  }
  encode();
}

}  // namespace ballast::train
