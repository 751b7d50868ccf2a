#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/to_size.h"
#include "infer/student_sampler.h"
#include "models/student/initial_weights.h"
#include "models/student/student_files.h"
#include "tests/ref/student.h"
#include "tests/support/errors.h"
#include "tests/support/reference_dit.h"
#include "tests/support/temp_dir.h"
#include "tests/train/distill_folder.h"
#include "tests/train/tiny_pair.h"
#include "train/recipes/distill_batches.h"
#include "train/recipes/distill_run.h"
#include "train/run/text_states.h"

namespace ballast::train {
namespace {

using namespace tiny;

// The loss of the pair in double: the teacher's answers are the student's targets.
double reference_loss(ref::Student& model, std::int64_t number) {
  const wan::Config t = tiny_teacher();
  const student::Config c = tiny_student();
  const auto places = to_size(c.tokens());
  const ref::Dit teacher = support::reference_dit(t);
  std::vector<ref::StudentSample> samples;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string n = fmt::format("{}.{}", number, i);
    ref::StudentSample s;
    s.latent =
        support::widened(support::normal_values("latent" + n, c.tokens() * c.num_channels, 1));
    s.text = support::widened(support::normal_values("text" + n, c.text_dim, 1));
    s.t = 100 + 37 * static_cast<double>(number) + static_cast<double>(i);
    ref::DitSample d;
    d.size = student::teacher_latent(c);
    d.latent.resize(places * 4);
    for (std::size_t k = 0; k < 4; ++k) {
      for (std::size_t p = 0; p < places; ++p) d.latent[k * places + p] = s.latent[p * 3 + k % 3];
    }
    d.context = support::widened(support::normal_values("context" + n, kTokens * t.text_dim, 1));
    d.context.resize(to_size(t.text_len * t.text_dim), 0.0);
    d.timestep_row.assign(to_size(d.size.tokens()), 0);
    const std::vector<double> answer = teacher.forward(d, {s.t});
    for (std::size_t p = 0; p < places; ++p) {
      for (std::size_t k = 0; k < 4; ++k) s.target.push_back(answer[k * places + p]);
    }
    samples.push_back(std::move(s));
  }
  return model.loss(samples);
}

TEST(Distillation, AStepEqualsAReferenceInDouble) {
  TinyPair pair;
  PairRun run(pair);
  run.step(0);
  std::map<std::string, std::vector<double>> weights;
  each_parameter(tiny_student(), [&](int, const std::string& name, const Shape& shape) {
    weights[name] = support::widened(weight_of(name, shape));
  });
  ref::Student model(tiny_student(), std::move(weights));
  EXPECT_NEAR(run.loss, reference_loss(model, 0), 1e-5);
  run.update(0);
  for (const char* name : {"conv_in.weight", "output_proj.weight", "text_proj.bias",
                           "blocks.0.attn.in_proj_weight", "blocks.1.mlp.2.weight"}) {
    const auto& all = run.student().parameters();
    const auto p = std::ranges::find(all, name, &student::Parameter::name);
    std::vector<double>& w = model.weights().at(name);
    const std::vector<float> gradient = run.get(p->gradient), after = run.get(p->value);
    const std::size_t i = w.size() / 2;
    const double at = w[i], h = 1e-4;
    w[i] = at + h;
    const double above = reference_loss(model, 0);
    w[i] = at - h;
    const double below = reference_loss(model, 0);
    w[i] = at;
    const double g = (above - below) / (2 * h);
    EXPECT_NEAR(gradient[i], g, 2e-5 + 1e-3 * std::abs(g)) << name;
    // The first step of AdamW: moments over themselves are the gradient's sign.
    const double lr = 0.01, decay = 0.01;
    EXPECT_NEAR(after[i], at * (1 - lr * decay) - lr * g / (std::abs(g) + 1e-8), 1e-5) << name;
  }
}

TEST(Distillation, PlacesOfTheTeacherGiveTheSameBits) {
  const std::vector<float> resident = two_steps(TinyPair());
  EXPECT_TRUE(same_bits(resident, two_steps(TinyPair({}, false))));
  for (const MemoryPolicy& p :
       {MemoryPolicy{.streaming = Streaming{.slots = 2, .stream_from = StreamSource::host}},
        MemoryPolicy{.streaming = Streaming{.slots = 1, .stream_from = StreamSource::disk}},
        MemoryPolicy{.streaming = Streaming{
                         .slots = 1, .matrices_ahead = 2, .stream_from = StreamSource::host}}}) {
    EXPECT_TRUE(same_bits(resident, two_steps(TinyPair(p))))
        << p.stream().slots << " " << p.stream().matrices_ahead;
  }
}

TEST(Distillation, TheTeacherIsThereOnce) {
  TinyPair pair;
  std::uint64_t stored = 0, tensors = 0;
  for (const WeightGroup& g : student::job_of(pair.request).teacher) {
    for (const StoredTensor& t : g.tensors) stored += t.data.extent.bytes, ++tensors;
  }
  const auto student =
      static_cast<std::uint64_t>(4 * (parameter_count(tiny_student()) + 4 * 3 + 4));
  const auto weights = [&](const MemoryPolicy& policy) {
    const fit::PlannedRun planned = fit::plan_run(pair.request, policy);
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < planned.set.buffers.size(); ++i) {
      const BufferSpec& s = planned.set.buffers[i];
      if (s.root.id == i && s.role == Role::weights && s.program == kPersistent) bytes += s.bytes;
    }
    return bytes - student;
  };
  EXPECT_EQ(weights({}), stored);
  const std::uint64_t streamed =
      weights({.streaming = Streaming{.slots = 2, .stream_from = StreamSource::host}});
  EXPECT_GE(streamed, stored);
  EXPECT_LT(streamed, stored + 256 * tensors);
  EXPECT_LT(weights({.streaming = Streaming{.slots = 2, .stream_from = StreamSource::disk}}),
            stored / 2);
}

TEST(Distillation, TheFastestPlaceThatFitsIsTaken) {
  TinyPair pair;
  const auto place = [&](std::uint64_t gpu) {
    pair.request.budget.gpu = Bytes{gpu};
    const auto outcome = fit::find_plan(pair.request);
    const auto* planned = std::get_if<fit::PlannedRun>(&outcome);
    return planned ? pair_of(*planned).teacher_policy.stream().slots : -1;
  };
  const Bytes resident = fit::plan_run(pair.request, {}).needed(Tier::device);
  EXPECT_EQ(place(resident.count), 0);
  EXPECT_GT(place(resident.count - 1), 0);
  EXPECT_EQ(place(1000), -1);
}

TEST(InitialStudent, TakesItsBlocksFromTheTeacher) {
  const support::TinyCheckpoint written(tiny_teacher());
  const WeightFiles file = WeightFiles::open(written.path());
  const wan::TensorMap names(file);
  const student::Config c = tiny_student();  // 16 of the teacher's 64 columns
  const auto values = [&](student::AttentionStart start, const char* name, const Shape& shape) {
    return student::InitialWeights(c, tiny_teacher(), file, names, start, 1).of(name, shape);
  };
  const auto teacher = [](const std::string& name, const Shape& shape) {
    return support::parameter_values(name, shape);
  };
  const Shape square = {64, 64};
  const auto in_proj =
      values(student::AttentionStart::each, "blocks.1.attn.in_proj_weight", {48, 16});
  // Block 1 of 2 begins as block 3 / 2 of 3; four times the inputs: twice the size.
  const auto k = teacher("blocks.1.self_attn.k.weight", square);
  EXPECT_FLOAT_EQ(in_proj[(16 + 5) * 16 + 7], 2 * k[5 * 64 + 7]);
  const auto literal =
      values(student::AttentionStart::truncated, "blocks.1.attn.in_proj_weight", {48, 16});
  const auto q = teacher("blocks.1.self_attn.q.weight", square);
  EXPECT_FLOAT_EQ(literal[(16 + 5) * 16 + 7], 2 * q[21 * 64 + 7]);
  const auto bias = values(student::AttentionStart::each, "blocks.0.mlp.0.bias", {64});
  EXPECT_FLOAT_EQ(bias[9], teacher("blocks.0.ffn.0.bias", {96})[9]);
  const auto norm = values(student::AttentionStart::each, "blocks.0.norm1.weight", {16});
  EXPECT_EQ(norm, std::vector<float>(16, 1.0f));
  EXPECT_EQ(student::teacher_block({.depth = 16}, 40, 15), 37);
  EXPECT_EQ(student::teacher_block({.depth = 16}, 40, 3), 7);
}

TEST(PromptFile, ReadsLinesWithoutBlankOnesInAnOrderOfEveryEpoch) {
  const test::TempDir dir;
  std::ofstream(dir.path("p.txt")) << "\n a cat \r\n\n\t\nein Hund im Schnee\nthird";
  const PromptFile file(dir.path("p.txt"));
  ASSERT_EQ(file.count(), 3);
  EXPECT_EQ(file.at(0), "a cat");
  EXPECT_EQ(file.at(1), "ein Hund im Schnee");
  EXPECT_EQ(file.at(2), "third");
  std::ofstream(dir.path("empty.txt")) << "\n  \n";
  EXPECT_THROW(PromptFile(dir.path("empty.txt")), Error);
  for (const std::int64_t prompts : {1, 2, 7, 100}) {
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      std::vector<bool> seen(to_size(prompts));
      for (std::int64_t i = 0; i < prompts; ++i) {
        seen[to_size(prompt_of(prompts, 9, epoch * prompts + i))] = true;
      }
      EXPECT_TRUE(std::ranges::all_of(seen, [](bool b) { return b; })) << prompts;
    }
  }
}

std::vector<float> all_values(const std::string& folder) {
  const student::StudentFiles files(folder);
  student::Config c = files.config();
  std::vector<float> all;
  each_parameter(c, [&](int, const std::string& name, const Shape&) {
    const std::vector<float> v = files.values(name);
    all.insert(all.end(), v.begin(), v.end());
  });
  return all;
}

// A student of another program has no note of its projection: the VAE tells.
TEST(StudentSamples, AreDecodedByAVaeOfTheirChannelsAlone) {
  const student::Config whole = {.num_channels = 4, .teacher_channels = 16};
  const student::Config lacking = {.num_channels = 4, .teacher_channels = 4};
  wan_vae::Config vae;
  vae.z_dim = 16;
  infer::require_latents_of(whole, vae, "vae.pth", "folder");
  const auto sampled =
      test::error_of([&] { infer::require_latents_of(lacking, vae, "vae.pth", "folder"); });
  ASSERT_TRUE(sampled);
  EXPECT_EQ(sampled->code(), ErrorCode::input);
  EXPECT_THAT(sampled->what(), ::testing::HasSubstr("folder has no output_proj.safetensors"));
  EXPECT_EQ(sampled->advice().size(), 2u);
  const auto taught =
      test::error_of([&] { infer::require_latents_of(lacking, vae, "vae.pth", ""); });
  ASSERT_TRUE(taught);
  EXPECT_EQ(taught->advice().size(), 1u);
}

TEST(StudentFiles, TheProjectionMustBeThatOfTheWeights) {
  const test::TempDir dir;
  student::Config c = tiny_student();
  const auto save = [&](const std::string& name) {
    std::filesystem::create_directory(dir.path(name));
    save_student(dir.path(name), c, [&](const std::string& tensor) {
      std::vector<std::byte> zeros;
      each_parameter(c, [&](int, const std::string& n, const Shape& shape) {
        if (n == tensor) zeros.resize(to_size(shape.elements()) * sizeof(float));
      });
      return ByteSource([zeros = std::move(zeros)](const ByteSink& sink) { sink(zeros); });
    });
  };
  save("a");
  EXPECT_EQ(student::StudentFiles(dir.path("a")).config().teacher_channels, c.teacher_channels);
  c.teacher_channels += 3;
  save("b");
  const std::string projection = std::string("/") + student::kProjectionFile;
  std::filesystem::copy_file(dir.path("b") + projection, dir.path("a") + projection,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_FAILS(student::StudentFiles(dir.path("a")), ErrorCode::input, "was trained to give");
  std::filesystem::remove(dir.path("a") + projection);
  EXPECT_FAILS(student::StudentFiles(dir.path("a")), ErrorCode::input, "has no output_proj");
}

TEST(Distiller, AResumedRunEndsAsOneThatWasNeverStopped) {
  const DistillFolder d;
  const std::string whole = d.file("whole"), parts = d.file("parts");
  const auto flags = [](const std::string& out) {
    return std::vector<std::string>{"--output_dir", out, "--gradient_accumulation_steps", "2"};
  };
  const std::vector<double> losses = d.run(flags(whole), -1);
  ASSERT_EQ(losses.size(), 4u);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_EQ(d.run(flags(parts), 2).size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(parts + "/config.json"));
  std::vector<std::string> again = flags(parts);
  again.push_back("--resume");
  const std::vector<double> rest = d.run(again, -1);
  EXPECT_EQ(rest, (std::vector<double>{losses[2], losses[3]}));
  EXPECT_TRUE(same_bits(all_values(whole), all_values(parts)));
  again.insert(again.end(), {"--optimizer", "sgd"});
  const auto other = test::error_of([&] { d.run(again, -1); });
  ASSERT_TRUE(other);
  EXPECT_EQ(other->advice()[0].change, "--optimizer adamw") << "a flag that there is";
}

TEST(Distiller, DrawsSamplesAsItWasAsked) {
  const DistillFolder d;
  d.run({"--output_dir", d.file("out"), "--save_samples", "--sample_prompts", "prompt 3"}, -1);
  EXPECT_TRUE(
      std::filesystem::exists(d.file("out") + "/samples/epoch_0001_rank_0_sample_00.safetensors"));
}

TEST(Distiller, ARefusalNamesMemorySolutionsAndACommand) {
  const DistillFolder d;
  const DistillRun r = d.prepare(
      {"--output_dir", d.file("out"), "--ram", "6MB", "--teacher_on_cpu", "--batch_size", "4"});
  const auto outcome = fit::find_plan(r.request);
  ASSERT_TRUE(std::holds_alternative<Refusal>(outcome));
  const Refusal& refusal = std::get<Refusal>(outcome);
  const std::vector<PlannedChange> changes =
      fit::try_changes(r.request, refusal, possible_changes(r, refusal));
  const std::string text = tried_text(r, refusal, changes);
  for (const char* part : {"allocated", "would reserve", "total", "free", "allowed",
                           "tried already: a streamed teacher", "--gradient_checkpointing",
                           "for example:\n  ballast distill --teacher-path"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_TRUE(changes.front().fits);
  const std::string command = text.substr(text.find("for example:"));
  EXPECT_TRUE(command.ends_with(" " + changes.front().text)) << command;
  for (const char* flag : {"--ram", "--output_dir", "--batch_size"}) {
    EXPECT_EQ(command.find(flag), command.rfind(flag)) << flag << " once: " << command;
  }
  std::string all;
  for (const PlannedChange& c : changes) all += c.text + "\n";
  for (const char* part : {"--teacher_dtype fp8", "--batch_size 2", "--ram "}) {
    EXPECT_NE(all.find(part), std::string::npos) << part << "\n" << all;
  }
}

TEST(DistillFlags, NamesTheNearestFlagAndValue) {
  const auto problem = [](const std::vector<std::string>& flags) -> std::string {
    try {
      read_distill_config(flags);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(problem({"--teacher_pth", "x"}).find("teacher_path"), std::string::npos);
  EXPECT_NE(problem({"--teacher_dtype", "bfloat"}).find("(bfloat16?)"), std::string::npos);
  EXPECT_NE(problem({"--teacher_path", "x"}).find("--student_config is missing"),
            std::string::npos);
}

}  // namespace
}  // namespace ballast::train
