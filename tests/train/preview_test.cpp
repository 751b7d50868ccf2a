// Clips that a run draws of itself: phases of its plan that change nothing of the training.

#include <gmock/gmock.h>
#include <signal.h>

#include "core/to_size.h"
#include "infer/clip_file.h"
#include "infer/first_frame.h"
#include "infer/model_folder.h"
#include "infer/video_sampler.h"
#include "models/wan/lora_read.h"
#include "models/wan/weights.h"
#include "report/html_report.h"
#include "tests/report/event_reader.h"
#include "tests/support/errors.h"
#include "tests/support/test_device.h"
#include "tests/support/tiny_parts.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/run/run_plan.h"
#include "train/run/trained_model.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;
using support::RunTrace;
using support::trace_of;
using support::train_in_process;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr const char* kPreview =
    "[preview]\nevery_n_steps = 2\nat_first = true\nsteps = 2\nframes = 5\nwidth = 32\n"
    "height = 48\nguidance = 3\nseed = 7\nprompts = ['a clip', 'b --f 1 --l 1 --w 48']\n";

constexpr const char* kPicture =
    "[preview]\nevery_n_steps = 2\nat_first = true\nsteps = 2\nframes = 1\nwidth = 32\n"
    "height = 48\nguidance = 3\nseed = 7\nprompts = ['a clip']\n";

class Preview : public ::testing::Test {
 protected:
  explicit Preview(const wan::Config& model = support::trainable_config(1)) : training_(model) {
    training_.add_clips(4, {model.out_dim, 1, 4, 4});
    support::write_parts(parts_, training_.config());
  }
  std::string config(const std::string& preview, const std::string& extra = "epochs = 2\n",
                     const std::string& name = "run.toml") {
    return training_.write_config(
        "gradient_accumulation_steps = 2\nsave_dtype = 'float32'\n" + extra,
        support::parts_keys(parts_) + "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n" +
            dropout_ + "[optimizer]\ntype = 'adamw'\nlr = 1e-2\n" + preview,
        name);
  }
  static PreparedRun prepared(const std::string& path) {
    return prepare_run(read_config(path), support::small_machine(), Purpose::train);
  }
  static fit::PlannedRun planned(const fit::Request& request) {
    auto outcome = fit::find_plan(request);
    return std::move(std::get<fit::PlannedRun>(outcome));
  }
  static std::vector<std::string> drawn_in(const std::string& folder) {
    std::vector<std::string> names;
    if (!fs::exists(folder + "/previews")) return names;
    for (const auto& e : fs::directory_iterator(folder + "/previews")) {
      names.push_back(e.path().stem().string());
    }
    std::ranges::sort(names);
    return names;
  }

  std::string dropout_ = "dropout = 0.2\n";
  test::TempDir parts_;
  support::TinyTraining training_;
};

std::vector<std::string> program_names(const fit::PlannedRun& run) {
  std::vector<std::string> names;
  for (const ProgramUse& p : run.plan.programs) names.push_back(p.name);
  return names;
}

TEST_F(Preview, IsAPhaseOfThePlanThatKeepsNothingBetweenSteps) {
  const PreparedRun run = prepared(config(kPreview));
  const fit::PlannedRun with = planned(run.request);
  const std::vector<std::string> names = program_names(with);
  for (const char* name : {"predict", "predict.1", "preview.load", "preview.decode.start",
                           "preview.decode.next", "preview.1.load", "preview.1.decode.start"}) {
    EXPECT_THAT(names, Contains(name));
  }
  fit::Request without = run.request;
  wan::job_of(without).auxiliary_model = {};
  without.policy = with.policy;
  const fit::PlannedRun alone = planned(without);
  EXPECT_EQ(with.plan.persistent, alone.plan.persistent);
  const std::string text =
      plan_table(title_of(run), view_of(run.request, with, &run), {.details = true});
  EXPECT_THAT(text, HasSubstr("sampling"));
  EXPECT_THAT(text, HasSubstr("decoding"));
  EXPECT_THAT(text, HasSubstr("previews: 2 clips before the first step, every 2 steps"));
}

TEST_F(Preview, ReachesExactlyThePlannedMemory) {
  const std::string path = config(
      "[preview]\nat_first = true\nsteps = 1\nframes = 9\nwidth = 128\nheight = 128\nprompts = "
      "['a']\n",
      "epochs = 1\n");
  PreparedRun run = prepared(path);
  fit::PlannedRun plan = planned(run.request);
  Bytes step, preview;
  for (const ProgramUse& p : plan.plan.programs) {
    Bytes& most = p.name.starts_with("preview") || p.name.starts_with("predict") ? preview : step;
    most = std::max(most, p.tier(Tier::device).peak);
  }
  EXPECT_GT(preview, step);  // so that it decides the arena
  std::vector<StepRecord> steps;
  train(std::move(run), std::move(plan),
        {.command = "", .on_step = [&](const StepRecord& r) { steps.push_back(r); }});
  ASSERT_FALSE(steps.empty());
  // What a process has of a GPU is its context as well; GpuTraining.KeepsToItsPlan is about that.
  if (support::test_device() == Device::cpu) {
    EXPECT_EQ(steps.front().measured.device, steps.front().planned.device);
  }
  EXPECT_EQ(steps.front().measured.host, steps.front().planned.host);
}

TEST_F(Preview, ChangesNoBitOfTheTraining) {
  const RunTrace without = trace_of(config("", "epochs = 2\n", "without.toml"));
  const std::string path = config(kPreview);
  MemoryPolicy lean = *find_policy("stream1");
  lean.samples_per_pass = 1;
  for (const auto& [name, policy] :
       {std::pair("resident", *find_policy("resident")), std::pair("stream1", lean)}) {
    const TrainOutcome outcome = train_in_process(path, {name, policy});
    EXPECT_EQ(support::difference(without, support::read_trace(outcome.folder)), "") << name;
    EXPECT_THAT(drawn_in(outcome.folder),
                ::testing::ElementsAre("step000000_00", "step000000_01", "step000002_00",
                                       "step000002_01", "step000004_00", "step000004_01"));
  }
}

TEST_F(Preview, IsNamedInTheLogAndShownInTheReport) {
  const TrainOutcome outcome = train_in_process(config(kPreview, "epochs = 1\n"));
  const RunHistory history = read_run_log(outcome.folder + "/" + std::string(kRunLogFile));
  std::vector<std::string> texts;
  for (const EventRecord& e : history.events) {
    if (e.event == "preview") texts.push_back(e.text);
  }
  ASSERT_EQ(texts.size(), 4u);
  EXPECT_THAT(texts[0],
              ::testing::AllOf(HasSubstr("previews/step000000_00."), HasSubstr(": a clip")));
  EXPECT_THAT(html_report(history), HasSubstr("src=\"previews/step000002_01."));
}

TEST_F(Preview, ARunInTwoPartsWithThemEndsWhereOneWithoutThemEnds) {
  const RunTrace whole = trace_of(config("", "epochs = 2\n", "without.toml"));
  const TrainOutcome first = train_in_process(config(kPreview, "epochs = 2\nmax_steps = 2\n"));
  const RunTrace second = trace_of(
      config(kPreview), {"resumed", std::nullopt, 1, {{"resume", {first.folder}, "--resume"}}});
  EXPECT_EQ(whole.steps, second.steps);
  for (const auto& [name, bytes] : whole.files) EXPECT_EQ(second.files.at(name), bytes) << name;
}

TEST_F(Preview, ASignalEndsItBeforeItsNextStep) {
  PreparedRun run =
      prepared(config("[preview]\nevery_n_steps = 1\nsteps = 1000\nframes = 9\nprompts = ['a']\n"));
  fit::PlannedRun plan = planned(run.request);
  const TrainOutcome outcome =
      train(std::move(run), std::move(plan),
            {.command = "", .on_step = [](const StepRecord&) { raise(SIGTERM); }});
  EXPECT_TRUE(outcome.stopped);
  EXPECT_EQ(outcome.steps, 1);
  EXPECT_THAT(drawn_in(outcome.folder), ::testing::IsEmpty());
}

TEST_F(Preview, IsRefusedWhereOnlyTheStepsFit) {
  const std::string large =
      "[preview]\nat_first = true\nframes = 9\nwidth = 256\nheight = 256\nprompts = ['a']\n";
  PreparedRun run = prepared(config(large));
  fit::Request without = run.request;
  wan::job_of(without).dit.predict_batches.clear();
  wan::job_of(without).auxiliary_model = {};
  const fit::PlannedRun alone = planned(without);
  run.request.budget.gpu = alone.needed(Tier::device);
  const auto outcome = fit::find_plan(run.request);
  const auto* refusal = std::get_if<Refusal>(&outcome);
  ASSERT_NE(refusal, nullptr);
  EXPECT_THAT(refusal->shortages.at(0).program,
              ::testing::AnyOf(::testing::StartsWith("predict"), ::testing::StartsWith("preview")));
  const std::vector<PlannedChange> changes =
      try_changes(run.request, *refusal, possible_changes(run, *refusal));
  std::vector<std::string> fitting;
  for (const PlannedChange& c : changes) {
    if (c.fits) fitting.push_back(c.text);
  }
  EXPECT_THAT(fitting, Contains("no [preview]"));
  // Whoever makes a change gets what was said of it.
  const std::vector<fit::Change> possible = possible_changes(run, *refusal);
  for (const PlannedChange& c : changes) {
    const auto change = std::ranges::find(possible, c.text, &fit::Change::text);
    if (!c.fits || change == possible.end()) continue;  // pairs
    fit::Request r = run.request;
    change->apply(r);
    const fit::PlannedRun again = planned(r);
    for (const Tier t : kTiers) {
      EXPECT_EQ(again.needed(t), c.needed[to_size(t)]) << c.text;
    }
    EXPECT_EQ(again.seconds_per_step(), c.step_seconds) << c.text;
  }
}

std::vector<std::vector<std::uint8_t>> frames_of(const std::string& path) {
  MediaReader reader = MediaReader::open(path);
  std::vector<std::vector<std::uint8_t>> all;
  for (std::vector<std::uint8_t> f(reader.frame_bytes()); reader.next(f);) all.push_back(f);
  return all;
}

// As `ballast sample` makes it of the saved file: other programs, planned by themselves. Adapters
// with dropout are products of their own, and sums round differently. An image: H.264 of few
// pixels is not the same bits every time.
TEST_F(Preview, ShowsWhatTheSavedAdapterDraws) {
  if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
  dropout_ = "";
  const TrainOutcome outcome = train_in_process(config(kPicture, "epochs = 1\n"));
  const wan::Config& model = training_.config();
  const WeightFiles file = WeightFiles::open(training_.model_path());
  const wan::LoraReader lora =
      wan::LoraReader::open(outcome.folder + "/epoch1/adapter_model.safetensors", &model);
  const RunTarget machine = support::small_machine();
  infer::VideoJob job;
  wan::job_of(job.request).dit.config = model;
  wan::job_of(job.request).experts = {weight_groups(model, file, wan::TensorMap(file))};
  job.request.backend = machine.backend;
  job.request.profile = machine.profile;
  wan::job_of(job.request).dit.precision = precision_on(machine.backend.device);
  job.request.budget = {.gpu = 1_GiB, .host = 1_GiB, .disk = 1_GiB};
  job.sampler.steps = 2;
  job.latent = latent_size(model, 1, 48, 32);
  job.guidance = {3, 3};
  PromptPart texts(parts_.path("t5.safetensors"), parts_.path("tokenizer"),
                   {"a clip", infer::kNegativePrompt}, model,
                   infer::TextEncoderOptions{.device = machine.backend.device, .threads = 1});
  const std::vector<std::vector<float>> states = texts.run();
  const auto clip = [&](const std::string& name) {
    auto outcome2 = fit::find_plan(fit_request(job));
    const std::vector<float> latent =
        infer::VideoSampler(job, std::move(std::get<fit::PlannedRun>(outcome2)))
            .run({.prompt = states[0], .negative = states[1], .seed = 7});
    infer::VideoDecoder decoder(
        parts_.path("vae.safetensors"),
        {.device = machine.backend.device,
         .dtype = machine.backend.device == Device::cuda ? DType::bf16 : DType::f32});
    const std::string path = parts_.path(name);
    infer::ClipWriter writer({.path = path, .single_image = true}, 1);
    decoder.decode(latent, 1, 6, 4, [&](const infer::DecodedFrames& f) { writer.add(f); });
    writer.finish();
    return frames_of(path);
  };
  const auto plain = clip("plain.png");
  job.loras = {{&lora, 1, -1}};
  const auto adapted = clip("adapted.png");
  ASSERT_EQ(adapted.size(), 1u);
  EXPECT_EQ(frames_of(outcome.folder + "/previews/step000002_00.png"), adapted);
  EXPECT_EQ(frames_of(outcome.folder + "/previews/step000000_00.png"), plain);
  EXPECT_NE(adapted, plain);
}

// What TensorBoard shows of the first clip before the first step.
RgbImage first_sample(const std::string& folder, const test::TempDir& dir) {
  for (const auto& e : fs::directory_iterator(folder)) {
    if (e.path().filename().string().find("tfevents") == std::string::npos) continue;
    for (const test::ReadEvent& event : test::read_events(test::read_whole(e.path().string()))) {
      for (const test::ReadValue& v : event.values) {
        if (event.step == 0 && v.tag == "samples/0") {
          return read_image(dir.write("sample.png", v.image));
        }
      }
    }
  }
  return {};
}

// 0: the image is the first frame of the latent (TI2V). 8: a mask and the latent of its clip are
// channels beside it (I2V).
class PreviewOfAPicture : public Preview, public ::testing::WithParamInterface<std::int64_t> {
 protected:
  PreviewOfAPicture()
      : Preview(GetParam() == 0 ? support::trainable_ti2v()
                                : support::trainable_config(1, GetParam())) {}
};

TEST_P(PreviewOfAPicture, IsTheClipThatSampleMakesOfIt) {
  if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
  RgbImage image = {.width = 40, .height = 60, .pixels = {}};
  for (int i = 0; i < 40 * 60 * 3; ++i) {
    image.pixels.push_back(static_cast<std::uint8_t>(i * 7 % 251));
  }
  write_png(training_.path("first.png"), image);
  const wan::Config& model = training_.config();
  const std::int64_t width = 4 * model.spatial_stride, height = 6 * model.spatial_stride;
  const TrainOutcome outcome = train_in_process(config(
      fmt::format("[preview]\nat_first = true\nsteps = 2\nframes = 5\nwidth = {}\nheight = {}\n"
                  "guidance = 1\nseed = 7\nimage = 'first.png'\nprompts = ['a clip']\n",
                  width, height),
      "epochs = 1\n"));
  const WeightFiles file = WeightFiles::open(training_.model_path());
  const RunTarget machine = support::small_machine();
  const bool gpu = machine.backend.device == Device::cuda;
  infer::VideoJob job;
  wan::job_of(job.request).dit.config = model;
  wan::job_of(job.request).experts = {weight_groups(model, file, wan::TensorMap(file))};
  job.request.backend = machine.backend;
  job.request.profile = machine.profile;
  wan::job_of(job.request).dit.precision = precision_on(machine.backend.device);
  job.request.budget = {.gpu = 1_GiB, .host = 1_GiB, .disk = 1_GiB};
  job.sampler.steps = 2;
  job.latent = latent_size(model, 5, height, width);
  job.guidance = {1, 1};
  job.first_frame = model.conditioning() == 0;
  const PromptPart text(parts_.path("t5.safetensors"), parts_.path("tokenizer"), {"a clip"}, model,
                        {.device = machine.backend.device, .threads = 1});
  const std::vector<std::vector<float>> states = text.run();
  const infer::VideoCodecOptions codec = {.device = machine.backend.device,
                                          .dtype = gpu ? DType::bf16 : DType::f32};
  infer::VideoEncoder encoder(parts_.path("vae.safetensors"), codec);
  const std::vector<float> encoded =
      infer::encode_first_frame(encoder, {image}, model, {.width = width, .height = height}, 5);
  const std::vector<float> channels =
      job.first_frame ? std::vector<float>() : infer::image_conditioning(job.latent, encoded);
  auto planned_job = fit::find_plan(fit_request(job));
  const std::vector<float> latent =
      infer::VideoSampler(job, std::move(std::get<fit::PlannedRun>(planned_job)))
          .run({.prompt = states[0],
                .conditioning = channels,
                .first_frame = job.first_frame ? std::span(encoded) : std::span<const float>(),
                .seed = 7});
  infer::VideoDecoder decoder(parts_.path("vae.safetensors"), codec);
  infer::ClipWriter writer({.path = parts_.path("expected.gif"), .thumbnails = 256}, 5);
  decoder.decode(latent, 2, 6, 4, [&](const infer::DecodedFrames& f) { writer.add(f); });
  const RgbImage expected = writer.thumbnail_sheet(), shown = first_sample(outcome.folder, parts_);
  ASSERT_EQ(shown.width, expected.width);
  EXPECT_EQ(shown.pixels, expected.pixels);
}

TEST_P(PreviewOfAPicture, IsAskedForWhereTheModelNeedsOne) {
  const std::string path = config("[preview]\nat_first = true\nprompts = ['a']\n");
  if (GetParam() == 0) {
    EXPECT_NO_THROW((void)prepared(path));
  } else {
    EXPECT_FAILS(prepared(path), ErrorCode::input, "makes a clip of an image, and none is named");
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, PreviewOfAPicture, ::testing::Values(0, 8),
                         [](const auto& of) { return of.param == 0 ? "FirstFrame" : "Channels"; });

TEST_F(Preview, IsDrawnByBothExperts) {
  const support::TinyCheckpoint low(training_.config(), DType::f32, "low."),
      high(training_.config(), DType::f32, "high.");
  for (const auto& [name, from] :
       {std::pair("low_noise_model", &low), {"high_noise_model", &high}}) {
    fs::create_directories(training_.path(std::string("two/") + name));
    fs::copy(from->path(), training_.path(std::string("two/") + name + "/model.safetensors"));
  }
  training_.use_model(training_.path("two"));
  const std::string both = "epochs = 2\nexperts = 'both'\n";
  const RunTrace without = trace_of(config("", both, "without.toml"));
  const TrainOutcome outcome =
      train_in_process(config("[preview]\nevery_n_steps = 1\nsteps = 3\nprompts = ['a']\n", both));
  EXPECT_EQ(support::difference(without, support::read_trace(outcome.folder)), "");
  EXPECT_EQ(drawn_in(outcome.folder).size(), 4u);
}

TEST_F(Preview, APictureIsRefusedWhereClipsAreMadeOfTextAlone) {
  const std::string table =
      config("[preview]\nat_first = true\nimage = '/a.png'\nprompts = ['a']\n");
  const int line =
      1 + static_cast<int>(std::ranges::count(
              test::read_whole(table).substr(0, test::read_whole(table).find("image =")), '\n'));
  EXPECT_FAILS(
      prepared(table), ErrorCode::input,
      fmt::format("{} line {}: preview.image: wan makes clips of text alone", table, line));
  const std::string prompts = parts_.write("prompts.txt", "a\nb --i /b.png\n");
  EXPECT_FAILS(
      prepared(config(fmt::format("[preview]\nat_first = true\nprompts = '{}'\n", prompts))),
      ErrorCode::input, prompts + " line 2: --i: wan makes clips of text alone");
}

TEST_F(Preview, SaysWhatIsMissing) {
  const std::string without_parts = training_.write_config(
      "epochs = 1\n", std::string("[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                                  "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n") +
                          kPreview);
  EXPECT_FAILS(prepared(without_parts), ErrorCode::input, "previews need the model's VAE");
  EXPECT_FAILS(prepared(config("[preview]\nat_first = true\nprompts = ['a --w 50']\n")),
               ErrorCode::usage, "needs a multiple of 16 pixels");
}

}  // namespace
}  // namespace ballast::train
