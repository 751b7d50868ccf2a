// Commands refuse a run that does not fit in one form, and whoever follows their advice gets
// what it says.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "core/to_size.h"
#include "data/latent_cache.h"
#include "io/media_reader.h"
#include "io/media_writer.h"
#include "io/safetensors_writer.h"
#include "models/student/params.h"
#include "models/student/student_files.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/applied_advice.h"
#include "tests/support/tiny_parts.h"
#include "tests/support/tiny_text_model.h"
#include "tests/support/tiny_training.h"

namespace ballast::test {
namespace {

using CommandWords = std::vector<std::string>;

struct AdviceLine {
  std::string change, effect;
  bool fits() const { return effect.starts_with("fits: "); }
};

// The numbered lines behind "what would help:"; each must tell what its plan needs.
std::vector<AdviceLine> read_advice_lines(const std::string& list) {
  static const std::regex planned("  ([0-9]+)\\. (.+?): ((fits|not enough alone): .+)");
  std::vector<AdviceLine> all;
  std::istringstream lines(std::regex_replace(list, std::regex("\n {5}"), " "));  // wrapped ones
  for (std::string line; std::getline(lines, line);) {
    std::smatch parts;
    if (!std::regex_match(line, parts, planned)) {
      ADD_FAILURE() << "advice that was not planned: " << line;
      continue;
    }
    EXPECT_EQ(parts[1], std::to_string(all.size() + 1));
    all.push_back({parts[2], parts[3]});
  }
  return all;
}

// The advice of a refusal; fails the test where stderr has another form.
std::vector<AdviceLine> read_refusal_form(const std::string& err) {
  static const std::string size = "[0-9.]+ [kMG]?B", more = "( {11}[^\n]+\n)*";
  // What a run says before it is refused precedes the first line.
  static const std::vector<std::string> form = {
      "(^|\n)ballast: does not fit: " + size + " more [^\n]+ needed\n",
      "^(does not fit: " + size + " more [^\n]+ needed\n)?",
      "^\nmemory +needed +allowed +short\n",
      "^((RAM|GPU|disk)[^\n]* +" + size + " +(no limit|" + size + ") +(-|" + size + ")\n)+\n",
      "^run        [^\n]+: [^\n]+\n" + more,
      "^(trains     [^\n]+\n" + more + ")?",
      "^policy     [^\n]+\n" + more,
      "^(most (GPU|RAM|disk) +[^\n]+\n" + more + ")+",
      "^(\nnotes\n(  [^\n]+\n)+)?",
      // Distilling tells what it has tried, as WanDistiller does.
      "^(ballast: teacher and student together\n(\n|memory [^\n]+\n|(RAM|GPU) [^\n]+\n)+"
      "tried already: [^\n]+\n\nfor example:\n  ballast distill [^\n]+\n)?",
      "^(ballast: planning what would help: [^\n]+\n)*",  // on a slow machine
      "^what would help:\n",
  };
  std::string rest = err;
  for (const std::string& part : form) {
    std::smatch found;
    if (!std::regex_search(rest, found, std::regex(part))) {
      ADD_FAILURE() << "expected " << part << "\nbefore:\n" << rest;
      return {};
    }
    rest = found.suffix();
  }
  return read_advice_lines(rest);
}

// The command as its reader would change it: flags are typed, keys written into the configuration.
CommandWords with_advice(CommandWords words, const std::string& change) {
  if (change.starts_with("--")) return support::with_flags(std::move(words), change);
  const std::string text = support::with_keys(read_whole(words[1]), change);
  words[1] += ".changed.toml";
  std::ofstream(words[1]) << text;
  return words;
}

// Commands with a budget that is too small for them, quick where it is enough.
class Refused {
 public:
  CommandWords wan_training() {
    wan_.add_clips(2, {4, 2, 4, 4});
    return {"train", wan_.write_config("epochs = 1\nmax_steps = 1"), "--device", "cpu", "--ram",
            "1MB"};
  }

  CommandWords text_training() {
    const std::string texts = dir_.write("train.csv", "text,summary\ncount one,two\nsay,red\n");
    return {"train",
            "--pretrained-model",
            text_model(),
            "--model-output",
            dir_.path("out"),
            "--train-file",
            texts,
            "--device",
            "cpu",
            "--plan_only",
            "--ram",
            "1MB"};
  }

  CommandWords vae_training() {
    const std::vector<std::uint8_t> pixels(5 * 16 * 16 * 3, 99);
    data::LatentOrigin origin;
    origin.media.name = "clip.mp4";
    origin.bucket = {16, 16, 5};
    data::write_pixels(dir_.path("clips"), origin,
                       {.frames = 5, .height = 16, .width = 16, .pixels = pixels},
                       Durability::process);
    return {"train",
            dir_.write("vae.toml", fmt::format("output_dir = '{}'\ndataset = '{}'\nepochs = 1\n"
                                               "[model]\ntype = 'wan_vae'\ndtype = 'float32'\n"
                                               "init = 'random'\nreconstruction = 'l1'\n"
                                               "[model.config]\ntype = '2.1'\ndim = 2\nz_dim = 3\n"
                                               "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n",
                                               dir_.path("out"), dir_.path("clips"))),
            "--device",
            "cpu",
            "--ram",
            "1MB"};
  }

  CommandWords distilling() {
    const std::string student = dir_.write("student.json", student::config_text(student_));
    return {"distill",
            "--teacher_path",
            BALLAST_SOURCE_DIR "/examples/demo_model/model",
            "--student_config",
            student,
            "--data_path",
            dir_.write("prompts.txt", "a red circle falls\n"),
            "--output_dir",
            dir_.path("out"),
            "--device",
            "cpu",
            "--plan",
            "--ram",
            "1MB"};
  }

  CommandWords sampling() {
    return {"sample",
            "--model",
            wan_.model_path(),
            "--cond",
            text_states("cond", wan_.config().text_dim),
            "--uncond",
            text_states("uncond", wan_.config().text_dim),
            "--output",
            dir_.path("sample.safetensors"),
            "--frames",
            "9",
            "--height",
            "64",
            "--width",
            "96",
            "--steps",
            "1",
            "--device",
            "cpu",
            "--plan",
            "--ram",
            "1MB"};
  }

  // With a text encoder and a decoder, which do not fit either.
  CommandWords sampling_with_parts() {
    if (!media_available()) return {};
    support::write_parts(dir_, wan_.config());
    return {"sample",
            "--model",
            wan_.model_path(),
            "--text-encoder",
            dir_.path("t5.safetensors"),
            "--tokenizer",
            dir_.path("tokenizer"),
            "--vae",
            dir_.path("vae.safetensors"),
            "--prompt",
            "a clip",
            "--output",
            dir_.path("clip.mp4"),
            "--frames",
            "9",
            "--height",
            "128",
            "--width",
            "192",
            "--steps",
            "1",
            "--device",
            "cpu",
            "--plan",
            "--ram",
            "1MB"};
  }

  CommandWords student_sampling() {
    std::filesystem::create_directories(dir_.path("student"));
    std::map<std::string, std::int64_t> sizes;
    student::each_parameter(student_, [&](int, const std::string& name, const Shape& shape) {
      sizes[name] = shape.elements();
    });
    student::save_student(dir_.path("student"), student_, [&](const std::string& name) {
      return [n = sizes.at(name)](const ByteSink& sink) {
        const std::vector<float> values(to_size(n), 0.01f);
        sink(std::as_bytes(std::span(values)));
      };
    });
    return {"sample",
            "--model_path",
            dir_.path("student"),
            "--cond",
            text_states("cond", student_.text_dim),
            "--output_path",
            dir_.path("latent.safetensors"),
            "--num_inference_steps",
            "1",
            "--device",
            "cpu",
            "--ram",
            "1MB"};
  }

  // Nothing: this build reads no media. Neither the image nor the caption fits.
  CommandWords caching() {
    if (!media_available()) return {};
    support::write_parts(dir_, wan_.config());
    std::filesystem::create_directories(dir_.path("clips"));
    const auto image = open_media_writer(dir_.path("clips/one.png"), {.width = 32, .height = 32});
    image->add(std::vector<std::uint8_t>(32 * 32 * 3, 99));
    image->finish();
    dir_.write("clips/one_00000.txt", "a clip bcd");  // a writer of images numbers them
    dir_.write("set.toml", "resolutions = [32]\nframe_buckets = [1]\n[[directory]]\npath = '" +
                               dir_.path("clips") + "'\n");
    return {"cache",
            dir_.write("cache.toml",
                       fmt::format("output_dir = '{}'\ndataset = '{}'\nepochs = 1\n"
                                   "[model]\ntype = 'wan'\nckpt_path = '{}'\n"
                                   "dtype = 'float32'\n{}[adapter]\ntype = 'lora'\nrank = 4\n"
                                   "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n",
                                   dir_.path("out"), dir_.path("set.toml"), wan_.model_path(),
                                   support::parts_keys(dir_))),
            "--device",
            "cpu",
            "--threads",
            "1",
            "--ram",
            "1MB"};
  }

  CommandWords generating() {
    return {"generate", "--model",          text_model(), "--prompt", "say red", "--device",
            "cpu",      "--max-new-tokens", "6",          "--plan",   "--ram",   "1MB"};
  }

 private:
  std::string text_model() const { return support::write_text_model(dir_, "model"); }
  std::string text_states(const std::string& name, std::int64_t width) const {
    const std::vector<float> values = support::normal_values(name, 2 * width, 1);
    SafetensorsWriter writer;
    writer.add("embeddings", DType::f32, {2, width}, std::as_bytes(std::span(values)));
    writer.write(dir_.path(name + ".safetensors"));
    return dir_.path(name + ".safetensors");
  }

  const TempDir dir_;
  support::TinyTraining wan_;
  const student::Config student_ = {.hidden_size = 32,
                                    .depth = 2,
                                    .num_heads = 2,
                                    .num_channels = 4,
                                    .image_size = 128,
                                    .patch_size = 16,
                                    .text_max_length = 77,
                                    .text_dim = 128};
};

struct RefusedCommand {
  const char* name;
  CommandWords (Refused::*words)();
  friend void PrintTo(const RefusedCommand& c, std::ostream* out) { *out << c.name; }
};

class RefusalForms : public ::testing::TestWithParam<RefusedCommand> {
 protected:
  // The user's own last run is none of ours.
  Finished run(const CommandWords& words) const {
    return run_program(BALLAST_BINARY, words, Stdout::captured,
                       [&] { ::setenv("XDG_STATE_HOME", state_.path().c_str(), 1); });
  }

 private:
  const TempDir state_;
};

TEST_P(RefusalForms, AreOneAndTheirAdviceIsTrue) {
  Refused refused;
  const CommandWords words = (refused.*GetParam().words)();
  if (words.empty()) GTEST_SKIP() << "built without FFmpeg";
  const Finished f = run(words);
  ASSERT_EQ(f.exit_code, 3) << f.err;
  SCOPED_TRACE(f.err);
  const std::vector<AdviceLine> advice = read_refusal_form(f.err);
  EXPECT_TRUE(std::ranges::any_of(advice, &AdviceLine::fits));
  for (const AdviceLine& line : advice) {
    const Finished again = run(with_advice(words, line.change));
    EXPECT_EQ(again.exit_code, line.fits() ? 0 : 3) << line.change << "\n" << again.err;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, RefusalForms,
    ::testing::Values(RefusedCommand{"WanTraining", &Refused::wan_training},
                      RefusedCommand{"TextTraining", &Refused::text_training},
                      RefusedCommand{"VaeTraining", &Refused::vae_training},
                      RefusedCommand{"Distilling", &Refused::distilling},
                      RefusedCommand{"Sampling", &Refused::sampling},
                      RefusedCommand{"SamplingWithParts", &Refused::sampling_with_parts},
                      RefusedCommand{"StudentSampling", &Refused::student_sampling},
                      RefusedCommand{"Caching", &Refused::caching},
                      RefusedCommand{"Generating", &Refused::generating}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace ballast::test
