// A file of flags for training a text model. The first byte chooses:
//   'N', 'T'  TOML, of either dialect
//   'J'       JSON, as transformers takes it

#include "fuzz.h"
#include "train/config/config_dialects.h"

namespace ballast::fuzz {

void one_input(Input input) {
  const std::uint8_t kind = input.byte();
  const auto dialect =
      kind == 'N' ? train::Seq2SeqDialect::fine_tune : train::Seq2SeqDialect::transformers;
  accepts(
      [&] {
        const TomlFile file = kind == 'J' ? TomlFile::parse_json(input.rest(), "fuzz.json")
                                          : TomlFile::parse(input.rest(), "fuzz.toml");
        check_notes(train::read_seq2seq(dialect, "fuzz.toml", train::flattened(file)).notes);
      },
      {ErrorCode::input, ErrorCode::usage, ErrorCode::io});
}

}  // namespace ballast::fuzz
