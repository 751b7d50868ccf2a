#include "app/golden/compare.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "io/safetensors_writer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

GoldenTensor f32(std::string name, const Shape& shape, std::vector<float> values) {
  return golden_tensor(std::move(name), shape, values);
}

GoldenTensor f64(std::string name, std::vector<double> values) {
  GoldenTensor t =
      golden_tensor(std::move(name), DType::f64, {static_cast<std::int64_t>(values.size())});
  std::memcpy(t.data.data(), values.data(), t.data.size());
  return t;
}

// A golden file with these results.
class Golden {
 public:
  explicit Golden(const std::vector<GoldenTensor>& stored, const std::string& stats = "{}",
                  const std::string& case_name = "dit_grad") {
    SafetensorsWriter writer({.metadata = {{"format", "ballast-golden-1"},
                                           {"case", case_name},
                                           {"config", "{}"},
                                           {"stats", stats}}});
    for (const GoldenTensor& t : stored) writer.add(t.name, t.dtype, t.shape, t.data);
    writer.write(path());
  }
  std::string path() const { return dir_.path("golden.safetensors"); }
  std::vector<Comparison> compare(const std::vector<GoldenTensor>& computed,
                                  std::optional<DType> dtype = DType::f32) const {
    return compare_results(GoldenFile::open(path()), computed, dtype);
  }
  bool passes(const GoldenTensor& computed, DType dtype = DType::f32) const {
    const auto all = compare({computed}, dtype);
    EXPECT_EQ(all.size(), 1u);
    return all.at(0).pass;
  }

 private:
  test::TempDir dir_;
};

constexpr const char* kStats = R"({"out.0": {"max": 4.0, "rms": 1.0, "err": 1e-6}})";

TEST(GoldenCompare, LimitIsTwentyTimesTheReferencesError) {
  const Golden golden({f32("out.0", {2}, {1, 4})}, kStats);
  EXPECT_TRUE(golden.passes(f32("out.0", {2}, {1.0000195f, 4})));
  EXPECT_FALSE(golden.passes(f32("out.0", {2}, {1.0000205f, 4})));
}

TEST(GoldenCompare, LimitIsAtLeastTwentyRoundingsOfTheLargestValue) {
  const Golden golden({f32("out.0", {1}, {1})},
                      R"({"out.0": {"max": 1000, "rms": 1, "err": 0}})");  // 1.2e-3
  EXPECT_TRUE(golden.passes(f32("out.0", {1}, {1.0011f})));
  EXPECT_FALSE(golden.passes(f32("out.0", {1}, {1.0013f})));
}

TEST(GoldenCompare, NanAndInfinityNeverPass) {
  const Golden golden({f32("out.0", {1}, {1})}, kStats);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EXPECT_FALSE(
        golden.passes(f32("out.0", {1}, {std::numeric_limits<float>::quiet_NaN()}), dtype));
    EXPECT_FALSE(golden.passes(f32("out.0", {1}, {std::numeric_limits<float>::infinity()}), dtype));
  }
}

TEST(GoldenCompare, FilesOfTransformersHaveLimitsByTheLargestValue) {
  const Golden golden({f32("out.encoder", {2}, {1, 4})}, "{}", "umt5_hf");  // 8e-4
  EXPECT_TRUE(golden.passes(f32("out.encoder", {2}, {1.0007f, 4})));
  EXPECT_FALSE(golden.passes(f32("out.encoder", {2}, {1.0009f, 4})));
  const Golden loss({f32("out.loss", {1}, {2})}, "{}", "t5_hf");
  EXPECT_TRUE(loss.passes(f32("out.loss", {1}, {2.00019f})));
  EXPECT_FALSE(loss.passes(f32("out.loss", {1}, {2.00021f})));
  const Golden losses({f32("out.adamw.losses", {1}, {2})}, "{}", "t5_hf");
  EXPECT_TRUE(losses.passes(f32("out.adamw.losses", {1}, {2.0019f})));
  EXPECT_FALSE(losses.passes(f32("out.adamw.losses", {1}, {2.0021f})));
}

TEST(GoldenCompare, TextModelsHaveRulesOfTheirOwn) {
  const Golden bias({f32("mid.block0.pos_bias_12x12", {1}, {1})}, "{}", "umt5_encoder");
  EXPECT_TRUE(bias.passes(f32("mid.block0.pos_bias_12x12", {1}, {1})));
  EXPECT_FALSE(bias.passes(f32("mid.block0.pos_bias_12x12", {1}, {std::nextafter(1.0f, 2.0f)})));
  const Golden states({f32("out.0.encoder", {1}, {1})}, "{}", "umt5_encoder");
  EXPECT_TRUE(states.passes(f32("out.0.encoder", {1}, {1.059f}), DType::bf16));
  EXPECT_FALSE(states.passes(f32("out.0.encoder", {1}, {1.061f}), DType::bf16));
  const Golden tokens({golden_tensor("out.greedy", DType::i64, {1}), f32("out.logits", {1}, {1})},
                      "{}", "t5_hf");
  GoldenTensor other = golden_tensor("out.greedy", DType::i64, {1});
  *other.view().as<std::int64_t>() = 1;
  const std::vector<GoldenTensor> computed = {other, f32("out.logits", {1}, {1})};
  const auto f32_rows = tokens.compare(computed);
  ASSERT_EQ(f32_rows.size(), 2u);
  EXPECT_FALSE(f32_rows[0].pass && f32_rows[1].pass);
  EXPECT_EQ(tokens.compare(computed, DType::bf16).size(), 1u);
}

TEST(GoldenCompare, PaddingRowsDoNotCountAndOthersDo) {
  const Golden golden({f32("mid.x", {1, 3, 2}, {1, 2, 3, 4, 5, 6})},
                      R"({"mid.x": {"max": 6, "rms": 1, "err": 1e-6}})");
  GoldenTensor ours = f32("mid.x", {1, 3, 2}, {1, 2, 3, 4, 0, 0});
  EXPECT_FALSE(golden.passes(ours));
  ours.counts = {true, true, false};
  EXPECT_TRUE(golden.passes(ours));
  ours.counts = {true, false, true};
  EXPECT_FALSE(golden.passes(ours));
}

TEST(GoldenCompare, OtherShapeOrDtypeIsAMiss) {
  const Golden golden({f32("out.0", {2, 1}, {1, 4})}, kStats);
  EXPECT_FALSE(golden.passes(f32("out.0", {1, 2}, {1, 4})));
  EXPECT_FALSE(golden.passes(f64("out.0", {1, 4})));
}

TEST(GoldenCompare, MissingResultIsAMissAndSurplusOnesAreIgnored) {
  const Golden golden({f32("out.0", {1}, {1}), f32("in.x", {1}, {1})}, kStats);
  const auto all = golden.compare({f32("out.1", {1}, {1})});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_FALSE(all[0].pass);
  EXPECT_EQ(all[0].tensor, "out.0");
  EXPECT_THAT(all[0].detail, HasSubstr("not recomputed"));
}

TEST(GoldenCompare, BaseOutputHasTheLimitOfTheOutput) {
  const Golden golden({f32("out.base.0", {1}, {1})}, kStats);
  EXPECT_TRUE(golden.passes(f32("out.base.0", {1}, {1.00001f})));
  EXPECT_FALSE(golden.passes(f32("out.base.0", {1}, {1.0001f})));
}

TEST(GoldenCompare, ResultWithoutALimitIsAnInputError) {
  const Golden golden({f32("out.7", {1}, {1})}, kStats);
  EXPECT_FAILS(golden.compare({f32("out.7", {1}, {1})}), ErrorCode::input, "out.7");
}

TEST(GoldenCompare, TablesAreJudgedByThePrecisionTheyAreHeldIn) {
  const Golden golden({f64("mid.rope_cos", {0.1, 1})});
  EXPECT_TRUE(golden.passes(f64("mid.rope_cos", {double{0.1f}, 1})));  // f32: 1e-6
  EXPECT_FALSE(golden.passes(f64("mid.rope_cos", {double{0.100002f}, 1})));
  EXPECT_TRUE(golden.passes(f64("mid.rope_cos", {0.1 + 9e-10, 1})));
  EXPECT_FALSE(golden.passes(f64("mid.rope_cos", {0.1 + 2e-9, 1})));
}

TEST(GoldenCompare, AdamWLossesAreRelativeAndWeightsByNormAndElement) {
  const Golden losses({f32("out.adamw.losses", {2}, {2, 1})});
  EXPECT_TRUE(losses.passes(f32("out.adamw.losses", {2}, {2.000018f, 1})));
  EXPECT_FALSE(losses.passes(f32("out.adamw.losses", {2}, {2, 1.000012f})));

  const std::vector<float> stored(10000, 1.0f);
  const Golden weights({f32("out.adamw.w", {10000}, stored)});
  std::vector<float> ours = stored;
  ours[7] += 0.0009f;  // norm 100: 9e-6 relative
  EXPECT_TRUE(weights.passes(f32("out.adamw.w", {10000}, ours)));
  ours[7] += 0.0002f;  // one element beyond 1e-3
  EXPECT_FALSE(weights.passes(f32("out.adamw.w", {10000}, ours)));
  ours.assign(10000, 1.0002f);  // every element within 1e-3, norm beyond 1e-4
  EXPECT_FALSE(weights.passes(f32("out.adamw.w", {10000}, ours)));
}

TEST(GoldenCompare, IntegersAreExact) {
  GoldenTensor lens = golden_tensor("mid.seq_lens", DType::i64, {2});
  const Golden golden({lens});
  EXPECT_TRUE(golden.passes(lens));
  lens.data[8] = std::byte{1};
  EXPECT_FALSE(golden.passes(lens));
}

TEST(GoldenCompare, Bf16OutputsHaveTwoLimits) {
  const std::vector<float> stored(10000, 1.0f);
  const Golden golden({f32("out.0", {10000}, stored)}, kStats);
  std::vector<float> ours(10000, 1.014f);
  EXPECT_TRUE(golden.passes(f32("out.0", {10000}, ours), DType::bf16));
  ours.assign(10000, 1.016f);  // relative L2 beyond 0.015
  EXPECT_FALSE(golden.passes(f32("out.0", {10000}, ours), DType::bf16));
  ours = stored;
  ours[3] = 1.07f;  // one element beyond 0.06
  EXPECT_FALSE(golden.passes(f32("out.0", {10000}, ours), DType::bf16));
}

TEST(GoldenCompare, Bf16LossIsAbsoluteAndIntermediatesAreLeftOut) {
  const Golden golden({f32("out.loss", {}, {2.5f}), f32("mid.x", {1}, {1})});
  EXPECT_TRUE(golden.passes(f32("out.loss", {}, {2.509f}), DType::bf16));
  EXPECT_FALSE(golden.passes(f32("out.loss", {}, {2.511f}), DType::bf16));
}

TEST(GoldenCompare, Bf16GradientsHaveALimitEachAndOneInTheMedian) {
  const Golden golden({f32("grad.a", {1}, {1}), f32("grad.b", {1}, {1}), f32("grad.c", {1}, {1})});
  const auto passes = [&](float a, float b, float c) {
    const auto all = golden.compare(
        {f32("grad.a", {1}, {a}), f32("grad.b", {1}, {b}), f32("grad.c", {1}, {c})}, DType::bf16);
    EXPECT_EQ(all.size(), 4u);
    EXPECT_EQ(all.back().measure, "median rel L2");
    return std::all_of(all.begin(), all.end(), [](const auto& r) { return r.pass; });
  };
  EXPECT_TRUE(passes(1.05f, 1.01f, 1.0f));
  EXPECT_FALSE(passes(1.07f, 1.0f, 1.0f));   // one beyond 0.06
  EXPECT_FALSE(passes(1.05f, 1.03f, 1.0f));  // median beyond 0.02
}

TEST(GoldenCompare, WithoutALimitErrorsAreShownAndOnlyWhatIsNoNumberMisses) {
  const Golden golden({f32("out.0", {2}, {3, 4}), f32("out.1", {1}, {2}), f32("mid.x", {1}, {1})});
  auto all = golden.compare({f32("out.0", {2}, {3, 5}), f32("out.1", {1}, {3})}, std::nullopt);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_DOUBLE_EQ(all[0].error, 0.2);
  EXPECT_TRUE(all[0].pass && all[1].pass);
  EXPECT_TRUE(std::isinf(all[0].limit));
  EXPECT_EQ(worst(all)->tensor, "out.1");
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  all = golden.compare({f32("out.0", {2}, {3, kNan})}, std::nullopt);
  EXPECT_FALSE(all[0].pass);
  EXPECT_FALSE(all[1].pass);  // missing
}

TEST(GoldenCompare, WorstIsTheOneNearestToItsLimit) {
  const std::vector<Comparison> all = {
      {.tensor = "a", .measure = "abs", .error = 1, .limit = 10, .pass = true},
      {.tensor = "b", .measure = "abs", .error = 0.5, .limit = 1, .pass = true},
      {.tensor = "c", .measure = "bits", .error = 0, .limit = 0, .pass = true},
  };
  EXPECT_EQ(worst(all)->tensor, "b");
  EXPECT_EQ(worst({}), nullptr);
}

TEST(GoldenFile, RefusesDamagedStats) {
  for (const char* stats : {"[]", "{", R"({"out.0": 1})", R"({"out.0": {"max": 1, "rms": 1}})",
                            R"({"out.0": {"max": -1, "rms": 1, "err": 1}})",
                            R"({"out.0": {"max": 1e999, "rms": 1, "err": 1}})"}) {
    const Golden golden({f32("out.0", {1}, {1})}, stats);
    EXPECT_FAILS(GoldenFile::open(golden.path()), ErrorCode::input, "golden.stats");
  }
}

TEST(GoldenFile, HandsOutInputsButNotResultsForRecomputing) {
  const Golden golden({f32("out.0", {1}, {1}), f32("in.x", {1}, {2})}, kStats);
  const GoldenFile file = GoldenFile::open(golden.path());
  EXPECT_EQ(*file.load("in.x").view().as<float>(), 2.0f);
  EXPECT_FAILS(file.load("out.0"), ErrorCode::internal, "a result");
  EXPECT_FAILS(file.load("in.y"), ErrorCode::input, "in.y");
  EXPECT_FAILS(file.load("in.x", DType::f32, {2}), ErrorCode::input, "expected f32 [2]");
}

TEST(SameBits, LooksOnlyAtWhatCounts) {
  GoldenTensor a = f32("out.0", {2}, {1, 2}), b = f32("out.0", {2}, {1, 3});
  EXPECT_TRUE(same_bits(a, a));
  EXPECT_FALSE(same_bits(a, b));
  a.counts = b.counts = {true, false};
  EXPECT_TRUE(same_bits(a, b));
}

}  // namespace
}  // namespace ballast
