// The main file of a diffusion-pipe run.

#include "fuzz.h"
#include "train/config/config_dialects.h"

namespace ballast::fuzz {

void one_input(Input input) {
  accepts(
      [&] {
        const TomlFile file = TomlFile::parse(input.rest(), "fuzz.toml");
        check_notes(train::read_diffusion_pipe(file, {}).notes);
      },
      {ErrorCode::input, ErrorCode::usage, ErrorCode::io});
}

}  // namespace ballast::fuzz
