#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "models/student/initial_weights.h"
#include "models/student/student_files.h"
#include "tests/ref/student.h"
#include "tests/support/reference_dit.h"
#include "tests/support/temp_dir.h"
#include "train/distiller.h"
#include "train/pair_lessons.h"
#include "train/text_states.h"

namespace ballast::train {
namespace {

wan::Config tiny_teacher() {
  wan::Config c = support::tiny_config();
  c.in_dim = c.out_dim = 4;
  return c;
}

student::Config tiny_student() {
  return {.hidden_size = 16,
          .depth = 2,
          .num_heads = 2,
          .num_channels = 3,
          .image_size = 16,
          .patch_size = 4,
          .text_max_length = 7,
          .text_dim = 20,
          .teacher_channels = 4};
}

constexpr std::int64_t kTokens = 5;  // of every prompt

// Lessons that depend on nothing but their number.
void fill_lessons(std::int64_t number, std::span<Lesson> lessons) {
  for (std::size_t i = 0; i < lessons.size(); ++i) {
    Lesson& l = lessons[i];
    const std::string n = fmt::format("{}.{}", number, i);
    const auto put = [&](const std::string& site, std::span<float> to) {
      std::ranges::copy(support::normal_values(site + n, std::ssize(to), 1), to.begin());
    };
    put("latent", l.latent);
    put("text", l.text);
    std::ranges::fill(l.context, 0.0f);
    put("context", l.context.first(kTokens * l.text.size()));
    l.t = 100 + 37 * static_cast<double>(number) + static_cast<double>(i);
  }
}

struct TinyPair {
  explicit TinyPair(const MemoryPolicy& policy = {}, bool side_by_side = true,
                    std::int64_t batch = 2) {
    request.job.teacher = tiny_teacher();
    request.job.teacher_policy = policy;
    request.job.side_by_side = side_by_side;
    request.job.student.config = tiny_student();
    request.job.student.batch = batch;
    request.teacher = weight_groups(request.job.teacher, file, names);
    request.backend = {.device = Device::cpu, .threads = 2};
    request.profile.gemm_flops = request.profile.attention_flops = 1e10;
    request.profile.attention_backward_flops = 1e10;
    request.profile.memory_bandwidth = request.profile.upload_bandwidth = 1e9;
    request.profile.download_bandwidth = request.profile.disk_bandwidth = 1e9;
    request.budget = {.gpu = Bytes{1u << 30}, .host = Bytes{2u << 30}, .disk = {}};
  }
  const std::string& path() {
    static const support::TinyCheckpoint kFile(tiny_teacher());
    static const std::string kPath = kFile.path();
    return kPath;
  }

  Checkpoint file = Checkpoint::open(path());
  wan::TensorMap names = wan::TensorMap(file);
  student::PairRequest request;
};

std::vector<float> weight_of(const std::string& name, const Shape& shape) {
  return support::parameter_values("student." + name, shape);
}

// A loaded pair whose student has the weights above.
class PairRun {
 public:
  explicit PairRun(TinyPair& tiny) {
    set_.backend = tiny.request.backend;
    pair_.emplace(set_, tiny.request.job, tiny.request.teacher, tiny.request.profile);
    plan_ = plan_memory(set_);
    runner_.emplace(set_, plan_);
    lessons_.emplace(*pair_, *runner_, fill_lessons, TeacherInput::repeated);
    lessons_->load();
    for (const student::Parameter& p : student().parameters()) {
      const std::vector<float> v = weight_of(p.name, set_.spec(p.value).shape);
      runner_->write(p.value, std::as_bytes(std::span(v)));
    }
    runner_->run("init_state");
  }
  void step(std::int64_t number) {
    runner_->run(student::Student::kZero);
    lessons_->learn(number, {.step = number + 1});
    loss = *runner_->view(student().loss()).as<double>();
    runner_->run("grad_norm");
  }
  void update(std::int64_t number) {
    runner_->run("update", {.step = number + 1, .learning_rate = 0.01});
  }
  std::vector<float> get(Buffer b) {
    std::vector<float> v(static_cast<std::size_t>(set_.spec(b).shape.elements()));
    runner_->read(b, std::as_writable_bytes(std::span(v)));
    return v;
  }
  const student::Student& student() const { return pair_->student(); }
  const MemoryPlan& plan() const { return plan_; }
  const Runner& runner() const { return *runner_; }
  double loss = 0;

 private:
  ProgramSet set_;
  std::optional<student::Pair> pair_;
  MemoryPlan plan_;
  std::optional<Runner> runner_;
  std::optional<PairLessons> lessons_;
};

// Two steps; all weights after them.
std::vector<float> two_steps(TinyPair pair) {
  PairRun run(pair);
  std::vector<float> all;
  for (std::int64_t n = 0; n < 2; ++n) {
    run.step(n);
    run.update(n);
    all.push_back(static_cast<float>(run.loss));
  }
  for (const student::Parameter& p : run.student().parameters()) {
    const std::vector<float> v = run.get(p.value);
    all.insert(all.end(), v.begin(), v.end());
  }
  EXPECT_EQ(run.runner().high_water(Tier::device), run.plan().peak_of(Tier::device));
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The loss of the pair in double: the teacher's answers are the student's targets.
double reference_loss(ref::Student& model, std::int64_t number) {
  const wan::Config t = tiny_teacher();
  const student::Config c = tiny_student();
  const auto places = static_cast<std::size_t>(c.tokens());
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
    d.context.resize(static_cast<std::size_t>(t.text_len * t.text_dim), 0.0);
    d.timestep_row.assign(static_cast<std::size_t>(d.size.tokens()), 0);
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
  for (const MemoryPolicy& p : {MemoryPolicy{.slots = 2, .home = WeightHome::host},
                                MemoryPolicy{.slots = 1, .home = WeightHome::disk},
                                MemoryPolicy{.slots = 1, .parts = 2, .home = WeightHome::host}}) {
    EXPECT_TRUE(same_bits(resident, two_steps(TinyPair(p)))) << p.slots << " " << p.parts;
  }
}

TEST(Distillation, TheTeacherIsThereOnce) {
  TinyPair pair;
  std::uint64_t stored = 0, tensors = 0;
  for (const WeightGroup& g : pair.request.teacher) {
    for (const StoredTensor& t : g.tensors) stored += t.data.extent.bytes, ++tensors;
  }
  const auto student =
      static_cast<std::uint64_t>(4 * (parameter_count(tiny_student()) + 4 * 3 + 4));
  const auto weights = [&](const MemoryPolicy& policy) {
    student::PairJob job = pair.request.job;
    job.teacher_policy = policy;
    const student::PlannedPair planned = plan_pair(pair.request, job);
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < planned.set.buffers.size(); ++i) {
      const BufferSpec& s = planned.set.buffers[i];
      if (s.root.id == i && s.role == Role::weights && s.program == kPersistent) bytes += s.bytes;
    }
    return bytes - student;
  };
  EXPECT_EQ(weights({}), stored);
  const std::uint64_t streamed = weights({.slots = 2, .home = WeightHome::host});
  EXPECT_GE(streamed, stored);
  EXPECT_LT(streamed, stored + 256 * tensors);
  EXPECT_LT(weights({.slots = 2, .home = WeightHome::disk}), stored / 2);
}

TEST(Distillation, TheFastestPlaceThatFitsIsTaken) {
  TinyPair pair;
  const auto place = [&](std::uint64_t gpu) {
    pair.request.budget.gpu = Bytes{gpu};
    const auto outcome = fit_pair(pair.request);
    const auto* planned = std::get_if<student::PlannedPair>(&outcome);
    return planned ? planned->job.teacher_policy.slots : -1;
  };
  student::PairJob job = pair.request.job;
  const Bytes resident = plan_pair(pair.request, job).needed(Tier::device);
  EXPECT_EQ(place(resident.count), 0);
  EXPECT_GT(place(resident.count - 1), 0);
  EXPECT_EQ(place(1000), -1);
}

TEST(InitialStudent, TakesItsBlocksFromTheTeacher) {
  const support::TinyCheckpoint written(tiny_teacher());
  const Checkpoint file = Checkpoint::open(written.path());
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
      std::vector<bool> seen(static_cast<std::size_t>(prompts));
      for (std::int64_t i = 0; i < prompts; ++i) {
        seen[static_cast<std::size_t>(prompt_of(prompts, 9, epoch * prompts + i))] = true;
      }
      EXPECT_TRUE(std::ranges::all_of(seen, [](bool b) { return b; })) << prompts;
    }
  }
}

// Heads of files are 128 wide.
wan::Config teacher_of_a_file() {
  wan::Config c = tiny_teacher();
  c.dim = 128;
  c.heads = 1;
  c.layers = 2;
  return c;
}

// A run by its flags: a tiny teacher whose prompts are encoded already.
class DistillFolder {
 public:
  DistillFolder() : teacher_(teacher_of_a_file()) {
    std::ofstream(file("student.json"))
        << R"({"hidden_size":16,"depth":2,"num_heads":2,"num_channels":3,"image_size":16,)"
        << R"("patch_size":4,"text_max_length":7,"text_encoder_output_dim":20})";
    const TextStates states(file("states"), "", 20);
    std::ofstream prompts(file("prompts.txt"));
    for (int i = 0; i < 5; ++i) {
      const std::string text = fmt::format("prompt {}", i);
      prompts << text << "\n";
      states.put(
          text,
          {.tokens = i + 1, .width = 20, .values = support::normal_values(text, 20 * (i + 1), 1)});
    }
  }
  std::string file(const std::string& name) const { return dir_.path(name); }
  DistillRun prepare(std::vector<std::string> more) const {
    std::vector<std::string> flags = {"--teacher-path",
                                      teacher_.path(),
                                      "--student-config",
                                      file("student.json"),
                                      "--data_path",
                                      file("prompts.txt"),
                                      "--text_states",
                                      file("states"),
                                      "--num-steps",
                                      "4",
                                      "--lr",
                                      "0.01",
                                      "--ram",
                                      "2GB"};
    flags.insert(flags.end(), more.begin(), more.end());
    RunTarget target;
    target.profile = TinyPair().request.profile;
    target.backend = {.device = Device::cpu, .threads = 2};
    return prepare_distill(read_distill_config(flags), target);
  }
  // Runs until `stop_after` steps are done; the loss of every step.
  std::vector<double> run(std::vector<std::string> flags, std::int64_t stop_after) const {
    DistillRun r = prepare(std::move(flags));
    auto planned = std::get<student::PlannedPair>(fit_pair(r.request));
    std::vector<double> losses;
    TrainOptions options;
    options.handle_signals = false;
    options.on_step = [&](const StepRecord& s) { losses.push_back(s.loss); };
    options.stop = [&] { return std::ssize(losses) == stop_after; };
    distill(std::move(r), std::move(planned), options);
    return losses;
  }

 private:
  test::TempDir dir_;
  support::TinyCheckpoint teacher_;
};

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
  const auto outcome = fit_pair(r.request);
  ASSERT_TRUE(std::holds_alternative<Refusal>(outcome));
  const Refusal& refusal = std::get<Refusal>(outcome);
  const std::vector<PlannedChange> changes = possible_changes(r, refusal);
  const std::string text = refusal_text(r, refusal, changes);
  for (const char* part : {"allocated", "would reserve", "total", "free", "allowed",
                           "for example:\n  ballast distill --teacher-path"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_TRUE(changes.front().fits);
  std::string all;
  for (const PlannedChange& c : changes) all += c.text + "\n";
  for (const char* part : {"--teacher_dtype fp8", "--batch_size 2", "--ram "}) {
    EXPECT_NE(all.find(part), std::string::npos) << part << "\n" << all;
  }
}

TEST(DistillFlags, NamesTheNearestFlagAndValue) {
  const auto problem = [](std::vector<std::string> flags) -> std::string {
    try {
      read_distill_config(flags);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(problem({"--teacher_pth", "x"}).find("teacher_path"), std::string::npos);
  EXPECT_NE(problem({"--teacher_dtype", "bfloat"}).find("did you mean bfloat16?"),
            std::string::npos);
  EXPECT_NE(problem({"--teacher_path", "x"}).find("--student_config is missing"),
            std::string::npos);
}

}  // namespace
}  // namespace ballast::train
