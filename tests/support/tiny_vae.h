#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "models/wan_vae/weights.h"

namespace ballast::support {

// A VAE of random weights with the official structure and hardly any width.
inline wan_vae::Config tiny_vae(wan_vae::Generation g) {
  return {.name = "tiny", .generation = g, .encoder_dim = 2, .decoder_dim = 2, .z_dim = 3};
}

// Weights about as large as keep activations where they are.
inline void write_vae(const std::string& path, const wan_vae::Config& c, wan_vae::Dialect dialect) {
  std::vector<wan_vae::UnitTensor> tensors;
  for (const wan_vae::Network& net : {wan_vae::encoder(c), wan_vae::decoder(c)}) {
    for (const wan_vae::Stage& s : net) {
      for (const wan_vae::Unit& u : s.units) {
        for (const wan_vae::UnitTensor& t : wan_vae::tensors_of(u)) tensors.push_back(t);
      }
    }
  }
  std::vector<std::vector<float>> memory;
  std::uint32_t seed = 1;
  for (const wan_vae::UnitTensor& t : tensors) {
    std::mt19937 random(seed++);
    const double inputs = static_cast<double>(t.shape.elements() / t.shape[0]);
    std::normal_distribution<float> normal(
        t.name.ends_with("gamma") ? 1.0f : 0.0f,
        t.taps == 0 ? 0.2f : static_cast<float>(1 / std::sqrt(inputs)));
    memory.emplace_back(to_size(t.shape.elements()));
    for (float& v : memory.back()) v = normal(random);
  }
  SafetensorsWriter writer;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const wan_vae::UnitTensor& t = tensors[i];
    writer.add(dialect == wan_vae::Dialect::official ? t.name : t.other, DType::f32, t.shape,
               std::as_bytes(std::span(memory[i])));
  }
  writer.write(path);
}

}  // namespace ballast::support
