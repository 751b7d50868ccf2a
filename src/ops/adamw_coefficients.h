#pragma once

// Plain C++17: CUDA sources include it.
namespace ballast::ops {

// What a step of AdamW multiplies with, formed in f64 (adamw.cpp):
//   m = keep_m m + add_m g;  v = keep_v v + add_v g^2
//   p = decay p - rate m / (unbias_v sqrt(v) + eps)
struct AdamWCoefficients {
  float decay, keep_m, add_m, keep_v, add_v, rate, unbias_v, eps;
};

inline constexpr int kAdamWTensors = 24;  // of a call

}  // namespace ballast::ops
