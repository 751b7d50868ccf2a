// The tensors of a model file and what they make: a line of bytes that fill them, then tensors line
// by line (fuzz.h), with prefixes, scales and quantisation notes. One file may hold several parts.

#include "fuzz.h"
#include "io/tensor_names.h"
#include "io/weight_file_parts.h"
#include "models/wan/names.h"
#include "models/wan/recognise.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile stored("model.safetensors");
  const std::string_view fill = input.line();
  stored.write(safetensors_of_lines(input.rest(), fill));
  accepts([&] {
    const WeightFiles checkpoint = WeightFiles::open(stored.path(), DiskMode::buffered);
    for (const NamedTensor& t : read_tensor_names(checkpoint).tensors) {
      require((t.layout == ScaleLayout::none) == !t.scale.has_value());
    }
    if (parts_in(checkpoint).several()) {
      for (const ModelPart part : {ModelPart::vae, ModelPart::text_encoder}) {
        accepts([&] { open_part(stored.path(), part, DiskMode::buffered); });
      }
    }
    const wan::TensorMap names(checkpoint);
    for (const wan::WanTensor& t : names.tensors()) require(names.find(t.name) == &t);
    if (const auto found = wan::recognise(checkpoint, names)) check_notes(found->problems);
  });
}

}  // namespace ballast::fuzz
