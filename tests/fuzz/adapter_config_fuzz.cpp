// adapter_config.json of an adapter for T5, as PEFT has it. Written again, an accepted one is read
// back the same.

#include "fuzz.h"
#include "io/utf8.h"
#include "models/t5/adapter_config.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile file("adapter/adapter_config.json");
  static const std::string folder = memory_folder() + "/adapter";
  file.write(input.rest());
  require(t5::is_adapter_folder(folder));
  accepts([&] {
    const t5::AdapterConfig config = t5::read_adapter_config(folder);
    require(config.rank >= 1 && config.rank <= t5::kMaxAdapterRank);
    require(!first_invalid_utf8(config.base_model));
    const std::string text = t5::adapter_config_json(config);
    file.write(text);
    const t5::AdapterConfig again = t5::read_adapter_config(folder);
    require(again.rank == config.rank && again.alpha == config.alpha);
    require(again.root_scale == config.root_scale && again.dropout == config.dropout);
    require(again.targets == config.targets && again.base_model == config.base_model);
  });
}

}  // namespace ballast::fuzz
