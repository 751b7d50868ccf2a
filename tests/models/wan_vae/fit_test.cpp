#include "fit/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "core/to_size.h"
#include "models/wan_vae/fit_job.h"

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

FitJob job(int preset, bool decode, std::int64_t height, std::int64_t width,
           DType dtype = DType::bf16) {
  const Config& c = presets()[to_size(preset)];
  const std::int64_t side = c.pixels_per_latent();
  using Units = std::vector<StoredUnit>;
  return {{.config = c,
           .encode = !decode,
           .decode = decode,
           .height = height / side,
           .width = width / side,
           .dtype = dtype},
          decode ? Units() : planned_units(encoder(c), DType::f32),
          decode ? planned_units(decoder(c), DType::f32) : Units()};
}

fit::Request request(FitJob job) {
  fit::Request r;
  r.job = std::move(job);
  r.backend = {.device = Device::cuda};
  r.profile = *find_profile("h200");
  r.budget = {.gpu = kUnlimited, .host = kUnlimited, .disk = {}};
  return r;
}

bool is_refused(const fit::Request& r) {
  return std::holds_alternative<Refusal>(fit::find_plan(r));
}

TEST(VaeFit, LargeClipsDecodeInSmallBudgets) {
  const std::uint64_t GB = 1000000000;
  for (const auto& [preset, height, width, budget] :
       {std::tuple(0, 480, 832, 3 * GB), std::tuple(1, 704, 1280, 5 * GB)}) {
    fit::Request r = request(job(preset, true, height, width));
    const auto free = fit::find_plan(r);
    const auto* whole = std::get_if<fit::PlannedRun>(&free);
    ASSERT_TRUE(whole);
    EXPECT_EQ(policy_of(*whole), Policy());
    EXPECT_EQ(policy_text(*whole), "resident");
    EXPECT_GT(whole->needed(Tier::device).count, budget);
    r.budget.gpu = Bytes{budget};
    const auto outcome = fit::find_plan(r);
    const auto* small = std::get_if<fit::PlannedRun>(&outcome);
    ASSERT_TRUE(small) << preset;
    EXPECT_LE(small->needed(Tier::device).count, budget);
    EXPECT_EQ(policy_of(*small).bands, 1);
    // What waits in host memory comes while the convolution before its own computes.
    EXPECT_LE(small->seconds_per_step(), 1.15 * whole->seconds_per_step());
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
    fit::Request r = request(job(preset, decode, height, width, dtype));
    r.budget.gpu = Bytes{budget};
    const auto small = fit::find_plan(r);
    const auto* p = std::get_if<fit::PlannedRun>(&small);
    ASSERT_TRUE(p) << preset << decode;
    EXPECT_LE(p->needed(Tier::device).count, budget);
    EXPECT_GT(policy_of(*p).bands, 1);
    EXPECT_THAT(policy_text(*p), testing::HasSubstr("computed twice"));
    // Nothing without them would have done.
    const Policy lean = {
        .slices = decode,
        .streamed_units = ~std::size_t{},
        .hosted_histories = decode ? FrameCaches::kDecoder : FrameCaches::kEncoder};
    r.policy = job_of(r).choose(lean);
    EXPECT_TRUE(is_refused(r)) << preset << decode;
  }
}

// There is one memory: nothing is gained by what waits on the host.
TEST(VaeFit, TakesBandsOnTheCpu) {
  fit::Request r = request(job(0, false, 480, 832));
  job_of(r).shares_ram = true;
  r.backend = {};
  r.profile = {};
  const Bytes whole = std::get<fit::PlannedRun>(fit::find_plan(r)).needed_ram();
  r.budget.host = Bytes{whole.count * 9 / 10};
  const auto small = fit::find_plan(r);
  const auto* p = std::get_if<fit::PlannedRun>(&small);
  ASSERT_TRUE(p);
  EXPECT_LE(p->needed_ram(), r.budget.host);
  EXPECT_EQ(policy_of(*p), Policy{.bands = 2});
}

// Of the last frames as many wait there as RAM has room for, where neither memory has room for all.
TEST(VaeFit, KeepsOnTheDeviceWhatRamHasNoRoomFor) {
  fit::Request r = request(job(1, false, 704, 1280));
  const auto needs = [&](int histories) {
    fit::Request fixed = r;
    fixed.policy = job_of(fixed).choose({.hosted_histories = histories});
    auto run = std::get<fit::PlannedRun>(fit::find_plan(fixed));
    EXPECT_EQ(policy_of(run).hosted_histories, histories);
    return run;
  };
  const fit::PlannedRun some = needs(8), all = needs(FrameCaches::kEncoder);
  r.budget.gpu = some.needed(Tier::device);
  r.budget.host = some.needed(Tier::host);
  ASSERT_GT(all.needed(Tier::host), r.budget.host);
  const auto outcome = fit::find_plan(r);
  const auto* found = std::get_if<fit::PlannedRun>(&outcome);
  ASSERT_TRUE(found);
  EXPECT_EQ(policy_of(*found).bands, 1);
  EXPECT_LE(found->seconds_per_step(), some.seconds_per_step());
}

TEST(VaeFit, PlansThePolicyThatIsAskedFor) {
  for (const Policy& policy :
       {Policy(), Policy{.slices = true, .streamed_units = 3, .hosted_histories = 7, .bands = 2},
        Policy{.slices = true, .streamed_units = ~std::size_t{}, .hosted_histories = 32}}) {
    fit::Request r = request(job(0, true, 480, 832));
    r.policy = job_of(r).choose(policy);
    const auto run = std::get<fit::PlannedRun>(fit::find_plan(r));
    EXPECT_EQ(policy_of(run), policy) << policy_text(run);
    EXPECT_EQ(run.policy.name, policy_text(run));
  }
}

TEST(VaeFit, RefusesMoreBandsThanThereAreRowsFor) {
  EXPECT_THROW(job(0, true, 64, 64).choose({.bands = 9}), Error);
}

TEST(VaeFit, SaysWhatTheLeanestPolicyNeeds) {
  fit::Request r = request(job(0, true, 480, 832));
  r.budget.gpu = Bytes{600000000};
  const auto none = fit::find_plan(r);
  ASSERT_TRUE(std::holds_alternative<Refusal>(none));
  const Refusal& refusal = std::get<Refusal>(none);
  ASSERT_EQ(refusal.shortages.size(), 1u);
  r.budget.gpu = refusal.shortages[0].needed;
  EXPECT_FALSE(is_refused(r));
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
