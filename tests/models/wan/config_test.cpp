#include "models/wan/config.h"

#include <gtest/gtest.h>

#include <set>

#include "models/wan/params.h"
#include "tests/support/errors.h"

namespace ballast::wan {
namespace {

struct Counts {
  std::int64_t all = 0, tensors = 0, block = 0, block_matrices = 0, outside = 0;
};

Counts count(const Config& c) {
  Counts n;
  each_parameter(c, [&](int group, const std::string&, const Shape& shape) {
    n.all += shape.elements();
    ++n.tensors;
    if (group == block_group(0)) {
      n.block += shape.elements();
      if (shape.rank() == 2) n.block_matrices += shape.elements();
    }
    if (group == 0 || group == head_group(c)) n.outside += shape.elements();
  });
  return n;
}

// The counts of the published models.
TEST(WanPresets, HaveExactlyTheParametersOfThePublishedModels) {
  struct Expected {
    const char* name;
    Counts counts;
  };
  const Expected published[] = {
      {"wan2.2-ti2v-5b", {4'999'787'712, 825, 163'656'704, 163'577'856, 90'086'592}},
      {"wan2.2-t2v-a14b", {14'288'491'584, 1095, 351'394'304, 351'272'960, 232'719'424}},
      {"wan2.2-i2v-a14b", {14'288'901'184, 1095, 351'394'304, 351'272'960, 233'129'024}},
      {"wan2.1-t2v-1.3b", {1'418'996'800, 825, 46'440'704, 46'399'488, 25'775'680}},
      {"wan2.1-t2v-14b", {14'288'491'584, 1095, 351'394'304, 351'272'960, 232'719'424}},
  };
  EXPECT_EQ(presets().size(), std::size(published));
  for (const auto& [name, expected] : published) {
    const auto config = find_preset(name);
    ASSERT_TRUE(config) << name;
    const Counts n = count(*config);
    EXPECT_EQ(n.all, expected.all) << name;
    EXPECT_EQ(n.tensors, expected.tensors) << name;
    EXPECT_EQ(n.block, expected.block) << name;
    EXPECT_EQ(n.block_matrices, expected.block_matrices) << name;
    EXPECT_EQ(n.outside, expected.outside) << name;
    EXPECT_EQ(config->head_dim(), 128) << name;
    EXPECT_EQ(config->text_len, 512) << name;
    EXPECT_NO_THROW(validate(*config)) << name;
  }
  EXPECT_EQ(find_preset("wan2.2-i2v-a14b")->conditioning(), 20);
  EXPECT_EQ(find_preset("wan2.2-t2v-a14b")->experts, 2);
  EXPECT_EQ(find_preset("wan"), std::nullopt);
}

TEST(WanParameters, NamesAreDistinctAndGroupsComeInOrder) {
  const Config c = *find_preset("wan2.1-t2v-1.3b");
  std::set<std::string> names;
  int last = 0;
  each_parameter(c, [&](int group, const std::string& name, const Shape& shape) {
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(group == last || group == last + 1) << name;
    EXPECT_GT(shape.elements(), 0) << name;
    last = group;
  });
  EXPECT_EQ(last, group_count(c) - 1);
}

TEST(WanConfig, ContradictionsNameTheField) {
  const auto broken = [](auto&& change) {
    Config c = *find_preset("wan2.1-t2v-1.3b");
    change(c);
    return c;
  };
  EXPECT_FAILS(validate(broken([](Config& c) { c.dim = 0; })), ErrorCode::input, "dim is 0");
  EXPECT_FAILS(validate(broken([](Config& c) { c.layers = -1; })), ErrorCode::input, "num_layers");
  EXPECT_FAILS(validate(broken([](Config& c) { c.heads = 7; })), ErrorCode::input, "7 heads");
  EXPECT_FAILS(validate(broken([](Config& c) { c.dim = 36; })), ErrorCode::input, "12 heads");
  EXPECT_FAILS(validate(broken([](Config& c) { c.out_dim = 17; })), ErrorCode::input, "out_dim");
  EXPECT_FAILS(validate(broken([](Config& c) { c.freq_dim = 255; })), ErrorCode::input, "freq_dim");
  EXPECT_FAILS(validate(broken([](Config& c) { c.text_len = 1 << 20; })), ErrorCode::input,
               "text_len");
  EXPECT_FAILS(validate(broken([](Config& c) { c.eps = 0; })), ErrorCode::input, "eps");
}

// ---------------------------------------------------------------- latents

TEST(LatentSize, FollowsTheStridesOfTheVae) {
  const Config small = *find_preset("wan2.1-t2v-1.3b"), five = *find_preset("wan2.2-ti2v-5b");
  const LatentSize a = latent_size(small, 81, 480, 832);
  EXPECT_EQ((std::array{a.frames, a.height, a.width}), (std::array<std::int64_t, 3>{21, 60, 104}));
  EXPECT_EQ(a.grid(), (std::array<std::int64_t, 3>{21, 30, 52}));
  EXPECT_EQ(a.tokens(), 32760);
  const LatentSize b = latent_size(five, 121, 704, 1280);
  EXPECT_EQ((std::array{b.frames, b.height, b.width}), (std::array<std::int64_t, 3>{31, 44, 80}));
  EXPECT_EQ(b.tokens(), 27280);
  EXPECT_EQ(latent_size(small, 1, 16, 16).tokens(), 1);
}

TEST(LatentSize, SaysWhatWouldFit) {
  const Config c = *find_preset("wan2.2-ti2v-5b");
  const auto advice = [&](std::int64_t frames, std::int64_t height, std::int64_t width) {
    const auto e = test::error_of([&] { latent_size(c, frames, height, width); });
    if (!e) return std::string("no error");
    EXPECT_EQ(e->code(), ErrorCode::usage);
    std::string text;
    for (const Advice& a : e->advice()) text += a.change + ";";
    return text;
  };
  EXPECT_EQ(advice(80, 704, 1280), "--frames 77;--frames 81;");
  EXPECT_EQ(advice(3, 704, 1280), "--frames 1;--frames 5;");
  EXPECT_EQ(advice(81, 720, 1280), "--height 704;--height 736;");
  EXPECT_EQ(advice(81, 704, 1290), "--width 1280;--width 1312;");
  EXPECT_EQ(advice(81, 704, 16), "--width 32;--width 64;");
  for (const std::int64_t none : {0, -7}) {
    EXPECT_FAILS(latent_size(c, none, 704, 1280), ErrorCode::usage, "4n + 1");
    EXPECT_FAILS(latent_size(c, 81, none, 1280), ErrorCode::usage, "--height");
  }
  EXPECT_FAILS(latent_size(c, 4 * 1024 + 1, 704, 1280), ErrorCode::usage, "1024");
  EXPECT_EQ(latent_size(c, 4 * 1023 + 1, 32, 32).tokens(), 1024);
}

}  // namespace
}  // namespace ballast::wan
