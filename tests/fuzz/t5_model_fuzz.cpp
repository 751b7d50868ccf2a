// A T5 or UMT5 model: a line of its config.json (empty: none), a line of bytes that fill its
// tensors, then tensors line by line (fuzz.h).

#include "fuzz.h"
#include "models/t5/names.h"
#include "models/t5/recognise.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile stored("t5.safetensors");
  const std::string_view config = input.line(), fill = input.line();
  stored.write(safetensors_of_lines(input.rest(), fill));
  accepts([&] {
    const WeightFiles checkpoint = WeightFiles::open(stored.path(), DiskMode::buffered);
    const t5::TensorMap names(checkpoint);
    require(names.blocks("encoder") >= 0 && names.blocks("decoder") >= 0);
    if (config.empty()) {
      if (const auto found = t5::recognise(checkpoint, names)) require(found->heads > 0);
      return;
    }
    const t5::Config model = t5::model_config(
        checkpoint, names, {.text = config, .path = "config.json", .rule = "config.json"});
    require(model.heads > 0 && model.d_model > 0 && model.layers > 0);
  });
}

}  // namespace ballast::fuzz
