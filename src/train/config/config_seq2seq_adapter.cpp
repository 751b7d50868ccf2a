#include <algorithm>

#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"

namespace ballast::train {
namespace {

// "q,v", "q v", ["q", "v"]
std::vector<std::string> lora_targets(const Setting& s) {
  std::vector<std::string> all;
  for (const std::string& text : s.values) {
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t end = std::min(text.find_first_of(", ", at), text.size());
      const std::string word = text.substr(at, end - at);
      at = end + 1;
      if (word.empty()) continue;
      if (word == "all" || word == "all-linear") return {};
      constexpr std::string_view kKnown[] = {"q", "k", "v", "o", "wi", "wi_0", "wi_1", "wo"};
      if (std::ranges::find(kKnown, word) == std::end(kKnown)) {
        s.fail_value("some of q, k, v, o, wi, wi_0, wi_1, wo, or all");
      }
      all.push_back(word);
    }
  }
  if (all.empty()) s.fail_value("some of q, k, v, o, wi, wo, or all");
  return all;
}

}  // namespace

void declare_seq2seq_adapter(FlagTable& t, std::optional<LoraOptions>& lora,
                             std::optional<double>& alpha) {
  using Takes = FlagTable::Takes;
  const auto options = [&lora]() -> LoraOptions& { return lora ? *lora : lora.emplace(); };
  t.add("adapter_type", Takes::one, "lora: train adapters instead of all weights",
        [options](const Setting& s) {
          if (!equal_ignoring_case(s.text(), "lora")) s.fail_value("lora");
          options();
        });
  for (const auto name : {"lora_rank", "lora_r"}) {
    t.add(name, Takes::one, "train LoRA adapters of this rank (16)", [options](const Setting& s) {
      options().rank = s.integer();
      if (options().rank < 1 || options().rank > 1024) s.fail_value("a rank from 1 to 1024");
    });
  }
  t.add("lora_alpha", Takes::one, "their scale is alpha / rank (alpha = rank)",
        [options, &alpha](const Setting& s) {
          options();
          alpha = s.number();
        });
  t.add("lora_dropout", Takes::one, "of what they read (0)", [options](const Setting& s) {
    options().dropout = s.number();
    if (options().dropout < 0 || options().dropout >= 1) s.fail_value("a number from 0 to 1");
  });
  for (const auto name : {"lora_targets", "lora_target_modules"}) {
    t.add(name, Takes::many, "q, k, v, o, wi, wo: matrices with an adapter (all of them)",
          [options](const Setting& s) { options().targets = lora_targets(s); });
  }
}

}  // namespace ballast::train
