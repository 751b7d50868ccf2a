#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/to_size.h"
#include "models/wan_vae/pass.h"

namespace ballast::wan_vae {

// How memory is used; none of it changes a bit of the result.
struct Policy {
  bool slices = false;  // decoding: frames one by one where there are several
  // Units, the first ones, whose matrices wait in host memory. In slices later ones are used again
  // and again, and stay from the first use to the last.
  std::size_t streamed_units = 0;
  int ahead = 1;             // units whose matrices come early
  int hosted_histories = 0;  // of how many convolutions the last frames wait there
  // Bands of rows that the stages of most pixels take one after the other, each with a halo that is
  // computed again; see bands.h. Decoding takes frames one by one in each.
  std::int64_t bands = 1;

  friend bool operator==(const Policy&, const Policy&) = default;
};

struct Job {
  Config config;
  std::string prefix = {};  // of the programs' names, where a set holds several models
  bool encode = false, decode = false;
  std::int64_t height = 0, width = 0;  // of latents
  DType dtype = DType::f32;            // activations and matrices: f32 or bf16
  Policy policy = {};
  bool long_clips = true;  // more than one frame of latents
};

// One kind of chunk: the frames of pixels of one frame of latents, 1 at the start of a clip and 4
// later.
struct ChunkIo {
  std::string program;
  std::int64_t frames = 0;
  Buffer latent;  // host f32 [1, h, w, z]: read (decode), or the encoder's means; not normalised
  Buffer pixels;  // host f32 [frames, H, W, 3], -1 to 1 (decoded ones unclamped)
};

struct VaeIo {
  ChunkIo decode_start, decode_next, encode_start, encode_next;
};

// Records programs `load` and, for what the job asks, `decode.start`, `decode.next`,
// `encode.start`, `encode.next`. A clip of any length is one start and then next, next, ...: what
// convolutions in time must remember stays in persistent buffers between runs.
class Vae {
 public:
  // encoder, decoder: stored_units() or planned_units() of what the job asks.
  Vae(ProgramSet& set, Job job, std::vector<StoredUnit> encoder, std::vector<StoredUnit> decoder,
      Taps* taps = nullptr);

  const Job& job() const { return job_; }
  const VaeIo& io() const { return io_; }

 private:
  void record_decode(ChunkIo& io, bool start);
  void record_encode(ChunkIo& io, bool start);
  ChunkIo declare(ProgramBuilder& pb, const std::string& name, std::int64_t frames);
  std::vector<Band> bands(std::int64_t halo) const;
  static Buffer upload(ProgramBuilder& pb, Buffer pixels, std::int64_t first, std::int64_t rows);

  ProgramSet& set_;
  Job job_;
  Taps* taps_;
  Network encoder_net_, decoder_net_;
  std::optional<Weights> encoder_, decoder_;
  FrameCaches encoder_caches_, decoder_caches_;
  VaeIo io_;
};

// A frame of the clip's latents [z, f, h, w], normalised, and the same as programs want it,
// [h, w, z] and not normalised.
struct LatentFrame {
  LatentStatistics statistics;
  std::int64_t channels = 0, frames = 0, positions = 0;  // z, f, h * w

  void take(std::span<const float> latents, std::int64_t frame, std::span<float> to) const;
  void put(std::span<const float> from, std::int64_t frame, std::span<float> latents) const;

 private:
  std::size_t at(std::int64_t z, std::int64_t frame) const {
    return to_size((z * frames + frame) * positions);
  }
};

}  // namespace ballast::wan_vae
