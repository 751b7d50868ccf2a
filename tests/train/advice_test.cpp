// Every line of advice of a refusal is done, in the dialect of the run: typed behind its flags or
// written into its files. The reader must take it, and the run that it then describes must be the
// one that the advice was planned with.

#include <gmock/gmock.h>

#include <set>

#include "core/to_size.h"
#include "data/latent_cache.h"
#include "tests/support/applied_advice.h"
#include "tests/support/tiny_parts.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "tests/train/advice_facts.h"
#include "train/config/read_config.h"
#include "train/run/prepared_run.h"

namespace ballast::train::advice_test {
namespace {

using support::with_flags;
using support::with_keys;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

std::string batch_facts(const std::vector<wan::Batch>& batches) {
  std::set<std::string> all;  // their order is of no account
  for (const wan::Batch& b : batches) {
    const wan::LatentSize& z = b.latents[0];
    all.insert(fmt::format("{} x {} x {} x {}", b.latents.size(), z.frames, z.height, z.width));
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

// All of a request that advice speaks of.
std::string facts(const fit::Request& r, bool with_budget = true) {
  const wan::DitJob& j = wan::job_of(r).dit;
  return fmt::format(
      "{} | {} | {} {} | {} {} {} | {} | {} | {} {}", with_budget ? budget_facts(r.budget) : "",
      r.policy ? r.policy->name : "auto", r.streamed_blocks.value_or(-1), name_of(j.mode),
      name_of(j.format), j.mode == wan::Mode::lora ? j.lora.rank : 0,
      j.mode == wan::Mode::lora ? name_of(j.lora.dtype) : "", optimizer_facts(j.optimizer),
      batch_facts(j.batches), batch_facts(j.predict_batches),
      wan::job_of(r).auxiliary_model.variants.size());
}

// Over all tiers. On the CPU the compute share is part of the RAM: bytes short of both count once.
Bytes missing_of(const fit::Request& r, const Refusal& refusal) {
  const auto over = [](Bytes needed, Bytes allowed) {
    return needed > allowed ? needed - allowed : Bytes{};
  };
  const auto& [device, host, disk] = refusal.needed;
  const Bytes more_disk = over(disk, r.budget.disk), more_gpu = over(device, r.budget.gpu);
  if (r.backend.device != Device::cpu) return more_gpu + over(host, r.budget.host) + more_disk;
  return std::max(more_gpu, over(device + host, r.budget.host)) + more_disk;
}

// Texts of the changes that a refused run is told, each done by `apply`, which reads the run anew.
template <class Apply>
std::vector<std::string> expect_true_advice(const PreparedRun& run, const Apply& apply) {
  std::vector<std::string> texts;
  const auto outcome = fit::find_plan(run.request);
  const auto* refusal = std::get_if<Refusal>(&outcome);
  EXPECT_NE(refusal, nullptr) << "this run must not fit";
  if (!refusal) return texts;
  const std::vector<fit::Change> changes = possible_changes(run, *refusal);
  for (const fit::Change& c : changes) {
    SCOPED_TRACE(c.text);
    texts.push_back(c.text);
    fit::Request edited = run.request;
    c.apply(edited);
    const PreparedRun again = apply(c.text);
    EXPECT_EQ(facts(edited), facts(again.request));
    EXPECT_NE(facts(run.request), facts(again.request)) << "changes nothing";
  }
  // The numbers of the advice, pairs among it, are those of the run that is read.
  for (const PlannedChange& p : try_changes(run.request, *refusal, changes)) {
    SCOPED_TRACE(p.text);
    if (std::ranges::find(texts, p.text) == texts.end()) texts.push_back(p.text);
    if (p.text.find(" and ") != p.text.npos) continue;  // each of them was done above
    const fit::Request changed = apply(p.text).request;
    const auto then = fit::find_plan(changed);
    EXPECT_EQ(p.fits, std::holds_alternative<fit::PlannedRun>(then));
    if (const auto* still = std::get_if<Refusal>(&then)) {
      EXPECT_EQ(p.needed, still->needed);
      EXPECT_EQ(p.missing, missing_of(changed, *still));
    }
  }
  return texts;
}

class WanAdvice : public ::testing::Test {
 protected:
  WanAdvice() {
    training_.add_clips(4, {4, 2, 4, 4});
    dir_.write("media/clip.mp4", "not read before it is cached");
    dir_.write("media/clip.txt", "a clip");
    dataset_ =
        fmt::format("resolutions = [256]\nframe_buckets = [33]\n[[directory]]\npath = '{}'\n",
                    dir_.path("media"));
  }

  PreparedRun prepared(const Words& words) const {
    return prepare_run(read_config(words), support::small_machine(), Purpose::plan);
  }

  std::string main_toml(const std::string& extra, const std::string& tables,
                        const std::string& memory) const {
    return fmt::format(
        "output_dir = '{}'\ndataset = '{}'\nepochs = 1\n{}\n[memory]\n{}\n"
        "[model]\ntype = 'wan'\nckpt_path = '{}'\ndtype = 'float32'\n{}",
        dir_.path("out"), dir_.path("dataset.toml"), extra, memory, training_.model_path(), tables);
  }

  // A diffusion-pipe run as its files say it, and after a line of advice.
  PreparedRun read_files(const std::string& main, const std::string& dataset,
                         const Words& flags = {}) const {
    dir_.write("dataset.toml", dataset);
    Words words = {dir_.write("run.toml", main)};
    words.insert(words.end(), flags.begin(), flags.end());
    return prepared(words);
  }
  std::vector<std::string> expect_true_files(const std::string& main) const {
    return expect_true_advice(read_files(main, dataset_), [&](const std::string& text) {
      if (text.starts_with("--")) return read_files(main, dataset_, with_flags({}, text));
      const std::string of_dataset = " in dataset.toml";
      if (!text.ends_with(of_dataset)) return read_files(with_keys(main, text), dataset_);
      const std::string keys = text.substr(0, text.size() - of_dataset.size());
      return read_files(main, with_keys(dataset_, keys));
    });
  }

  support::TinyTraining training_;
  test::TempDir dir_;
  std::string dataset_;
};

constexpr const char* kLoraTables =
    "[adapter]\ntype = 'lora'\nrank = 8\ndtype = 'float32'\n"
    "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";
constexpr const char* kSteps = "micro_batch_size_per_gpu = 2\ngradient_accumulation_steps = 2";

TEST_F(WanAdvice, OfADiffusionPipeLoraIsTakenByItsFiles) {
  const auto texts = expect_true_files(main_toml(kSteps, kLoraTables, "gpu = '1MB'\nram = '1MB'"));
  for (const char* expected :
       {"--gpu ", "--ram ", "[model] transformer_dtype = 'float8'", "[adapter] rank = 4",
        "gradient_accumulation_steps = 1", "micro_batch_size_per_gpu = 1", "frame_buckets = [",
        "resolutions = [192] in dataset.toml"}) {
    EXPECT_THAT(texts, Contains(HasSubstr(expected)));
  }
  EXPECT_THAT(texts, Contains(::testing::MatchesRegex("--gpu [0-9]+MB --ram [0-9]+MB")))
      << "both are short: one alone is not enough";
}

TEST_F(WanAdvice, OfADiffusionPipePolicyIsTakenByItsFlags) {
  EXPECT_THAT(expect_true_files(
                  main_toml("", kLoraTables, "gpu = '1MB'\nram = '1GB'\npolicy = 'resident'")),
              Contains("--policy auto"));
  EXPECT_THAT(
      expect_true_files(main_toml("", kLoraTables, "gpu = '1MB'\nram = '1GB'\nstream_blocks = 1")),
      Contains("--stream_blocks 2"));
}

// On the CPU --ram bounds both arenas unless --gpu is named: then no line speaks of --gpu.
TEST_F(WanAdvice, OnTheCpuSpeaksOfTheBudgetThatWasNamed) {
  const auto texts = expect_true_files(main_toml("", kLoraTables, "ram = '1MB'"));
  EXPECT_THAT(texts, Contains(HasSubstr("--ram ")));
  EXPECT_THAT(texts, Each(Not(HasSubstr("--gpu"))));
}

TEST_F(WanAdvice, OfADiffusionPipeFullFineTuneIsTakenByItsFiles) {
  for (const char* type :
       {"type = 'adamw'\n", "type = 'adamw_optimi'\nkahan_sum = true\ndecouple_lr = true\n",
        "type = 'stableadamw'\n"}) {
    for (const char* dtype : {"", "transformer_dtype = 'bfloat16'\n"}) {
      const std::string tables = fmt::format("{}[optimizer]\nlr = 1e-3\n{}", dtype, type);
      const auto texts =
          expect_true_files(main_toml(kSteps, tables, "gpu = '1MB'\nram = '1MB'\ndisk = 0"));
      EXPECT_THAT(texts, Contains("[optimizer] type = 'AdamW8bit'")) << tables;
      EXPECT_THAT(texts, Contains(HasSubstr("[adapter] type = 'lora', rank = 16"))) << tables;
      EXPECT_THAT(texts, Contains(HasSubstr("--disk "))) << tables;
    }
  }
}

// The rank is that of the LoRA, which another rank would contradict.
TEST_F(WanAdvice, NeverAsksForARankThatTheFileToBeginWithHasNot) {
  const PreparedRun first = read_files(main_toml("", kLoraTables, "ram = '1MB'"), dataset_);
  PreparedRun with_file = read_files(main_toml("", kLoraTables, "ram = '1MB'"), dataset_);
  const auto outcome = fit::find_plan(first.request);
  const Refusal& refusal = std::get<Refusal>(outcome);
  const auto texts = [&](const PreparedRun& run) {
    std::vector<std::string> all;
    for (const fit::Change& c : possible_changes(run, refusal)) all.push_back(c.text);
    return all;
  };
  EXPECT_THAT(texts(first), Contains("[adapter] rank = 4"));
  with_file.config.adapter.init_from = "a LoRA of rank 8";
  EXPECT_THAT(texts(with_file), Each(Not(HasSubstr("rank ="))));
  PreparedRun resumed =
      read_files(main_toml("", kLoraTables, "ram = '1MB'"), dataset_, {"--resume"});
  EXPECT_THAT(texts(resumed), Each(Not(HasSubstr("rank ="))));
}

TEST_F(WanAdvice, OfMusubiTunersFlagsIsTakenBehindThem) {
  const Words words = {"--dit",
                       training_.model_path(),
                       "--dataset_config",
                       training_.path("clips"),
                       "--output_dir",
                       dir_.path("out"),
                       "--network_dim",
                       "8",
                       "--gradient_accumulation_steps",
                       "2",
                       "--gpu",
                       "1MB",
                       "--ram",
                       "1MB",
                       "--stream_blocks",
                       "1"};
  const auto texts = expect_true_advice(
      prepared(words), [&](const std::string& text) { return prepared(with_flags(words, text)); });
  for (const char* expected : {"--gpu ", "--ram ", "--fp8_base", "--network_dim 4",
                               "--gradient_accumulation_steps 1", "--stream_blocks 2"}) {
    EXPECT_THAT(texts, Contains(HasSubstr(expected)));
  }
}

TEST_F(WanAdvice, OfTheFlowMatchingTrainersFlagsIsTakenBehindThem) {
  const Words words = {"--dataset_path",
                       training_.path("clips"),
                       "--model",
                       training_.model_path(),
                       "--checkpoint_dir",
                       dir_.path("out"),
                       "--batch_size",
                       "2",
                       "--gradient_accumulation_steps",
                       "2",
                       "--gpu",
                       "1MB",
                       "--ram",
                       "1MB",
                       "--disk",
                       "0",
                       "--policy",
                       "resident"};
  const auto texts = expect_true_advice(
      prepared(words), [&](const std::string& text) { return prepared(with_flags(words, text)); });
  for (const char* expected : {"--gpu ", "--ram ", "--use_8bit_adam", "--batch_size 1",
                               "--gradient_accumulation_steps 1", "--policy auto"}) {
    EXPECT_THAT(texts, Contains(HasSubstr(expected)));
  }
  EXPECT_THAT(texts, Each(AllOf(Not(HasSubstr("--optimizer_type")), Not(HasSubstr("[")))));
}

// Previews: what [preview] or the lines of a prompt file say.
class PreviewAdvice : public WanAdvice {
 protected:
  PreviewAdvice() { support::write_parts(dir_, training_.config()); }

  template <class Apply>
  static std::vector<std::string> expect_true_previews(const PreparedRun& run, const Apply& apply) {
    std::vector<std::string> texts;
    for (const fit::Change& c : run.previews->changes(run.request)) {
      SCOPED_TRACE(c.text);
      texts.push_back(c.text);
      fit::Request edited = run.request;
      c.apply(edited);
      const PreparedRun again = apply(c.text);
      EXPECT_EQ(facts(edited, false), facts(again.request, false));
      EXPECT_NE(facts(run.request, false), facts(again.request, false)) << "changes nothing";
    }
    return texts;
  }
  // "at most --w 32 --h 32 in the lines of ...": in lines that say more.
  static std::string with_options(std::string lines, const std::string& text) {
    for (const std::string name : {"--f", "--w", "--h"}) {
      std::smatch most, said;
      if (!std::regex_search(text, most, std::regex(name + " (\\d+)"))) continue;
      std::string out, rest = lines;
      while (std::regex_search(rest, said, std::regex(name + " (\\d+)"))) {
        const int to = std::min(std::stoi(said[1]), std::stoi(most[1]));
        out += said.prefix().str() + name + " " + std::to_string(to);
        rest = said.suffix();
      }
      lines = out + rest;
    }
    return lines;
  }
};

TEST_F(PreviewAdvice, OfADiffusionPipeFileIsTakenByIt) {
  const std::string tables = support::parts_keys(dir_) + kLoraTables;
  const std::string section =
      "[preview]\nat_first = true\nframes = 9\nwidth = 128\nheight = 96\nprompts = ['a', 'b']\n";
  const std::string main = main_toml("", tables + section, "ram = '1GB'");
  const auto apply = [&](const std::string& text) {
    if (text == "no [preview]") {
      return read_files(support::without_section(main, "preview"), dataset_);
    }
    return read_files(with_keys(main, text), dataset_);
  };
  const auto texts = expect_true_previews(read_files(main, dataset_), apply);
  EXPECT_THAT(texts, Contains("[preview] width = 64, height = 48"));
  EXPECT_THAT(texts, Contains(HasSubstr("[preview] frames = ")));
  EXPECT_THAT(texts, Contains("no [preview]"));
  // Lines that have numbers of their own do not follow the section's.
  const std::string lines = "[preview]\nat_first = true\nprompts = ['a --f 9 --w 128 --h 96']\n";
  const std::string own = main_toml("", tables + lines, "ram = '1GB'");
  const auto of_lines =
      expect_true_previews(read_files(own, dataset_), [&](const std::string& text) {
        if (text != "no [preview]") return read_files(with_options(own, text), dataset_);
        return read_files(support::without_section(own, "preview"), dataset_);
      });
  EXPECT_THAT(of_lines, Contains("at most --w 64 --h 48 in the lines of [preview] prompts"));
}

TEST_F(PreviewAdvice, OfMusubiTunersPromptFileIsTakenByIt) {
  const std::string prompts = "a --f 9 --w 128 --h 96\nb --w 64 --h 64\n";
  const Words words = {"--dit",
                       training_.model_path(),
                       "--dataset_config",
                       training_.path("clips"),
                       "--output_dir",
                       dir_.path("out"),
                       "--vae",
                       dir_.path("vae.safetensors"),
                       "--t5",
                       dir_.path("t5.safetensors"),
                       "--tokenizer",
                       dir_.path("tokenizer"),
                       "--ram",
                       "1GB",
                       "--sample_at_first",
                       "--sample_prompts",
                       dir_.path("prompts.txt")};
  const auto read = [&](const std::string& lines) {
    dir_.write("prompts.txt", lines);
    return prepared(words);
  };
  const auto texts = expect_true_previews(read(prompts), [&](const std::string& text) {
    if (text != "no --sample_prompts") return read(with_options(prompts, text));
    return prepared(Words(words.begin(), words.end() - 2));
  });
  EXPECT_EQ(texts.size(), 3u);
}

}  // namespace
}  // namespace ballast::train::advice_test
