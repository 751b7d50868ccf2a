#pragma once

#include <cstdint>
#include <string>

namespace ballast::demo {

// A folder that `--model` takes, with weights from nothing but the seed:
//
//   transformer/              Wan's transformer, 3.5 M parameters, f32: to be trained; 32 rows of
//                             text instead of 512
//   vae.safetensors           Wan2.1's VAE, 0.9 M, f32: to be trained
//   umt5_encoder.safetensors  a UMT5 encoder of 0.3 M, bf16: it stays random. A fixed random map
//                             tells words and their places apart, which is all that captions of
//                             four words need; the transformer learns what the words mean
//   tokenizer.json            the captions' words and, for all else, letters
void write_first_model(const std::string& folder, std::uint64_t seed);

}  // namespace ballast::demo
