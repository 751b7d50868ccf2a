#include <gmock/gmock.h>

#include <cmath>

#include "core/convert.h"
#include "tests/ballast/small_model.h"
#include "tests/c_api/c_api_support.h"

namespace ballast::c_tests {
namespace {

using support::kSmallLatent;
using support::SmallModel;
using testing::HasSubstr;

class CModel : public testing::Test {
 protected:
  ballast_model* open() {
    ballast_model* m = nullptr;
    EXPECT_EQ(ballast_model_open(small_.path().c_str(), &m, nullptr), 0);
    set(m, R"({"threads": 2, "training": {"rank": 4, "learning_rate": 1e-2, "seed": 5},
               "batches": [[[2, 8, 8], [2, 8, 8]]]})");
    return m;
  }
  static void set(ballast_model* m, const std::string& json) {
    const Answer a = tell([&](char** err) { return ballast_model_settings(m, json.c_str(), err); });
    EXPECT_EQ(a.code, 0) << a.error.dump();
  }
  static Answer settings(ballast_model* m, const std::string& json) {
    return tell([&](char** err) { return ballast_model_settings(m, json.c_str(), err); });
  }

  // The arrays of the C++ library's samples.
  struct Sample {
    Array latent, conditioning, text;
    DLTensor tensors[3] = {};
    ballast_sample sample = {};
  };
  std::vector<Sample> samples(std::size_t count, int first) {
    const wan::Config& c = small_.config();
    const auto [f, h, w] = kSmallLatent;
    std::vector<Sample> all;
    for (const v1::Sample& s : small_.samples(count, first)) {
      const auto values = [](std::span<const float> v) {
        return std::vector<float>(v.begin(), v.end());
      };
      all.push_back({.latent = Array({c.out_dim, f, h, w}, values(s.latent)),
                     .conditioning = Array({c.conditioning(), f, h, w}, values(s.conditioning)),
                     .text = Array({3, c.text_dim}, values(s.text))});
    }
    for (Sample& s : all) {
      s.tensors[0] = s.latent.tensor();
      s.tensors[1] = s.conditioning.tensor();
      s.tensors[2] = s.text.tensor();
      s.sample = {.struct_size = sizeof(ballast_sample),
                  .latent = &s.tensors[0],
                  .conditioning = c.conditioning() > 0 ? &s.tensors[1] : nullptr,
                  .text = &s.tensors[2],
                  .t = NAN};
    }
    return all;
  }
  static Answer step(ballast_model* m, const std::vector<Sample>& from) {
    std::vector<ballast_sample> plain;
    for (const Sample& s : from) plain.push_back(s.sample);
    return ask([&](char** result, char** err) {
      return ballast_model_step(m, plain.data(), plain.size(), result, err);
    });
  }

  SmallModel small_;
};

TEST_F(CModel, TrainsAndPredictsLikeTheLibrary) {
  const test::TempDir dir;
  v1::Model model = small_.open(2);
  ballast_model* const c = open();
  for (int i = 0; i < 3; ++i) {
    const v1::StepResult expected = model.step(small_.samples(2, 2 * i));
    const Answer found = step(c, samples(2, 2 * i));
    ASSERT_EQ(found.code, 0) << found.error.dump();
    const Json result = Json::parse(found.text);
    EXPECT_EQ(result.at("step"), expected.step);
    EXPECT_EQ(result.at("loss").get<double>(), expected.loss);
    EXPECT_EQ(result.at("grad_norm").get<double>(), expected.grad_norm);
    if (i == 1) set(c, R"({"gradient_checkpointing": true, "offloading": true})");
  }
  model.save_lora(dir.path("a.safetensors"), v1::LoraFormat::peft, v1::SaveType::f32);
  const std::string what = R"({"what": "lora", "format": "peft", "dtype": "f32", "path": ")" +
                           dir.path("b.safetensors") + "\"}";
  EXPECT_EQ(ballast_model_save(c, what.c_str(), nullptr), 0);
  EXPECT_TRUE(test::read_whole(dir.path("a.safetensors")) ==
              test::read_whole(dir.path("b.safetensors")));

  std::vector<Sample> one = samples(1, 9);
  std::vector<float> expected(one[0].latent.values().size());
  model.predict(small_.samples(1, 9)[0], 250, expected);
  Array out = one[0].latent;
  DLTensor to = out.tensor();
  ASSERT_EQ(ballast_model_predict(c, &one[0].sample, 250, &to, nullptr), 0);
  EXPECT_EQ(out.values(), expected);
  ballast_model_close(c);
}

TEST_F(CModel, TakesHalfPrecisionInPlace) {
  ballast_model* const c = open();
  std::vector<Sample> one = samples(1, 3);
  // Values that bf16 holds exactly give the same bits whichever type they come in.
  const std::size_t n = one[0].latent.values().size();
  std::vector<float> exact(n);
  for (std::size_t i = 0; i < n; ++i) exact[i] = static_cast<float>(i % 64) / 32 - 1;
  std::vector<std::uint16_t> narrow(n), out_narrow(n);
  convert(exact.data(), DType::f32, narrow.data(), DType::bf16, static_cast<std::int64_t>(n));
  Array wide({one[0].tensors[0].shape, one[0].tensors[0].shape + 4}, exact), out = wide;
  DLTensor latent = wide.tensor(), to = out.tensor();
  one[0].sample.latent = &latent;
  ASSERT_EQ(ballast_model_predict(c, &one[0].sample, 500, &to, nullptr), 0);
  latent.data = narrow.data();
  latent.dtype = {.code = 4, .bits = 16, .lanes = 1};
  DLTensor to_narrow = to;
  to_narrow.data = out_narrow.data();
  to_narrow.dtype = latent.dtype;
  ASSERT_EQ(ballast_model_predict(c, &one[0].sample, 500, &to_narrow, nullptr), 0);
  std::vector<std::uint16_t> expected(n);
  convert(out.values().data(), DType::f32, expected.data(), DType::bf16,
          static_cast<std::int64_t>(n));
  EXPECT_EQ(out_narrow, expected);
  ballast_model_close(c);
}

TEST_F(CModel, RefusesArraysThatItWouldHaveToCopy) {
  ballast_model* const c = open();
  std::vector<Sample> one = samples(1, 0);
  Array out = one[0].latent;
  const auto predict = [&](DLTensor latent, DLTensor to) {
    ballast_sample s = one[0].sample;
    s.latent = &latent;
    return tell([&](char** err) { return ballast_model_predict(c, &s, 500, &to, err); });
  };
  const DLTensor good = one[0].latent.tensor(), to = out.tensor();
  EXPECT_EQ(predict(good, to).code, 0);
  const auto refused = [&](const DLTensor& latent, const DLTensor& into, const char* why) {
    const Answer a = predict(latent, into);
    EXPECT_EQ(a.code, 4);
    EXPECT_THAT(a.error.value("message", ""), HasSubstr(why));
  };
  DLTensor t = good;
  t.dtype.bits = 64;
  refused(t, to, "float64");
  refused(good, t, "float64");
  t = good;
  t.dtype = {.code = 0, .bits = 32, .lanes = 1};
  refused(t, to, "int32");
  t = good;
  t.device.device_type = 2;
  refused(t, to, "memory of the CPU");
  std::int64_t strides[] = {1, 16, 256, 2048};
  t = good;
  t.strides = strides;
  refused(t, to, "rows behind rows");
  t = good;
  t.ndim = 3;
  refused(t, to, "3 dimensions");
  std::int64_t huge[] = {1 << 30, 1 << 30, 1 << 30, 1 << 30};
  t = good;
  t.shape = huge;
  refused(t, to, "sizes that memory can hold");
  std::int64_t negative[] = {-1, 2, 8, 8};
  t.shape = negative;
  refused(t, to, "sizes that memory can hold");
  t = good;
  t.data = nullptr;
  refused(t, to, "no data");
  std::int64_t other[] = {good.shape[0], 1, 8, 8};
  t = to;
  t.shape = other;
  refused(good, t, "expected [");
  ballast_sample s = one[0].sample;
  s.struct_size = 4;
  DLTensor into = to;
  EXPECT_EQ(ballast_model_predict(c, &s, 500, &into, nullptr), 2);
  ballast_model_close(c);
}

TEST_F(CModel, NamesTheSettingThatIsWrong) {
  ballast_model* const c = open();
  const auto wrong = [&](const std::string& json, const char* why) {
    const Answer a = settings(c, json);
    EXPECT_EQ(a.code, 2) << json;
    EXPECT_THAT(a.error.value("message", ""), HasSubstr(why)) << json;
  };
  wrong("{", "no JSON");
  wrong("[]", "no JSON object");
  wrong(R"({"offloadng": true})", "did you mean offloading");
  wrong(R"({"gpu": "lots"})", "gpu: expected bytes");
  wrong(R"({"ram": "24"})", "ram: expected bytes");
  wrong(R"({"ram": -1})", "ram: expected bytes");
  wrong(R"({"offloading": "yes"})", "offloading: expected true or false");
  wrong(R"({"device": "tpu"})", "device: one of");
  wrong(R"({"training": {"rnk": 4}})", "did you mean rank");
  wrong(R"({"training": {"rank": 0}})", "rank");
  wrong(R"({"training": {"method": "lroa"}})", "method: one of");
  wrong(R"({"batches": [[[2, 8]]]})", "[frames, height, width]");
  wrong(R"({"threads": -3})", "threads");
  ballast_model_close(c);
}

TEST_F(CModel, PlansAndRefusesWithAdvice) {
  ballast_model* const c = open();
  set(c, R"({"ram": "1GB"})");
  const auto plan = [&] {
    return ask([&](char** json, char** err) { return ballast_model_plan(c, json, err); });
  };
  const Json fits = Json::parse(plan().text);
  EXPECT_TRUE(fits.at("fits"));
  EXPECT_EQ(fits.at("allowed").at("ram"), 1'000'000'000);
  EXPECT_GT(fits.at("planned").at("ram"), 0);
  EXPECT_TRUE(fits.at("plan").at("fits"));
  set(c, R"({"ram": 1000000})");
  const Json refused = Json::parse(plan().text);
  EXPECT_FALSE(refused.at("fits"));
  EXPECT_FALSE(refused.at("advice").empty());
  const Answer started = tell([&](char** err) { return ballast_model_start(c, err); });
  EXPECT_EQ(started.code, 3);
  EXPECT_FALSE(started.error.at("advice").empty());
  set(c, R"({"ram": null})");
  EXPECT_EQ(ballast_model_start(c, nullptr), 0);
  ballast_model_close(c);
}

TEST_F(CModel, GoesOnFromACheckpoint) {
  const test::TempDir dir;
  ballast_model* a = open();
  step(a, samples(2, 0));
  const std::string what = R"({"what": "checkpoint", "path": ")" + dir.path() + "\"}";
  EXPECT_EQ(ballast_model_save(a, what.c_str(), nullptr), 0);
  const Answer expected = step(a, samples(2, 2));
  ballast_model_close(a);
  ballast_model* b = open();
  int found = 0;
  EXPECT_EQ(ballast_model_load_checkpoint(b, dir.path().c_str(), &found, nullptr), 0);
  EXPECT_EQ(found, 1);
  const Json one = Json::parse(expected.text), two = Json::parse(step(b, samples(2, 2)).text);
  EXPECT_EQ(one.at("loss"), two.at("loss"));
  EXPECT_EQ(two.at("step"), 2);
  EXPECT_EQ(ballast_model_load_checkpoint(b, dir.path("empty").c_str(), &found, nullptr), 0);
  EXPECT_EQ(found, 0);
  ballast_model_close(b);
}

}  // namespace
}  // namespace ballast::c_tests
