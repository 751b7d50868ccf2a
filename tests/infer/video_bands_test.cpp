#include <gtest/gtest.h>

#include "core/error.h"
#include "core/to_size.h"
#include "infer/video_codec.h"
#include "memory/gpu.h"
#include "tests/support/sample_tensor.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_vae.h"

// Clips that are computed in bands of rows, on the CPU or on the GPU of BALLAST_TEST_DEVICE.
namespace ballast::infer {
namespace {

struct ClipSize {
  std::int64_t frames, height, width;  // of latents
};
// Fibers take seconds for the smaller one.
bool on_gpu() { return support::test_device() == Device::cuda; }
ClipSize size() { return on_gpu() ? ClipSize{2, 8, 1} : ClipSize{3, 11, 2}; }

// Wide enough for cuDNN's convolutions; patches of what is not.
wan_vae::Config small_vae(wan_vae::Generation g) {
  return {.name = "small", .generation = g, .encoder_dim = 8, .decoder_dim = 8, .z_dim = 4};
}

// A real GPU's cuDNN may have no kernel whose bits do not depend on the size of an image.
bool has_no_kernel(const Error& e) {
  return e.code() == ErrorCode::device && on_gpu() && open_gpu().name != "emulated GPU";
}

std::vector<float> noise(std::int64_t count) {
  support::SampleTensor t(DType::f32, {count});
  t.fill_normal(7);
  std::vector<float> v(to_size(count));
  for (std::int64_t i = 0; i < count; ++i) {
    v[to_size(i)] = static_cast<float>(t[i]);
  }
  return v;
}

std::vector<float> decode(VideoDecoder& decoder) {
  const ClipSize s = size();
  std::vector<float> frames;
  decoder.decode(noise(decoder.config().z_dim * s.frames * s.height * s.width), s.frames, s.height,
                 s.width, [&](const VideoDecoder::Frames& f) {
                   frames.insert(frames.end(), f.pixels.begin(), f.pixels.end());
                 });
  return frames;
}

std::vector<float> encode(VideoEncoder& encoder) {
  const std::int64_t side = encoder.config().pixels_per_latent();
  const std::int64_t height = size().height * side, width = size().width * side;
  const std::int64_t frames = wan_vae::pixel_frames(size().frames);
  const std::vector<float> clip = noise(frames * height * width * 3);
  return encoder.encode(
      frames, height, width, [&](std::int64_t first, std::int64_t, std::span<float> to) {
        std::copy_n(clip.begin() + first * height * width * 3, to.size(), to.begin());
      });
}

void expect_planned(VideoCodec& codec) {
  EXPECT_EQ(codec.runner()->high_water(Tier::device), codec.memory()->peak_of(Tier::device));
}

class VideoBands : public ::testing::TestWithParam<std::pair<wan_vae::Generation, DType>> {
 protected:
  VideoBands() {
    support::write_vae(path(), small_vae(GetParam().first), wan_vae::Dialect::official);
  }
  std::string path() const { return dir_.path("vae.safetensors"); }
  VideoCodecOptions options() const {
    return {.device = support::test_device(), .dtype = GetParam().second, .threads = 2};
  }
  // Bands, and how many of the last frames wait in host memory.
  static std::vector<wan_vae::Policy> policies(bool decode) {
    if (on_gpu()) return {{.slices = decode, .hosted_histories = decode ? 25 : 16, .bands = 2}};
    return {
        {.slices = decode, .bands = 2},
        {.slices = decode, .hosted_histories = decode ? 25 : 16, .bands = 3},
        {.slices = decode, .streamed_units = ~std::size_t{}, .hosted_histories = 32, .bands = 4}};
  }

 private:
  test::TempDir dir_;
};

TEST_P(VideoBands, DecodeToTheSameBits) {
  VideoDecoder whole(path(), options());
  const std::vector<float> want = decode(whole);
  for (const wan_vae::Policy& policy : policies(true)) {
    VideoCodecOptions o = options();
    o.policy = policy;
    VideoDecoder banded(path(), o);
    try {
      EXPECT_TRUE(decode(banded) == want) << policy.bands;
    } catch (const Error& e) {
      if (has_no_kernel(e)) GTEST_SKIP() << e.what();
      throw;
    }
    expect_planned(banded);
  }
}

TEST_P(VideoBands, EncodeToTheSameBits) {
  VideoEncoder whole(path(), options());
  const std::vector<float> want = encode(whole);
  for (const wan_vae::Policy& policy : policies(false)) {
    VideoCodecOptions o = options();
    o.policy = policy;
    VideoEncoder banded(path(), o);
    try {
      EXPECT_TRUE(encode(banded) == want) << policy.bands;
    } catch (const Error& e) {
      if (has_no_kernel(e)) GTEST_SKIP() << e.what();
      throw;
    }
    expect_planned(banded);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, VideoBands,
                         ::testing::Values(std::pair(wan_vae::Generation::wan21, DType::f32),
                                           std::pair(wan_vae::Generation::wan21, DType::bf16),
                                           std::pair(wan_vae::Generation::wan22, DType::f32),
                                           std::pair(wan_vae::Generation::wan22, DType::bf16)));

}  // namespace
}  // namespace ballast::infer
