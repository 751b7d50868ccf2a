#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/wan_vae/clip_pass.h"
#include "nn/gradients.h"

namespace ballast::wan_vae {

struct GradientJob {
  Config config;
  Part part = Part::decoder;
  std::int64_t frames = 1, height = 0, width = 0;  // of latents
  DType dtype = DType::f32;
  bool checkpointing = false;  // clip_pass.h
  bool weights = true;         // gradients of the weights; else of the input alone
};

// Under the tensor's official name; a convolution's in rows of taps, see ops/conv3d/conv3d.h.
struct UnitGradient : NamedGradient {
  Buffer weight;  // what it is of, in the same layout
  Shape shape;    // in files
  std::int64_t taps = 0;
};

struct GradientIo {
  Buffer input;   // host f32: decoder [f, h, w, z] not normalised, encoder [n, H, W, 3]
  Buffer target;  // host f32, of the result's shape
  Buffer result;  // host f32: decoder [n, H, W, 3], encoder [f, h, w, 2 z] means and log-variances
  Buffer loss;    // host f64 [1]: mean of (result - target)^2
  Buffer dinput;  // host f32, of the input's shape
  std::vector<UnitGradient> gradients;
};

// Records `load` and `grad`: a clip through one network, whole, its mean squared error and the
// gradients of that.
class Gradients {
 public:
  Gradients(ProgramSet& set, const GradientJob& job, std::vector<StoredUnit> stored);
  const GradientIo& io() const { return io_; }

 private:
  void record(ProgramSet& set);

  GradientJob job_;
  Network net_;
  std::optional<Weights> weights_;
  std::vector<UnitBuffers> grads_;
  GradientIo io_;
};

}  // namespace ballast::wan_vae
