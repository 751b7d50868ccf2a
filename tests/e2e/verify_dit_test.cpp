// verify on transformers of other sizes than the golden files have: files in their format, made
// here from the double-precision reference.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/to_size.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/reference_dit.h"

namespace ballast::support {
namespace {

using ::testing::HasSubstr;

// A golden file in the making. Results carry err = 1e-6 of their largest value, which is what the
// reference's own f32 runs have in the stored files; verify allows 20 times that.
class GoldenWriter {
 public:
  GoldenWriter(std::string case_name, const wan::Config& c, const TinyBatch& batch)
      : case_(std::move(case_name)) {
    config_ = {{"dim", c.dim},
               {"ffn_dim", c.ffn_dim},
               {"freq_dim", c.freq_dim},
               {"in_dim", c.in_dim},
               {"out_dim", c.out_dim},
               {"num_heads", c.heads},
               {"num_layers", c.layers},
               {"text_dim", c.text_dim},
               {"text_len", c.text_len},
               {"eps", 1e-6},
               {"text_lens", batch.text_lens}};
    std::int64_t seq_len = 0;
    for (const wan::LatentSize& z : batch.latents) {
      config_["latents"].push_back({z.frames, z.height, z.width});
      seq_len = std::max(seq_len, z.tokens());
    }
    config_["seq_len"] = seq_len;
    each_parameter(c, [&](int, const std::string& name, const Shape& shape) {
      add(name, shape, parameter_values(name, shape));
    });
    const auto samples = reference_samples(c, batch);
    std::vector<float> t, t_tokens;
    for (std::size_t b = 0; b < samples.size(); ++b) {
      const ref::DitSample& s = samples[b];
      const auto sized = [&](const std::string& what, const std::vector<double>& v,
                             std::int64_t channels) {
        add(fmt::format("in.{}.{}", what, b),
            {channels, s.size.frames, s.size.height, s.size.width}, narrowed(v));
      };
      sized("latent", s.latent, c.out_dim);
      if (c.conditioning() > 0) sized("y", s.conditioning, c.conditioning());
      if (case_ == "dit_grad") sized("target", s.target, c.out_dim);
      std::vector<float> context = narrowed(s.context);
      context.resize(to_size(batch.text_lens[b] * c.text_dim));
      add(fmt::format("in.context.{}", b), {batch.text_lens[b], c.text_dim}, context);
      t.push_back(time_of(batch, s.timestep_row.back()));
      for (std::int64_t l = 0; l < seq_len; ++l) {
        const bool real = l < s.size.tokens();
        t_tokens.push_back(real ? time_of(batch, s.timestep_row[to_size(l)]) : t.back());
      }
    }
    const auto count = static_cast<std::int64_t>(samples.size());
    add("in.t", {count}, t);
    add("in.t_tokens", {count, seq_len}, t_tokens);
  }

  void add_result(const std::string& name, const Shape& shape, const std::vector<double>& v) {
    double most = 0, squares = 0;
    for (const double x : v) most = std::max(most, std::abs(x)), squares += x * x;
    stats_[name] = {{"max", most},
                    {"rms", std::sqrt(squares / static_cast<double>(v.size()))},
                    {"err", 1e-6 * most}};
    add(name, shape, narrowed(v));
  }

  std::string write(const test::TempDir& dir) const {
    SafetensorsWriter writer({.metadata = {{"format", "ballast-golden-1"},
                                           {"case", case_},
                                           {"config", config_.dump()},
                                           {"stats", stats_.dump()}}});
    for (const auto& [name, t] : tensors_) {
      writer.add(name, DType::f32, t.first, std::as_bytes(std::span(t.second)));
    }
    writer.write(dir.path("made.safetensors"));
    return dir.path("made.safetensors");
  }

 private:
  static float time_of(const TinyBatch& batch, std::int32_t row) {
    return static_cast<float>(batch.timesteps[to_size(row)]);
  }
  static std::vector<float> narrowed(const std::vector<double>& v) {
    std::vector<float> f(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) f[i] = static_cast<float>(v[i]);
    return f;
  }
  void add(const std::string& name, const Shape& shape, std::vector<float> values) {
    tensors_[name] = {shape, std::move(values)};
  }

  std::string case_;
  nlohmann::json config_, stats_ = nlohmann::json::object();
  std::map<std::string, std::pair<Shape, std::vector<float>>> tensors_;
};

struct Size {
  std::int64_t head_dim, heads, layers, text_len;
  std::vector<wan::LatentSize> latents;
  std::int64_t conditioning = 0;
};

wan::Config config_of(const Size& s) {
  return {.name = "made",
          .description = "",
          .dim = s.head_dim * s.heads,
          .ffn_dim = s.head_dim * s.heads + 12,
          .heads = s.heads,
          .layers = s.layers,
          .in_dim = 4 + s.conditioning,
          .out_dim = 4,
          .freq_dim = 32,
          .text_dim = 24,
          .text_len = s.text_len};
}

// The latent's shape.
Shape shape_of(const wan::Config& c, const wan::LatentSize& z) {
  return {c.out_dim, z.frames, z.height, z.width};
}

const std::vector<Size> kSizes = {
    {.head_dim = 16, .heads = 2, .layers = 1, .text_len = 1, .latents = {{1, 2, 2}}},
    {.head_dim = 40, .heads = 2, .layers = 2, .text_len = 50, .latents = {{2, 4, 6}, {1, 6, 4}}},
    {.head_dim = 64,
     .heads = 1,
     .layers = 2,
     .text_len = 23,
     .latents = {{3, 4, 4}, {1, 2, 10}, {2, 2, 2}},
     .conditioning = 5},
    // more than a quantum of tokens
    {.head_dim = 16, .heads = 1, .layers = 1, .text_len = 7, .latents = {{3, 18, 20}}},
};

TEST(VerifyMadeDit, OtherSizesPassUnderEveryPolicy) {
  for (const Size& size : kSizes) {
    const wan::Config c = config_of(size);
    const TinyBatch batch = tiny_batch(size.latents, c.text_len);
    GoldenWriter file("dit_forward", c, batch);
    const ref::Dit reference = reference_dit(c);
    const auto samples = reference_samples(c, batch);
    for (std::size_t b = 0; b < samples.size(); ++b) {
      file.add_result(fmt::format("out.{}", b), shape_of(c, batch.latents[b]),
                      reference.forward(samples[b], batch.timesteps));
    }
    const test::TempDir dir;
    const auto f = test::run_ballast({"verify", file.write(dir), "--policy", "all", "--json"});
    EXPECT_EQ(f.exit_code, 0) << "head size " << size.head_dim << f.err;
    const auto rows = nlohmann::json::parse(f.out).at("rows");
    EXPECT_EQ(rows.size(), 12u);
    for (const auto& row : rows) EXPECT_EQ(row.at("compared"), size.latents.size());
  }
}

TEST(VerifyMadeDit, Fp8ProductsHaveNoLimitAndTheirErrorIsShown) {
  const wan::Config c = config_of(kSizes[1]);
  const TinyBatch batch = tiny_batch(kSizes[1].latents, c.text_len);
  GoldenWriter file("dit_forward", c, batch);
  const auto samples = reference_samples(c, batch);
  for (std::size_t b = 0; b < samples.size(); ++b) {
    file.add_result(fmt::format("out.{}", b), shape_of(c, batch.latents[b]),
                    reference_dit(c).forward(samples[b], batch.timesteps));
  }
  const test::TempDir dir;
  const std::string path = file.write(dir);
  const auto f = test::run_ballast({"verify", path, "--fp8-matmul", "--policy", "all", "--json"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  const auto rows = nlohmann::json::parse(f.out).at("rows");
  for (const auto& row : rows) {
    const auto& worst = row.at("worst");
    EXPECT_TRUE(worst.at("limit").is_null());
    EXPECT_GT(worst.at("error").get<double>(), 1e-3);
    EXPECT_LT(worst.at("error").get<double>(), 0.1);
  }
  EXPECT_THAT(test::run_ballast({"verify", path, "--fp8-matmul"}).out, HasSubstr("no limit"));
}

TEST(VerifyMadeDit, ResultOffByAThousandthIsAMiss) {
  const wan::Config c = config_of(kSizes[0]);
  const TinyBatch batch = tiny_batch(kSizes[0].latents, c.text_len);
  GoldenWriter file("dit_forward", c, batch);
  auto out = reference_dit(c).forward(reference_samples(c, batch)[0], batch.timesteps);
  out[3] += 1e-3;
  file.add_result("out.0", shape_of(c, batch.latents[0]), out);
  const test::TempDir dir;
  const auto f = test::run_ballast({"verify", file.write(dir)});
  EXPECT_EQ(f.exit_code, 7);
  EXPECT_THAT(f.err, HasSubstr("out.0"));
}

// Gradients of vectors and of one text row, by central differences of the reference.
TEST(VerifyMadeDit, GradientsOfOtherSizesPassUnderEveryPolicy) {
  const Size size = {
      .head_dim = 10, .heads = 2, .layers = 2, .text_len = 9, .latents = {{2, 4, 4}, {1, 2, 6}}};
  const wan::Config c = config_of(size);
  const TinyBatch batch = tiny_batch(size.latents, c.text_len);
  GoldenWriter file("dit_grad", c, batch);
  ref::Dit reference = reference_dit(c);
  auto samples = reference_samples(c, batch);
  const auto gradient = [&](std::vector<double>& values, std::size_t count) {
    std::vector<double> g(count);
    constexpr double kStep = 1e-4;  // off by 1e-8 at most
    for (std::size_t i = 0; i < count; ++i) {
      const double at = values[i];
      values[i] = at + kStep;
      const double above = reference.loss(samples, batch.timesteps);
      values[i] = at - kStep;
      g[i] = (above - reference.loss(samples, batch.timesteps)) / (2 * kStep);
      values[i] = at;
    }
    return g;
  };
  for (const char* name : {"blocks.0.self_attn.norm_k.weight", "blocks.1.cross_attn.v.bias",
                           "blocks.0.modulation", "head.head.bias", "text_embedding.0.bias"}) {
    auto& values = reference.weights().at(name);
    const auto n = static_cast<std::int64_t>(values.size());
    const Shape shape = n == 6 * c.dim ? Shape{1, 6, c.dim} : Shape{n};
    file.add_result(std::string("grad.") + name, shape, gradient(values, values.size()));
  }
  const std::int64_t rows = batch.text_lens[1];
  file.add_result("grad.in.context.1", {rows, c.text_dim},
                  gradient(samples[1].context, to_size(rows * c.text_dim)));
  file.add_result("out.loss", {}, {reference.loss(samples, batch.timesteps)});
  for (std::size_t b = 0; b < samples.size(); ++b) {
    file.add_result(fmt::format("out.{}", b), shape_of(c, batch.latents[b]),
                    reference.forward(samples[b], batch.timesteps));
  }
  const test::TempDir dir;
  const auto f = test::run_ballast({"verify", file.write(dir), "--policy", "all"});
  EXPECT_EQ(f.exit_code, 0) << f.out << f.err;
}

}  // namespace
}  // namespace ballast::support
