// The folder of an adapter for T5: a line of adapter_config.json, then tensors line by line
// (fuzz.h) for a model of two layers.

#include "fuzz.h"
#include "models/t5/lora_file.h"

namespace ballast::fuzz {
namespace {

t5::Config small_model() {
  t5::Config c;
  c.name = "small";
  c.vocabulary = 32;
  c.d_model = 8;
  c.d_kv = 4;
  c.d_ff = 16;
  c.heads = 2;
  c.layers = c.decoder_layers = 1;
  return c;
}

}  // namespace

void one_input(Input input) {
  static MemoryFile config("t5_lora/adapter_config.json");
  static MemoryFile weights(std::string("t5_lora/") + t5::kAdapterFile);
  static const t5::Config model = small_model();
  config.write(input.line());
  weights.write(safetensors_of_lines(input.rest(), "\1"));
  accepts([&] {
    const t5::LoraFile file = t5::LoraFile::open(memory_folder() + "/t5_lora", model);
    const LoraOptions options = file.options();
    require(options.rank >= 1 && options.rank <= t5::kMaxAdapterRank && !options.modules.empty());
    require(file.reading_bytes().count > 0);
  });
}

}  // namespace ballast::fuzz
