// A configuration whose dialect is found by its keys. The first byte chooses: 'J' JSON, 'C' TOML
// that `ballast cache` reads, anything else TOML that `ballast train` reads.

#include <cstdlib>

#include "fuzz.h"
#include "train/config/read_config.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile toml("config/run.toml"), json("config/run.json");
  // Ids of models are looked up in a cache that is empty.
  static const bool no_hub = ::setenv("HF_HUB_CACHE", (memory_folder() + "/hub").c_str(), 1) == 0;
  require(no_hub);
  const std::uint8_t kind = input.byte();
  const std::string& path = (kind == 'J' ? json : toml).write(input.rest());
  const auto use = kind == 'C' ? train::ConfigUse::cache : train::ConfigUse::train;
  accepts([&] { check_notes(train::read_config(path, {}, use).notes); },
          {ErrorCode::input, ErrorCode::usage, ErrorCode::io});
}

}  // namespace ballast::fuzz
