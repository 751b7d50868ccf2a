// Every line of advice of a refusal is done in the flags or files of the run: of a text model, a
// student and a VAE. The run that is then read must be the one that the advice was planned with.

#include <gmock/gmock.h>

#include <regex>
#include <set>
#include <sstream>

#include "core/to_size.h"
#include "tests/support/applied_advice.h"
#include "tests/support/tiny_parts.h"
#include "tests/support/tiny_text_model.h"
#include "tests/support/trained_run.h"
#include "tests/train/advice_facts.h"
#include "tests/train/distill_folder.h"
#include "train/config/read_config.h"
#include "train/recipes/seq2seq_run.h"
#include "train/recipes/vae_run.h"

namespace ballast::train::recipe_advice_test {
namespace {

using advice_test::budget_facts;
using advice_test::optimizer_facts;
using support::with_flags;
using support::with_keys;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

// The FLAN-T5 job and transformers' flags.
class TextAdvice : public ::testing::Test {
 protected:
  TextAdvice() {
    std::string lines;
    for (std::size_t i = 0; i < 6; ++i) {
      const auto& w = support::tiny_words();
      lines += fmt::format("{{\"input\": \"count {} and {} and {}\", \"output\": \"{} and {}\"}}\n",
                           w[i], w[i + 1], w[i + 2], w[i + 3], w[i + 4]);
    }
    texts_ = dir_.write("train.jsonl", lines);
  }
  Words job(Words more) const {
    more.insert(more.begin(),
                {"--pretrained-model", model_, "--train-file", texts_, "--model-output",
                 dir_.path("out"), "--device", "cpu", "--ram", "4GB"});
    return more;
  }
  Words transformers(Words more) const {
    more.insert(more.begin(),
                {"--model_name_or_path", model_, "--train_file", texts_, "--output_dir",
                 dir_.path("out"), "--device", "cpu", "--ram", "4GB"});
    return more;
  }
  static Seq2SeqRun prepared(const Words& words) {
    return prepare_seq2seq(read_seq2seq_config(words),
                           this_machine({.device = DeviceChoice::cpu, .threads = 2}));
  }
  static bool names(const Words& words, std::string_view flag) {
    return std::ranges::any_of(
        words, [&](const std::string& w) { return w.find(flag) != std::string::npos; });
  }
  static std::string facts(const fit::Request& r) {
    const t5::Seq2SeqJob& j = t5::job_of(r).seq2seq;
    std::set<std::string> batches;
    for (const t5::BatchShape& b : j.batches) {
      batches.insert(fmt::format("{} x {} x {}", b.samples, b.source, b.target));
    }
    return fmt::format("{} | {} | {} {} | {} | {} | {} {} {}", budget_facts(r.budget),
                       r.policy ? r.policy->name : "auto", j.lora ? j.lora->rank : 0,
                       name_of(j.format), optimizer_facts(j.optimizer), fmt::join(batches, ", "),
                       name_of(j.gradient), t5::job_of(r).runs_per_step, j.accumulates);
  }
  static std::vector<std::string> expect_true(const Words& words) {
    const Seq2SeqRun run = prepared(words);
    const auto outcome = fit::find_plan(run.request);
    const auto* refusal = std::get_if<Refusal>(&outcome);
    EXPECT_NE(refusal, nullptr) << "this run must not fit";
    std::vector<std::string> texts;
    if (!refusal) return texts;
    const std::vector<fit::Change> changes = possible_changes(run, *refusal);
    for (const fit::Change& c : changes) {
      SCOPED_TRACE(c.text);
      texts.push_back(c.text);
      fit::Request edited = run.request;
      c.apply(edited);
      Seq2SeqRun again = prepared(with_flags(words, c.text));
      if (!names(words, "--ram") && !names({c.text}, "--ram")) {  // the machine's, which wanders
        again.request.budget.host = run.request.budget.host;
      }
      EXPECT_EQ(facts(edited), facts(again.request));
      EXPECT_NE(facts(run.request), facts(again.request)) << "changes nothing";
    }
    for (const PlannedChange& p : fit::try_changes(run.request, *refusal, changes)) {
      const auto then = fit::find_plan(prepared(with_flags(words, p.text)).request);
      EXPECT_EQ(p.fits, std::holds_alternative<fit::PlannedRun>(then)) << p.text;
      if (std::ranges::find(texts, p.text) == texts.end()) texts.push_back(p.text);  // a pair
    }
    return texts;
  }

  const test::TempDir dir_;
  const std::string model_ = support::write_text_model(dir_, "model");
  std::string texts_;
};

TEST_F(TextAdvice, OfTheFlanT5JobIsTakenBehindItsFlags) {
  const auto texts = expect_true(job({"--batch-size", "4", "--gpu", "20KB", "--ram", "1MB"}));
  for (const char* expected : {"--gpu ", "--ram ", "--batch-size 2 --gradient-accumulation-steps 2",
                               "--lora_rank 16", "--optim adamw_bnb_8bit", "--optim adafactor",
                               "--gradient_dtype bf16", "--max_source_length "}) {
    EXPECT_THAT(texts, Contains(HasSubstr(expected)));
  }
  EXPECT_THAT(texts, Contains(::testing::MatchesRegex("--gpu .*MB --ram .*MB")))
      << "both are short: one alone is not enough";
  EXPECT_THAT(expect_true(job({"--weights", "f32", "--gpu", "20KB", "--policy", "resident"})),
              AllOf(Contains("--weights bf16 --rounding stochastic"), Contains("--policy auto")));
}

TEST_F(TextAdvice, OfTransformersFlagsIsTakenBehindThem) {
  const auto texts = expect_true(transformers(
      {"--per_device_train_batch_size", "4", "--gpu", "20KB", "--optim", "stable_adamw"}));
  EXPECT_THAT(texts, AllOf(Contains("--weights bf16 --rounding stochastic"),
                           Contains(HasSubstr("--lora_rank")), Contains("--optim adafactor")));
  const auto lora =
      expect_true(transformers({"--lora_rank", "8", "--gpu", "20KB", "--pad_to_multiple_of", "4"}));
  EXPECT_THAT(lora, AllOf(Contains("--lora_rank 4"), Contains("--weights bf16")));
  EXPECT_THAT(expect_true(transformers({"--ram", "1MB"})), Each(Not(HasSubstr("--gpu"))));
}

// WanDistiller's flags and the student's file.
class DistillAdvice : public ::testing::Test {
 protected:
  static std::string facts(const fit::Request& r) {
    const student::FitJob& j = student::job_of(r);
    const student::Config& s = j.pair.student.config;
    return fmt::format("{} | {} {} | {} | {} {} {} {}", budget_facts(r.budget),
                       name_of(j.placement), name_of(j.pair.teacher_format), j.pair.student.batch,
                       s.hidden_size, s.depth, s.num_heads, s.image_size);
  }
  // "\"depth\": 8, \"num_heads\": 8 in student.json": in that file.
  static std::string with_sizes(std::string file, const std::string& text) {
    const std::string of_student = " in student.json";
    EXPECT_TRUE(text.ends_with(of_student)) << text << ": neither flags nor sizes";
    std::istringstream keys(text.substr(0, text.size() - of_student.size()));
    for (std::string key; std::getline(keys, key, ',');) {
      const std::size_t name = key.find('"');
      const std::size_t colon = key.find(':');
      const std::string old = key.substr(name, colon - name) + ":";
      file = std::regex_replace(file, std::regex(old + " *\\d+"), old + key.substr(colon + 1));
    }
    return file;
  }
  // Every text, done; what it then needs is what was said.
  std::vector<std::string> expect_true(const Words& words, const RunTarget& target) {
    const std::string student = test::read_whole(folder_.file("student.json"));
    const DistillRun run = folder_.prepare(words, target);
    const auto outcome = fit::find_plan(run.request);
    const auto* refusal = std::get_if<Refusal>(&outcome);
    EXPECT_NE(refusal, nullptr) << "this run must not fit";
    std::vector<std::string> texts;
    if (!refusal) return texts;
    const std::vector<fit::Change> changes = possible_changes(run, *refusal);
    for (const PlannedChange& p : fit::try_changes(run.request, *refusal, changes)) {
      SCOPED_TRACE(p.text);
      texts.push_back(p.text);
      Words changed = words;
      std::string file = student, rest = p.text;
      for (bool more = true; more;) {  // pairs of flags and keys are joined
        const std::size_t end = rest.find(" and ");
        const std::string one = rest.substr(0, end);
        more = end != rest.npos;
        if (more) rest.erase(0, end + 5);
        if (one.starts_with("--")) {
          changed = with_flags(changed, one);
        } else {
          file = with_sizes(file, one);
        }
      }
      std::ofstream(folder_.file("student.json")) << file;
      const DistillRun again = folder_.prepare(changed, target);
      std::ofstream(folder_.file("student.json")) << student;
      EXPECT_NE(facts(run.request), facts(again.request)) << "changes nothing";
      const auto then = fit::find_plan(again.request);
      EXPECT_EQ(p.fits, std::holds_alternative<fit::PlannedRun>(then));
      if (const auto* fits = std::get_if<fit::PlannedRun>(&then)) {
        for (const Tier t : kTiers) {
          EXPECT_EQ(p.needed[to_size(t)], fits->needed(t)) << name_of(t);
        }
      } else {
        EXPECT_EQ(p.needed, std::get<Refusal>(then).needed);
      }
    }
    return texts;
  }
  static RunTarget processors() {
    RunTarget target;
    target.profile = tiny::TinyPair().request.profile;
    target.backend = {.device = Device::cpu, .threads = 2};
    return target;
  }

  tiny::DistillFolder folder_;
};

TEST_F(DistillAdvice, IsTakenBehindItsFlags) {
  const auto texts = expect_true({"--output_dir", folder_.file("out"), "--ram", "6MB",
                                  "--batch_size", "4", "--teacher_device_strategy", "gpu0"},
                                 processors());
  for (const char* expected : {"--ram ", "--batch_size 2", "--teacher_dtype fp8",
                               "--teacher_device_strategy cpu", "--teacher_device_strategy disk"}) {
    EXPECT_THAT(texts, Contains(HasSubstr(expected)));
  }
  EXPECT_THAT(texts, Each(Not(HasSubstr("--gpu"))));
  EXPECT_THAT(expect_true({"--output_dir", folder_.file("out"), "--ram", "6MB", "--gpu", "1MB"},
                          processors()),
              Contains(::testing::MatchesRegex("--gpu .*MB --ram .*MB")));
  EXPECT_THAT(
      expect_true({"--output_dir", folder_.file("out"), "--ram", "1MB", "--literal"}, processors()),
      Each(Not(HasSubstr("--teacher_dtype"))));
}

// Beside a student on a GPU, wherever the teacher is.
TEST_F(DistillAdvice, OfATeacherInEveryPlaceIsTaken) {
  RunTarget target;
  target.profile = *find_profile("h200");
  target.backend = {.device = Device::cuda, .sm = target.profile.sm};
  target.host_threads = 2;
  for (const char* place : {"auto", "gpu0", "cpu", "disk", "cpu_compute"}) {
    SCOPED_TRACE(place);
    const auto texts = expect_true({"--output_dir", folder_.file("out"), "--gpu", "1MB", "--ram",
                                    "2GB", "--teacher_device_strategy", place},
                                   target);
    EXPECT_THAT(texts, Contains(HasSubstr("--gpu ")));
  }
}

TEST_F(DistillAdvice, OfASmallerStudentIsTakenByItsFile) {
  std::ofstream(folder_.file("student.json"))
      << R"({"hidden_size":528,"depth":9,"num_heads":3,"num_channels":3,"image_size":64,)"
      << R"("patch_size":8,"text_max_length":7,"text_encoder_output_dim":20})";
  const auto texts =
      expect_true({"--output_dir", folder_.file("out"), "--ram", "6MB"}, processors());
  EXPECT_THAT(texts, Contains("\"hidden_size\": 512, \"depth\": 8, \"num_heads\": 8 in "
                              "student.json"));
}

// The training of a VAE: flags behind its TOML, keys of it and of its dataset's.
class VaeAdvice : public ::testing::Test {
 protected:
  VaeAdvice() {
    dir_.write("media/clip.mp4", "not read before it is cached");
    dir_.write("media/clip.txt", "a clip");
    support::write_vae(dir_.path("vae.safetensors"), support::tiny_vae(wan_vae::Generation::wan21),
                       wan_vae::Dialect::official);
    dataset_ = fmt::format("resolutions = [64]\nframe_buckets = [33]\n[[directory]]\npath = '{}'\n",
                           dir_.path("media"));
    main_ = fmt::format(
        "output_dir = '{}'\ndataset = '{}'\nepochs = 1\nactivation_checkpointing = false\n"
        "[model]\ntype = 'wan_vae'\nvae_path = '{}'\ndtype = 'float32'\n"
        "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n",
        dir_.path("out"), dir_.path("dataset.toml"), dir_.path("vae.safetensors"));
  }
  PreparedVae prepared(const std::string& main, const std::string& dataset,
                       const Words& flags) const {
    dir_.write("dataset.toml", dataset);
    Words words = {dir_.write("run.toml", main)};
    words.insert(words.end(), flags.begin(), flags.end());
    return prepare_vae(read_config(words), support::small_machine(), Purpose::plan);
  }
  // Each change done, then the numbers of the advice, pairs among it.
  std::vector<PlannedChange> expect_true(const Words& flags) const {
    const PreparedVae run = prepared(main_, dataset_, flags);
    const auto outcome = fit::find_plan(run.request);
    const auto* refusal = std::get_if<Refusal>(&outcome);
    EXPECT_NE(refusal, nullptr) << "this run must not fit";
    if (!refusal) return {};
    const std::vector<PlannedChange> changes =
        fit::try_changes(run.request, *refusal, possible_changes(run, *refusal));
    for (const PlannedChange& p : changes) {
      SCOPED_TRACE(p.text);
      const PreparedVae again = changed(p.text, flags);
      const auto then = fit::find_plan(again.request);
      EXPECT_EQ(p.fits, std::holds_alternative<fit::PlannedRun>(then));
      if (const auto* fits = std::get_if<fit::PlannedRun>(&then)) {
        EXPECT_EQ(p.needed[0], fits->needed(Tier::device));
        EXPECT_EQ(p.needed[1], fits->needed(Tier::host));
      } else {
        EXPECT_EQ(p.needed, std::get<Refusal>(then).needed);
      }
      const bool budget =
          ::testing::Value(p.text, ::testing::MatchesRegex("(--(gpu|ram) [0-9]+MB ?)+"));
      EXPECT_NE(p.needed[0] == refusal->needed[0], !budget) << "changes nothing";
    }
    return changes;
  }
  // The run with what an advice says, in flags, in its file and in that of its dataset.
  PreparedVae changed(const std::string& text, const Words& flags) const {
    const std::string of_dataset = " in dataset.toml", both = " and ";
    std::string main = main_, dataset = dataset_;
    Words words = flags;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(both, at), text.size());
      const std::string one = text.substr(at, end - at);
      at = end + both.size();
      if (one.starts_with("--")) {
        words = with_flags(words, one);
      } else if (one.ends_with(of_dataset)) {
        dataset = with_keys(dataset, one.substr(0, one.size() - of_dataset.size()));
      } else {
        main = with_keys(main, one);
      }
    }
    return prepared(main, dataset, words);
  }
  static std::vector<std::string> texts_of(const std::vector<PlannedChange>& changes) {
    std::vector<std::string> all;
    for (const PlannedChange& c : changes) all.push_back(c.text);
    return all;
  }

  test::TempDir dir_;
  std::string main_, dataset_;
};

TEST_F(VaeAdvice, IsPlannedAnewAndTaken) {
  const auto both = expect_true({"--gpu", "1MB", "--ram", "2MB"});
  EXPECT_THAT(texts_of(both), Contains(::testing::MatchesRegex("--gpu .*MB --ram .*MB")))
      << "both are short: one alone is not enough";
  EXPECT_TRUE(both.front().fits);
  const auto texts = texts_of(expect_true({"--ram", "5MB"}));
  EXPECT_THAT(texts, Contains(::testing::MatchesRegex("--ram .*MB")));
  for (const char* expected :
       {"--vae_gradient_checkpointing", "[model] train_encoder = false",
        "frame_buckets = [13] in dataset.toml", "resolutions = [48] in dataset.toml"}) {
    EXPECT_THAT(texts, Contains(expected));
  }
}

}  // namespace
}  // namespace ballast::train::recipe_advice_test
