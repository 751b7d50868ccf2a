#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "infer/require_plan.h"
#include "io/weight_files.h"
#include "memory/budget.h"
#include "models/wan/config.h"
#include "models/wan_vae/fit_job.h"
#include "plan/runner.h"

namespace ballast::infer {

struct VideoCodecOptions {
  Device device = Device::cpu;
  DType dtype = DType::f32;  // f32 or bf16
  Budget budget = {};        // 0: no limit; on a GPU `gpu` includes CUDA's own share
  int threads = 0;           // of the CPU, 0: all this process may use
  bool clamp = true;         // decoded pixels to -1 ... 1
  std::optional<wan_vae::Policy> policy = {};  // nullopt: the fastest that fits
  std::vector<ProcessLine> other_lines = {};   // what the caller keeps besides
};

// Half of a Wan VAE from its checkpoint: recognised, planned within a budget, loaded when first
// used. Frames are f32 [n][H][W][3] from -1 to 1, latents f32 [z, f, h, w], normalised. A clip
// passes chunk by chunk in memory that does not depend on its length.
class VideoCodec {
 public:
  VideoCodec(const VideoCodec&) = delete;
  VideoCodec& operator=(const VideoCodec&) = delete;

  const wan_vae::Config& config() const { return found_.config; }
  // To be planned for latents of this size, from the header alone; long_clips: more than one frame
  // of them.
  CommandPart part(std::int64_t height, std::int64_t width, bool long_clips) const;
  // Its plan. Fails with ErrorCode::refused, with what would be needed, where no policy fits.
  fit::PlannedRun plan(std::int64_t height, std::int64_t width, bool long_clips) const;
  // Of the runner in use; null before the first clip.
  const MemoryPlan* memory() const { return runner_ ? &plan_ : nullptr; }
  Runner* runner() { return runner_.get(); }

 protected:
  VideoCodec(const std::string& path, wan_vae::Part part, const VideoCodecOptions& options);
  // Loads for this size unless that is loaded already.
  void prepare(std::int64_t height, std::int64_t width, bool long_clips);

  VideoCodecOptions options_;
  wan_vae::Part part_;
  WeightFiles checkpoint_;
  wan_vae::Recognised found_;
  Backend backend_;
  MachineProfile profile_;
  ProgramSet set_;
  MemoryPlan plan_;
  std::unique_ptr<wan_vae::Vae> vae_;
  std::unique_ptr<Runner> runner_;
  std::vector<float>
      frames_;  // of a chunk: what the caller has while the next or last one computes
};

// Makes the request of a part one for latents of another size.
void resize_part(fit::Request& request, std::int64_t height, std::int64_t width, bool long_clips);
// The largest of some smaller images of about the same proportions that fits, where the request is
// one of a codec that chooses its policy itself; else nothing.
std::vector<fit::Change> smaller_images(std::span<const fit::Request> refused);

// Fails with ErrorCode::input where the VAE of `path` is not that of the model's latents.
void require_latents_of(const wan::Config& model, const wan_vae::Config& vae,
                        const std::string& path);

struct DecodedFrames {
  std::span<const float> pixels;  // [count][height][width][3], until the sink returns
  std::int64_t first, count, height, width;
};

// The clip of a latent [z, frames, h, w], with programs that were recorded for its size and whose
// weights are loaded. chunk: room for a chunk's pixels. The sink is called on this thread, while
// the next chunk computes; with false it ends the clip there.
struct RecordedDecoder {
  Runner& runner;
  const wan_vae::Vae& vae;
  std::span<float> chunk;
  bool clamp = true;  // pixels to -1 ... 1
};
void decode(const RecordedDecoder& decoder, std::span<const float> latent, std::int64_t frames,
            const std::function<bool(const DecodedFrames&)>& sink);
// Pixels of the larger kind of chunk.
std::int64_t chunk_values(const wan_vae::Config& c, std::int64_t height, std::int64_t width,
                          bool long_clips);

class VideoDecoder : public VideoCodec {
 public:
  VideoDecoder(const std::string& path, const VideoCodecOptions& options);

  using Frames = DecodedFrames;
  using Sink = std::function<void(const Frames&)>;
  // latent: [z, frames, height, width]. The sink is called on this thread, while the next chunk
  // computes.
  void decode(std::span<const float> latent, std::int64_t frames, std::int64_t height,
              std::int64_t width, const Sink& sink);
};

class VideoEncoder : public VideoCodec {
 public:
  VideoEncoder(const std::string& path, const VideoCodecOptions& options);

  // Fills [count][height][width][3] with the frames from `first` on; called on this thread, while
  // the chunk before computes.
  using Source = std::function<void(std::int64_t first, std::int64_t count, std::span<float> to)>;
  // The normalised latent [z, 1 + (frames - 1) / 4, height / p, width / p] of so many frames (4 n +
  // 1) of so many pixels (multiples of p: 8, or 16 for Wan2.2); else ErrorCode::input.
  std::vector<float> encode(std::int64_t frames, std::int64_t height, std::int64_t width,
                            const Source& source);
};

}  // namespace ballast::infer
