#include <gmock/gmock.h>

#include <cmath>

#include "tests/c_api/c_api_support.h"

namespace ballast::c_tests {
namespace {

using testing::HasSubstr;

const std::string kDemoModel = std::string(BALLAST_SOURCE_DIR) + "/examples/demo_model/model";

class CVae : public testing::Test {
 protected:
  void SetUp() override {
    const Answer a =
        tell([&](char** err) { return ballast_vae_open(kDemoModel.c_str(), nullptr, &vae_, err); });
    ASSERT_EQ(a.code, 0) << a.error.dump();
    info_ = Json::parse(
        ask([&](char** json, char** err) { return ballast_vae_info(vae_, json, err); }).text);
  }
  void TearDown() override { ballast_vae_close(vae_); }
  std::int64_t number(const char* name) const { return info_.at(name).get<std::int64_t>(); }

  ballast_vae* vae_ = nullptr;
  Json info_;
};

TEST_F(CVae, EncodesAndDecodesAClip) {
  const std::int64_t side = number("pixels_per_cell"), frames = 5, height = 4 * side,
                     width = 6 * side;
  std::vector<float> pixels;
  for (std::int64_t f = 0; f < frames; ++f) {
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        const bool inside = x >= width / 4 && x < width / 2 && y >= height / 4 && y < height / 2;
        pixels.insert(pixels.end(), {inside ? 0.8f : -0.8f, -0.8f, -0.8f});
      }
    }
  }
  Array video({frames, height, width, 3}, pixels), latent({number("z_dim"), 2, 4, 6}, {});
  DLTensor v = video.tensor(), z = latent.tensor();
  const Answer encoded = tell([&](char** err) { return ballast_vae_encode(vae_, &v, &z, err); });
  ASSERT_EQ(encoded.code, 0) << encoded.error.dump();
  Array decoded({frames, height, width, 3}, {});
  DLTensor to = decoded.tensor();
  const Answer back = tell([&](char** err) { return ballast_vae_decode(vae_, &z, &to, err); });
  ASSERT_EQ(back.code, 0) << back.error.dump();
  double error = 0;
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    ASSERT_LE(std::abs(decoded.values()[i]), 1.0f);
    error += std::abs(decoded.values()[i] - pixels[i]);
  }
  EXPECT_LT(error / static_cast<double>(pixels.size()), 0.25);  // black would be at 0.9 and more
}

TEST_F(CVae, RefusesShapesThatDoNotGoTogether) {
  const std::int64_t side = number("pixels_per_cell");
  const auto encode = [&](std::vector<std::int64_t> video, std::vector<std::int64_t> latent) {
    Array a(std::move(video), {}), b(std::move(latent), {});
    DLTensor from = a.tensor(), to = b.tensor();
    return tell([&](char** err) { return ballast_vae_encode(vae_, &from, &to, err); });
  };
  const Answer frames = encode({4, side, side, 3}, {number("z_dim"), 1, 1, 1});
  EXPECT_EQ(frames.code, 4);
  EXPECT_THAT(frames.error.value("message", ""), HasSubstr("4 n + 1 frames"));
  EXPECT_EQ(encode({5, side + 1, side, 3}, {number("z_dim"), 2, 1, 1}).code, 4);
  EXPECT_EQ(encode({5, side, side, 4}, {number("z_dim"), 2, 1, 1}).code, 4);
  EXPECT_EQ(encode({5, side, side, 3}, {number("z_dim"), 1, 1, 1}).code, 4);
}

TEST(CText, EncodesAPrompt) {
  ballast_text* text = nullptr;
  const Answer opened = tell([&](char** err) {
    return ballast_text_open(kDemoModel.c_str(), R"({"rows": 32})", &text, err);
  });
  ASSERT_EQ(opened.code, 0) << opened.error.dump();
  const Json info = Json::parse(
      ask([&](char** json, char** err) { return ballast_text_info(text, json, err); }).text);
  const std::int64_t width = info.at("width");
  Array states({32, width}, {}), other = states, again = states;
  const auto encode = [&](Array& to, const char* prompt) {
    DLTensor t = to.tensor();
    std::int64_t rows = 0;
    EXPECT_EQ(ballast_text_states(text, prompt, &t, &rows, nullptr), 0);
    return rows;
  };
  const std::int64_t rows = encode(states, "a red circle falls");
  EXPECT_GT(rows, 1);
  EXPECT_LT(rows, 32);
  for (std::size_t i = static_cast<std::size_t>(rows * width); i < states.values().size(); ++i) {
    ASSERT_EQ(states.values()[i], 0);
  }
  encode(other, "a blue square rises");
  EXPECT_NE(states.values(), other.values());
  encode(again, "a red circle falls");
  EXPECT_EQ(states.values(), again.values());
  Array wrong({16, width}, {});
  DLTensor t = wrong.tensor();
  EXPECT_EQ(ballast_text_states(text, "a", &t, nullptr, nullptr), 4);
  ballast_text_close(text);
}

}  // namespace
}  // namespace ballast::c_tests
