// Models whose files changed or hold NaN: named, and nothing is made of them.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>

#include "io/safetensors_writer.h"
#include "tests/e2e/training_process.h"
#include "tests/support/tiny_text_model.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using support::TinyTraining;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Damage {
  std::string path, tensor;
};

// A NaN in the middle of the largest tensor of the model, in place.
Damage put_nan(const std::string& model) {
  Damage done;
  std::uint64_t at = 0;
  std::string bytes;
  {
    const WeightFiles file = WeightFiles::open(model);
    const WeightTensor& t =
        *std::ranges::max_element(file.tensors(), {}, [](const auto& x) { return x.entry->bytes; });
    const float nan = std::nanf("");
    bytes.resize(size_of(file.dtype(t)));
    convert(&nan, DType::f32, bytes.data(), file.dtype(t), 1);
    done = {file.file(t).path(), std::string(t.entry->name)};
    at = t.entry->offset + t.entry->bytes / 2 / bytes.size() * bytes.size();
  }
  std::fstream f(done.path, std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(static_cast<std::streamoff>(at));
  f << bytes;
  return done;
}

auto names(const Damage& d) {
  return AllOf(HasSubstr(d.path), HasSubstr(d.tensor), HasSubstr("holds NaN or infinity"));
}

TEST(NanInTheModel, IsNamedByTrainInspectAndConvert) {
  TinyTraining run;
  run.add_clips(2, {4, 1, 4, 4});
  const Damage damage = put_nan(run.model_path());
  const Finished trained = train({run.write_config()});
  EXPECT_EQ(trained.exit_code, 4) << trained.err;
  EXPECT_THAT(trained.err, AllOf(names(damage), Not(HasSubstr("learning rate"))));

  const Finished inspected = run_ballast({"inspect", run.model_path()});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, AllOf(HasSubstr("problems (1)"),
                                   HasSubstr(damage.tensor + " holds NaN or infinity")));

  const Finished converted = run_ballast(
      {"convert", "model", run.model_path(), run.path("copy.safetensors"), "--dtype", "bf16"});
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_THAT(converted.err, HasSubstr("\"" + damage.tensor + "\" holds NaN or infinity"));
}

TEST(NanInTheModel, IsNamedBySampleWhateverThePolicy) {
  const TempDir dir;
  const support::TinyCheckpoint model(support::trainable_config(), DType::f32, "low");
  const std::string path = dir.path("tiny.safetensors");
  fs::copy_file(model.path(), path);
  const std::vector<float> values = support::normal_values("cond", 3 * 8, 1);
  SafetensorsWriter writer;
  writer.add("embeddings", DType::f32, {3, 8}, std::as_bytes(std::span(values)));
  writer.write(dir.path("cond.safetensors"));
  const Damage damage = put_nan(path);
  for (const std::string policy : {"resident", "stream1", "matrix-streaming"}) {
    const Finished f = run_ballast({"sample",
                                    "--model",
                                    path,
                                    "--cond",
                                    dir.path("cond.safetensors"),
                                    "--output",
                                    dir.path("a.safetensors"),
                                    "--device",
                                    "cpu",
                                    "--steps",
                                    "2",
                                    "--frames",
                                    "5",
                                    "--height",
                                    "32",
                                    "--width",
                                    "48",
                                    "--guidance",
                                    "1",
                                    "--policy",
                                    policy});
    EXPECT_EQ(f.exit_code, 4) << policy << ": " << f.err;
    EXPECT_THAT(f.err, names(damage));
    EXPECT_FALSE(fs::exists(dir.path("a.safetensors")));
  }
}

TEST(NanInTheModel, IsNamedByGenerate) {
  const TempDir dir;
  const std::string model = support::write_text_model(dir, "model");
  const Damage damage = put_nan(model);
  const Finished f =
      run_ballast({"generate", "--device", "cpu", "--max-new-tokens", "6", model, "count to five"});
  EXPECT_EQ(f.exit_code, 4) << f.err;
  EXPECT_THAT(f.err, names(damage));
}

TEST(ChangedModel, WrittenToWhileItStreamsEndsTheRunWithItsName) {
  TinyTraining run;
  run.add_clips(2, {4, 1, 4, 4});
  const std::string config = run.write_config("epochs = 100000");
  TrainingProcess process({config, "--policy", "stream1", "--verify-weights", "off"});
  ASSERT_TRUE(process.wait_for([&] { return steps_logged(run.path("out")) > 2; })) << process.err();
  const timespec now[] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW}, {.tv_sec = 0, .tv_nsec = UTIME_NOW}};
  ASSERT_EQ(::utimensat(AT_FDCWD, run.model_path().c_str(), now, 0), 0);
  const Finished f = process.finish();
  EXPECT_EQ(f.exit_code, 4) << f.err;
  EXPECT_THAT(f.err, HasSubstr(run.model_path() + ": changed while it was in use"));
}

TEST(VerifyWeights, IsAFlagOfEveryCommandThatStreams) {
  TinyTraining run;
  run.add_clips(2, {4, 1, 4, 4});
  for (const std::string how : {"all", "sampled", "off"}) {
    const Finished f = train({run.write_config("epochs = 1"), "--policy", "stream1", "--output_dir",
                              run.path(how), "--verify-weights", how});
    EXPECT_EQ(f.exit_code, 0) << f.err;
  }
  const Finished slip = train({run.write_config(), "--verify-weights", "al"});
  EXPECT_EQ(slip.exit_code, 2) << slip.err;
  EXPECT_THAT(slip.err, HasSubstr("one of sampled, all, off (all?)"));
  for (const char* const command : {"sample", "generate", "distill"}) {
    const Finished help = run_ballast({command, "--help"});
    EXPECT_THAT(help.out, ::testing::ContainsRegex("verify[-_]weights")) << command;
  }
  EXPECT_THAT(run_ballast({"train", "--help-all"}).out, HasSubstr("verify_weights"));
}

}  // namespace
}  // namespace ballast::test
