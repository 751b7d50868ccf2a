#include "models/wan_vae/initial_weights.h"

#include <cmath>

#include "core/random.h"
#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "models/wan_vae/layers.h"

namespace ballast::wan_vae {
namespace {

std::vector<float> initial_values(const UnitTensor& t, std::int64_t inputs, bool zero,
                                  std::uint64_t seed) {
  std::vector<float> values(to_size(t.shape.elements()), zero ? 0.0f : 1.0f);
  if (zero || t.name.ends_with("gamma")) return values;
  fill_uniform(random_source(seed, "vae_init", 0, t.name), 0, values.data(), t.shape.elements());
  const double bound = 1 / std::sqrt(static_cast<double>(inputs));
  for (float& x : values) x = static_cast<float>((2.0 * x - 1.0) * bound);
  return values;
}

}  // namespace

void write_initial_weights(const std::string& path, const Config& config, std::uint64_t seed) {
  SafetensorsWriter writer({.metadata = {{"format", "pt"}}});
  for (const Network& net : {encoder(config), decoder(config)}) {
    for (const Stage& s : net) {
      for (const Unit& u : s.units) {
        std::int64_t inputs = 1;  // of the convolution that a bias belongs to: it comes before
        for (const UnitTensor& t : tensors_of(u)) {
          if (t.taps > 0) inputs = t.shape.elements() / t.shape[0];
          const bool zero = u.kind == UnitKind::attention && t.slot >= TensorSlots::conv2;
          writer.add(t.name, DType::f32, t.shape, [=](const ByteSink& sink) {
            const std::vector<float> values = initial_values(t, inputs, zero, seed);
            sink(std::as_bytes(std::span(values)));
          });
        }
      }
    }
  }
  writer.write(path);
}

}  // namespace ballast::wan_vae
