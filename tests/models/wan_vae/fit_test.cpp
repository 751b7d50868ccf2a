#include "models/wan_vae/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"

namespace ballast::wan_vae {
namespace {

TEST(VaeLayers, ReleasedModelsHaveTheirTensorsAndParameters) {
  const auto count = [](const Network& net, std::set<std::string>& names,
                        std::set<std::string>& others) {
    std::int64_t parameters = 0;
    for (const Stage& s : net) {
      for (const Unit& u : s.units) {
        for (const UnitTensor& t : tensors_of(u)) {
          parameters += t.shape.elements();
          names.insert(t.name);
          others.insert(t.other);
        }
      }
    }
    return parameters;
  };
  const std::int64_t encoders[] = {53596928, 149637088}, decoders[] = {73295603, 555051580};
  const std::size_t tensors[] = {194, 196};
  for (std::size_t i = 0; i < 2; ++i) {
    std::set<std::string> names, others;
    EXPECT_EQ(count(encoder(presets()[i]), names, others), encoders[i]);
    EXPECT_EQ(count(decoder(presets()[i]), names, others), decoders[i]);
    EXPECT_EQ(names.size(), tensors[i]);
    EXPECT_EQ(others.size(), tensors[i]);
    for (const char* name : {"encoder.conv_in.weight", "encoder.norm_out.gamma",
                             "decoder.mid_block.attentions.0.to_qkv.bias", "quant_conv.weight"}) {
      EXPECT_TRUE(others.contains(name)) << name;
    }
    const bool flat = i == 0;
    EXPECT_TRUE(names.contains(flat ? "decoder.upsamples.4.shortcut.weight"
                                    : "decoder.upsamples.2.upsamples.0.shortcut.weight"));
    EXPECT_TRUE(others.contains(flat ? "decoder.up_blocks.0.upsamplers.0.time_conv.weight"
                                     : "decoder.up_blocks.0.upsampler.time_conv.weight"));
    EXPECT_TRUE(others.contains(flat ? "encoder.down_blocks.5.time_conv.bias"
                                     : "encoder.down_blocks.1.downsampler.time_conv.bias"));
  }
}

FitRequest request(int preset, bool decode, std::int64_t height, std::int64_t width) {
  const Config& c = presets()[static_cast<std::size_t>(preset)];
  const std::int64_t side = c.pixels_per_latent();
  FitRequest r;
  r.job = {.config = c,
           .encode = !decode,
           .decode = decode,
           .height = height / side,
           .width = width / side,
           .dtype = DType::bf16};
  (decode ? r.decoder : r.encoder) = planned_units(decode ? decoder(c) : encoder(c), DType::f32);
  r.backend = {.device = Device::cuda};
  r.profile = *find_profile("h200");
  return r;
}

TEST(VaeFit, LargeClipsDecodeInSmallBudgets) {
  const std::uint64_t GB = 1000000000;
  for (const auto& [preset, height, width, budget] :
       {std::tuple(0, 480, 832, 3 * GB), std::tuple(1, 704, 1280, 5 * GB)}) {
    FitRequest r = request(preset, true, height, width);
    const auto free = fit(r);
    ASSERT_TRUE(std::holds_alternative<PlannedVae>(free));
    EXPECT_EQ(std::get<PlannedVae>(free).policy, Policy());
    EXPECT_GT(std::get<PlannedVae>(free).device.count, budget);
    r.budget.gpu = Bytes{budget};
    const auto small = fit(r);
    ASSERT_TRUE(std::holds_alternative<PlannedVae>(small)) << preset;
    EXPECT_LE(std::get<PlannedVae>(small).device.count, budget);
    EXPECT_EQ(std::get<PlannedVae>(small).policy.bands, 1);
    // What waits in host memory comes while the convolution before its own computes.
    EXPECT_LE(std::get<PlannedVae>(small).seconds, 1.15 * std::get<PlannedVae>(free).seconds);
  }
}

TEST(VaeFit, TakesBandsWhereNothingElseFits) {
  const std::uint64_t MB = 1000000;
  for (const auto& [preset, decode, dtype, height, width, budget] :
       {std::tuple(1, true, DType::bf16, 704, 1280, 2200 * MB),
        std::tuple(0, true, DType::bf16, 480, 832, 1250 * MB),
        std::tuple(0, false, DType::bf16, 480, 832, 1500 * MB),
        std::tuple(1, false, DType::bf16, 704, 1280, 1800 * MB),
        std::tuple(0, true, DType::f32, 480, 832, 1700 * MB),
        std::tuple(1, false, DType::f32, 704, 1280, 3000 * MB)}) {
    FitRequest r = request(preset, decode, height, width);
    r.job.dtype = dtype;
    r.budget.gpu = Bytes{budget};
    const auto small = fit(r);
    ASSERT_TRUE(std::holds_alternative<PlannedVae>(small)) << preset << decode;
    const PlannedVae& p = std::get<PlannedVae>(small);
    EXPECT_LE(p.device.count, budget);
    EXPECT_GT(p.policy.bands, 1);
    EXPECT_THAT(policy_text(p), testing::HasSubstr("computed twice"));
    // Nothing without them would have done.
    Policy lean = {.slices = decode,
                   .streamed_units = ~std::size_t{},
                   .hosted_histories = decode ? FrameCaches::kDecoder : FrameCaches::kEncoder};
    r.policy = lean;
    EXPECT_TRUE(std::holds_alternative<Refusal>(fit(r))) << preset << decode;
  }
}

// There is one memory: nothing is gained by what waits on the host.
TEST(VaeFit, TakesBandsOnTheCpu) {
  FitRequest r = request(0, false, 480, 832);
  r.backend = {};
  r.profile = {};
  const Bytes whole = std::get<PlannedVae>(fit(r)).host;
  r.budget.host = Bytes{whole.count * 9 / 10};
  const auto small = fit(r);
  ASSERT_TRUE(std::holds_alternative<PlannedVae>(small));
  EXPECT_LE(std::get<PlannedVae>(small).host, r.budget.host);
  EXPECT_EQ(std::get<PlannedVae>(small).policy, Policy{.bands = 2});
}

TEST(VaeFit, RefusesMoreBandsThanThereAreRowsFor) {
  FitRequest r = request(0, true, 64, 64);
  r.policy = Policy{.bands = 9};
  EXPECT_THROW(fit(r), Error);
}

TEST(VaeFit, SaysWhatTheLeanestPolicyNeeds) {
  FitRequest r = request(0, true, 480, 832);
  r.budget.gpu = Bytes{600000000};
  const auto none = fit(r);
  ASSERT_TRUE(std::holds_alternative<Refusal>(none));
  const Refusal& refusal = std::get<Refusal>(none);
  ASSERT_EQ(refusal.shortages.size(), 1u);
  r.budget.gpu = refusal.shortages[0].needed;
  EXPECT_TRUE(std::holds_alternative<PlannedVae>(fit(r)));
}

TEST(VaeConfig, RefusesFrameCountsThatHaveNoLatents) {
  EXPECT_EQ(latent_frames(81), 21);
  EXPECT_EQ(latent_frames(1), 1);
  EXPECT_EQ(pixel_frames(21), 81);
  EXPECT_THROW(latent_frames(7), Error);
  EXPECT_THROW(latent_frames(0), Error);
}

}  // namespace
}  // namespace ballast::wan_vae
