#include "models/wan_vae/bands.h"

#include <gtest/gtest.h>

#include <random>

#include "io/weight_files.h"
#include "models/wan_vae/pass.h"
#include "ops/copy.h"
#include "plan/runner.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_vae.h"

namespace ballast::wan_vae {
namespace {

TEST(VaeBands, CoverAllRowsOnceWithTheirHalos) {
  for (std::int64_t rows = 1; rows < 60; ++rows) {
    for (const std::int64_t halo : {4, 6}) {
      for (std::int64_t count = 1; count < 10; ++count) {
        const std::vector<Band> bands = cut_bands(rows, count, halo);
        ASSERT_LE(std::ssize(bands), count);
        if (bands.empty()) continue;
        std::int64_t next = 0;
        for (const Band& b : bands) {
          EXPECT_EQ(b.rows, bands[0].rows);
          EXPECT_LT(b.rows, rows);
          EXPECT_EQ(b.keep, next);
          EXPECT_GT(b.kept, 0);
          next += b.kept;
          EXPECT_GE(b.first, 0);
          EXPECT_LE(b.first + b.rows, rows);
          EXPECT_TRUE(b.first == 0 || b.first + halo <= b.keep);
          EXPECT_TRUE(b.first + b.rows == rows || next + halo <= b.first + b.rows);
        }
        EXPECT_EQ(next, rows);
        EXPECT_GT(computed_twice(bands), 0);
      }
    }
  }
  EXPECT_EQ(cut_bands(120, 2, 6).size(), 2u);
  EXPECT_NEAR(computed_twice(cut_bands(120, 2, 6)), 0.1, 1e-9);
}

// One frame through half a VAE, whole or in these bands.
std::vector<float> passed(const WeightFiles& file, const Config& c, Part part,
                          const std::vector<Band>& bands, std::int64_t height, std::int64_t width) {
  const bool decodes = part == Part::decoder;
  const Network net = decodes ? decoder(c) : encoder(c);
  ProgramSet set;
  set.backend = {.threads = 2};
  std::vector<StoredUnit> stored = stored_units(net, file, Dialect::official);
  const std::uint64_t largest = Weights::largest(stored);
  Buffer input, output;
  std::optional<Weights> weights;
  const Shape latent = {1, height, width, decodes ? c.z_dim : 2 * c.z_dim};
  const Shape pixels = {1, 8 * height, 8 * width, c.network_channels()};
  {
    ProgramBuilder load(set, "load");
    weights.emplace(load, net, std::move(stored), WeightOptions());
    StagingRing ring(load, largest);
    weights->load(load, ring);
    input = load.persistent("input", decodes ? latent : pixels, DType::f32, Role::input);
    output = load.persistent("output", decodes ? pixels : latent, DType::f32, Role::output);
  }
  {
    ProgramBuilder pb(set, "run");
    ForwardPass pass(
        pb, {.net = net, .weights = *weights, .dtype = DType::f32, .slices = true, .bands = bands},
        true);
    const auto done = [&](Buffer y, std::int64_t, std::int64_t row) {
      ops::copy(pb, y, rows_of_frame(pb, output, 0, row, pb.shape(y)[1]));
    };
    if (decodes) {
      pass.decode(input, done);
    } else {
      pass.encode([&](std::int64_t first,
                      std::int64_t rows) { return rows_of_frame(pb, input, 0, first, rows); },
                  pixels[1], done);
    }
  }
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run("load");
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const TensorView x = runner.view(input);
  for (std::int64_t i = 0; i < x.elements(); ++i) x.as<float>()[i] = normal(random);
  runner.run("run");
  EXPECT_EQ(runner.high_water(Tier::device), plan.peak_of(Tier::device));
  const TensorView y = runner.view(output);
  return {y.as<float>(), y.as<float>() + y.elements()};
}

TEST(VaeBands, NeedTheWholeHaloAndNoMore) {
  const test::TempDir dir;
  const std::int64_t height = 15, width = 3;
  for (const Generation g : {Generation::wan21, Generation::wan22}) {
    const Config c = support::tiny_vae(g);
    support::write_vae(dir.path("vae.safetensors"), c, Dialect::official);
    const WeightFiles file = WeightFiles::open(dir.path("vae.safetensors"));
    for (const Part part : {Part::decoder, Part::encoder}) {
      const std::int64_t halo = part == Part::decoder ? kDecoderHalo : kEncoderHalo;
      const auto run = [&](std::int64_t count, std::int64_t with) {
        return passed(file, c, part, cut_bands(kGridPerLatent * height, count, with), height,
                      width);
      };
      const std::vector<float> want = run(1, halo);
      for (const std::int64_t count : {2, 3, 4}) EXPECT_EQ(run(count, halo), want) << count;
      EXPECT_NE(run(2, halo - 1), want);
    }
  }
}

}  // namespace
}  // namespace ballast::wan_vae
