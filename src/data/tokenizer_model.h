#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ballast::data {

// Stands for a space in pieces.
inline constexpr std::string_view kSpaceSymbol = "\u2581";

enum class PieceType : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

// A string that stands for one id and is cut out of the text before anything else happens to it.
struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool strip_left = false;   // swallows white space in front of it
  bool strip_right = false;  // and behind it
};

// A step of a tokenizer.json's normalizer, in the order in which they are applied.
struct TextStep {
  enum class Kind {
    character_map,   // the precompiled map, cluster by cluster
    strip,           // white space at the ends
    replace,         // `from` by `to`
    replace_spaces,  // two and more U+0020 by one `to`
    canonical_form,  // Unicode NFC
  };
  Kind kind = Kind::strip;
  std::string from, to;
  bool left = false, right = false;  // strip: which ends
};

enum class PrefixSpace { never, first, always };

// What a tokenizer file says, checked: ids are in range, pieces are UTF-8 (byte pieces "<0xHH>").
struct TokenizerModel {
  enum class Source { sentencepiece, tokenizer_json };

  Source source = Source::sentencepiece;
  std::vector<std::string> pieces;  // the id is the place
  std::vector<double> scores;
  std::vector<PieceType> types;
  std::vector<AddedToken> added;
  std::string character_map;  // the precompiled one; empty: none
  bool byte_fallback = false;
  std::int32_t unk_id = 0;
  std::int32_t eos_id = 1;
  std::int32_t pad_id = 0;

  // spiece.model
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  bool prefix_every_span = true;  // also behind an added token

  // tokenizer.json
  std::vector<TextStep> steps;
  bool split_whitespace = false;
  bool metaspace = false;
  bool split_metaspace = true;
  PrefixSpace prefix = PrefixSpace::always;
};

}  // namespace ballast::data
