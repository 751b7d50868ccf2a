#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/wan_vae/clip_pass.h"
#include "nn/update.h"
#include "ops/flow_loss.h"

namespace ballast::wan_vae {

// A clip by its latents: frames, rows, columns.
struct LatentClip {
  std::int64_t frames = 0, height = 0, width = 0;

  friend bool operator==(const LatentClip&, const LatentClip&) = default;
};

struct TrainingJob {
  Config config;
  std::vector<LatentClip> clips;  // the kinds that come, each once
  DType dtype = DType::f32;       // activations and matrices: f32 or bf16, beside f32 masters
  bool checkpointing = false;     // clip_pass.h
  bool train_encoder = true;      // false: the decoder alone, latents stay what they are
  ops::LossFunction reconstruction = {};
  double kl_weight = 1e-6;
  OptimizerOptions optimizer = {};
  double max_grad_norm = 1;  // 0: no clipping
};

// What is trained, under its official name.
struct TrainedTensor {
  UpdatedTensor updated;  // a convolution's in rows of taps, see ops/conv3d/conv3d.h
  Shape shape;            // in files
  std::int64_t taps = 0;  // 0: a vector
};

// One kind of clip.
struct ClipIo {
  LatentClip size;
  std::string program;  // a clip forward and backward: adds to gradients and losses
  std::string measure;  // its means alone
  Buffer pixels,
      next;       // host f32 [n, H, W, 3], -1 to 1; next: the coming clip, for who reads ahead
  Buffer weight;  // host f32 [1] of the clip in the step: 1 / clips
  Buffer means;   // host f32 [f, h, w, z], of `measure`
};

struct TrainingIo {
  std::vector<ClipIo> clips;
  Buffer losses;     // host f64 [2]: reconstruction, KL; means over all values, summed over clips
  Buffer grad_norm;  // host f32 [1]
  std::vector<TrainedTensor> trained;
};

// Records the training of both networks, or of the decoder:
//   load, init_state     the weights of the file; masters and optimizer state
//   zero_gradients       a step begins
//   step.K               one clip: x -> m, v;  z = m + exp(v / 2) noise;  y = decoder(z);
//                        loss = mean rho(y - x) + kl_weight mean KL(m, v)
//   grad_norm, update    a step ends
//   after_restore        masters and state came from a checkpoint
//   measure.K            means of the latents of one clip
// A clip's noise depends on seed, step and its index within the step (StepValues).
class Training {
 public:
  Training(ProgramSet& set, TrainingJob job, std::vector<StoredUnit> encoder,
           std::vector<StoredUnit> decoder);

  const TrainingJob& job() const { return job_; }
  const TrainingIo& io() const { return io_; }

 private:
  void load(ProgramSet& set, std::vector<StoredUnit> encoder, std::vector<StoredUnit> decoder);
  void declare_gradients(ProgramBuilder& pb);
  ClipIo declare_clip(ProgramBuilder& pb, std::size_t kind);
  Buffer enter(ProgramBuilder& pb, const ClipIo& io);  // pixels on the device, f32
  void record_clip(ProgramSet& set, const ClipIo& io);
  void record_measure(ProgramSet& set, const ClipIo& io);
  void record_update(ProgramSet& set);

  TrainingJob job_;
  Network encoder_net_, decoder_net_;
  std::optional<Weights> encoder_, decoder_;
  std::vector<UnitBuffers> encoder_grads_, decoder_grads_;
  Buffer gradients_;  // all of them
  Buffer losses_;     // device f64 [2]
  TrainingIo io_;
};

}  // namespace ballast::wan_vae
