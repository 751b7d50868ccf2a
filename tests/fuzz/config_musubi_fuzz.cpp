// A file of musubi-tuner's flags.

#include "fuzz.h"
#include "train/config/config_dialects.h"

namespace ballast::fuzz {

void one_input(Input input) {
  const auto use = input.byte() == 'C' ? train::ConfigUse::cache : train::ConfigUse::train;
  accepts(
      [&] {
        const TomlFile file = TomlFile::parse(input.rest(), "fuzz.toml");
        check_notes(train::read_musubi("fuzz.toml", train::flattened(file), use).notes);
      },
      {ErrorCode::input, ErrorCode::usage, ErrorCode::io});
}

}  // namespace ballast::fuzz
