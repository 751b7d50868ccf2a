#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "models/wan/config.h"
#include "tests/e2e/ballast_process.h"

namespace ballast::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> job(const std::string& model, const std::string& mode,
                             const std::string& gpu, const std::string& ram) {
  return {"plan", "--model",  model, "--mode",   mode,      "--frames",
          "25",   "--height", "512", "--width",  "512",     "--gpu",
          gpu,    "--ram",    ram,   "--target", "rtx4090", "--json"};
}

TEST(Plan, EveryPresetGivesPeaksInsideItsBudget) {
  for (const wan::Config& c : wan::presets()) {
    for (const std::string mode : {"infer", "lora"}) {
      const Finished f = run_ballast(job(c.name, mode, "24GB", "32GB"));
      ASSERT_EQ(f.exit_code, 0) << c.name << " " << mode << "\n" << f.err;
      const auto j = nlohmann::json::parse(f.out);
      for (const char* tier : {"device", "host", "disk"}) {
        EXPECT_LE(j[tier]["peak_bytes"], j[tier]["budget_bytes"]) << c.name << " " << tier;
        std::uint64_t most = 0;
        for (const auto& phase : j["phases"]) {
          most = std::max(most, phase[tier]["peak_bytes"].get<std::uint64_t>());
          EXPECT_LE(phase[tier]["lower_bound_bytes"], phase[tier]["peak_bytes"]);
        }
        EXPECT_EQ(j[tier]["peak_bytes"], most) << c.name << " " << tier;
      }
      EXPECT_EQ(j["device"]["budget_bytes"], 24'000'000'000u);
      EXPECT_GT(j["step_seconds"], 0);
    }
  }
}

TEST(Plan, RefusesWithWhatWouldHelpAndTheAdviceIsTrue) {
  const Finished f = run_ballast(job("wan2.2-t2v-a14b", "lora", "1.8GB", "32GB"));
  EXPECT_EQ(f.exit_code, 3);
  EXPECT_THAT(f.err, AllOf(HasSubstr("ballast: does not fit: "),
                           HasSubstr("more GPU memory needed"), HasSubstr("in the step: "),
                           HasSubstr("what would help"), Not(HasSubstr("swap"))));
  EXPECT_EQ(f.err.find("does not fit: "), f.err.rfind("does not fit: ")) << f.err;
  const auto j = nlohmann::json::parse(f.out);
  EXPECT_FALSE(j["fits"]);
  EXPECT_GT(j["device"]["peak_bytes"], j["device"]["budget_bytes"]);
  std::string gpu;
  for (const auto& a : j["advice"]) {
    const auto change = a["change"].get<std::string>();
    if (change.starts_with("--gpu ")) gpu = change.substr(6);
  }
  ASSERT_FALSE(gpu.empty());
  EXPECT_EQ(run_ballast(job("wan2.2-t2v-a14b", "lora", gpu, "32GB")).exit_code, 0);
}

TEST(Plan, TheStepIsTheWholeStepWithItsPasses) {
  std::vector<std::string> words = {"plan",     "--model", "wan2.2-ti2v-5b", "--mode", "lora",
                                    "--frames", "25",      "--height",       "512",    "--width",
                                    "512",      "--gpu",   "24GB",           "--ram",  "32GB",
                                    "--batch",  "4",       "--target",       "rtx4090"};
  const Finished text = run_ballast(words);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  words.push_back("--json");
  const auto j = nlohmann::json::parse(run_ballast(words).out);
  const std::string seconds = fmt::format("{:.2f} s", j["seconds_per_step"].get<double>());
  EXPECT_THAT(text.out, HasSubstr("\nstep       " + seconds));
  EXPECT_THAT(text.out, AllOf(HasSubstr(" passes of "), Not(HasSubstr("memory by phase"))));
  words.back() = "--details";
  EXPECT_THAT(run_ballast(words).out, HasSubstr("memory by phase"));
}

TEST(Plan, OnTheCpuRamBoundsBothArenas) {
  const std::vector<std::string> here = {
      "plan",      "--model", "wan2.1-t2v-1.3b", "--mode", "infer", "--frames", "5",
      "--threads", "2",       "--json",          "--ram",  "8GB",   "--device", "cpu"};
  const Finished f = run_ballast(here);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const auto j = nlohmann::json::parse(f.out);
  EXPECT_EQ(j["ram"]["peak_bytes"], j["device"]["peak_bytes"].get<std::uint64_t>() +
                                        j["host"]["peak_bytes"].get<std::uint64_t>());
  EXPECT_LE(j["ram"]["peak_bytes"], j["ram"]["budget_bytes"]);
}

TEST(Plan, SaysWhatIsWrongWithAnOption) {
  const auto err = [](std::vector<std::string> words) {
    const Finished f = run_ballast(std::move(words));
    EXPECT_EQ(f.exit_code, 2) << f.err;
    return f.err;
  };
  EXPECT_THAT(err({"plan", "--model", "wan2.2-t2v-a14"}), HasSubstr("wan2.2-t2v-a14b"));
  EXPECT_THAT(err({"plan", "--model", "wan2.2-ti2v-5b", "--frames", "80"}),
              AllOf(HasSubstr("4n + 1"), HasSubstr("--frames 77"), HasSubstr("--frames 81")));
  EXPECT_THAT(err({"plan", "--model", "wan2.2-ti2v-5b", "--height", "500"}),
              HasSubstr("multiple of 32"));
  EXPECT_THAT(err({"plan", "--model", "wan2.2-ti2v-5b", "--target", "rtx409"}),
              HasSubstr("rtx4090"));
  EXPECT_THAT(err({"plan", "--model", "wan2.2-ti2v-5b", "--policy", "steam2"}),
              HasSubstr("stream2"));
  EXPECT_THAT(err({"plan", "--model", "wan2.2-ti2v-5b", "--gpu", "lots"}), HasSubstr("lots"));
}

TEST(Plan, ANumberWithoutAUnitIsAskedAbout) {
  for (const char* flag : {"--gpu", "--ram", "--disk"}) {
    const Finished f = run_ballast({"plan", "--model", "wan2.2-ti2v-5b", flag, "24"});
    EXPECT_EQ(f.exit_code, 2) << f.err;
    EXPECT_THAT(f.err, HasSubstr(std::string(flag) + ": 24 means 24 bytes; did you mean 24GB?"));
  }
  const Finished dialect = run_ballast({"plan", "--dit", "x", "--dataset_config", "d.toml",
                                        "--output_dir", "o", "--output_name", "n", "--gpu", "24"});
  EXPECT_EQ(dialect.exit_code, 2) << dialect.err;
  EXPECT_THAT(dialect.err, HasSubstr("did you mean 24GB?"));
  const TempDir dir;
  const std::string config = dir.write(
      "run.toml",
      "output_dir = 'o'\ndataset = 'd.toml'\nepochs = 1\n[model]\ntype = 'wan'\nckpt_path = 'm'\n"
      "dtype = 'bfloat16'\n[adapter]\ntype = 'lora'\nrank = 8\n[optimizer]\ntype = 'adamw'\n"
      "lr = 1e-4\n[memory]\ngpu = 24\n");
  for (const char* command : {"plan", "train", "cache"}) {
    const Finished f = run_ballast({command, config});
    EXPECT_EQ(f.exit_code, 4) << f.err;
    EXPECT_THAT(f.err, HasSubstr("line 15: memory.gpu: 24 means 24 bytes; did you mean 24GB?"));
  }
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"sample", "--model",
                                 BALLAST_SOURCE_DIR "/examples/demo_model/model", "--prompt", "x"},
        {"sample", "--model_path", "m", "--prompt", "x"},
        {"generate", "--model", "m", "--prompt", "x"},
        {"bench", "t5", "--model", "flan-t5-small"},
        {"bench", "wan", "--model", "wan2.1-t2v-1.3b"},
        {"bench", "distill", "--model", "wan2.1-t2v-1.3b"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--ram", "24"});
    const Finished f = run_ballast(all);
    EXPECT_EQ(f.exit_code, 2) << words[0] << " " << words[1] << ": " << f.err;
    EXPECT_THAT(f.err, HasSubstr("--ram: 24 means 24 bytes; did you mean 24GB?"));
  }
}

// A plan for another machine knows its GPU, not its RAM.
TEST(Plan, ForAnotherMachineSaysWhoseRamItIs) {
  const std::vector<std::string> words = {"plan",   "--model",  "wan2.1-t2v-1.3b",
                                          "--mode", "infer",    "--frames",
                                          "5",      "--target", "rtx4090"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run_ballast(all);
  };
  constexpr const char* kNote = "is this machine's, not the target's; --ram sets the target's";
  const Finished silent = with({});
  ASSERT_EQ(silent.exit_code, 0) << silent.err;
  EXPECT_THAT(silent.out, HasSubstr(kNote));
  EXPECT_EQ(nlohmann::json::parse(with({"--json"}).out)["ram_of_this_machine"], true);
  const Finished given = with({"--ram", "16GB"});
  EXPECT_THAT(given.out, ::testing::Not(HasSubstr(kNote)));
  EXPECT_EQ(nlohmann::json::parse(with({"--ram", "16GB", "--json"}).out)["ram_of_this_machine"],
            false);
  const Finished here = run_ballast({"plan", "--model", "wan2.1-t2v-1.3b", "--mode", "infer",
                                     "--frames", "5", "--device", "cpu"});
  EXPECT_THAT(here.out, ::testing::Not(HasSubstr(kNote)));
}

TEST(Plan, SaysWhatIsTrainedInSizesThatPeopleKnow) {
  const std::vector<std::string> words = {
      "plan",     "--model", "wan2.2-t2v-a14b", "--mode",   "lora",    "--frames", "5",
      "--height", "480",     "--width",         "832",      "--batch", "2",        "--gpu",
      "140GB",    "--ram",   "200GB",           "--target", "h200",    "--policy", "resident"};
  const Finished f = run_ballast(words);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("76.7 M trainable parameters, effective batch 2\n"));
  std::vector<std::string> json = words;
  json.push_back("--json");
  const auto j = nlohmann::json::parse(run_ballast(json).out);
  EXPECT_EQ(j["trainable_parameters"], 76'677'120);
  EXPECT_EQ(j["effective_batch"], 2);
}

TEST(Plan, HelpNamesEveryTarget) {
  const Finished plan = run_ballast({"plan", "--help"}),
                 train = run_ballast({"train", "--help-all"});
  for (const char* name : {"h200", "gh200", "b200", "a100", "rtx3090", "rtx3080", "a6000",
                           "rtx4090", "rtx4070ti", "l40s", "rtx5090", "rtx5080"}) {
    EXPECT_THAT(plan.out, HasSubstr(name));
    EXPECT_THAT(train.out, HasSubstr(name));
  }
  for (const char* name : {"b200", "gh200", "rtx3080"}) {
    const Finished f = run_ballast({"plan", "--model", "wan2.1-t2v-1.3b", "--mode", "infer",
                                    "--frames", "5", "--ram", "16GB", "--target", name});
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_THAT(f.out, HasSubstr("(rates are estimates)"));
  }
}

TEST(Plan, AGpuThatIsNotThereIsADeviceErrorWithAWayOut) {
  ::setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  const Finished f = run_ballast({"plan", "--model", "wan2.1-t2v-1.3b", "--device", "cuda"});
  EXPECT_EQ(f.exit_code, 5);
  EXPECT_THAT(f.err, HasSubstr("--device cpu"));
  const Finished automatic = run_ballast(
      {"plan", "--model", "wan2.1-t2v-1.3b", "--mode", "infer", "--frames", "5", "--ram", "8GB"});
  EXPECT_EQ(automatic.exit_code, 0) << automatic.err;
  EXPECT_THAT(automatic.out, HasSubstr("this machine's processors"));
  const Finished wrong = run_ballast({"plan", "--model", "wan2.1-t2v-1.3b", "--device", "cud"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("cuda"));
}

TEST(Plan, ForAGpuShowsWhatIsPinned) {
  const std::vector<std::string> words = {
      "plan",     "--model", "wan2.1-t2v-1.3b", "--mode",  "lora",  "--frames", "5",
      "--target", "rtx4090", "--policy",        "offload", "--ram", "32GB",     "--json"};
  const Finished f = run_ballast(words);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const auto j = nlohmann::json::parse(f.out);
  EXPECT_GT(j["host"]["pinned_bytes"], 0);
  EXPECT_EQ(j["host"]["pinned_bytes"], j["host"]["arena_bytes"]);
}

TEST(Plan, Fp8ProductsAreFasterWhereAGpuHasThemAndRefusedElsewhere) {
  std::vector<std::string> words = {
      "plan",     "--model",  "wan2.2-t2v-a14b", "--mode", "infer",
      "--frames", "25",       "--gpu",           "100GB",  "--ram",
      "64GB",     "--policy", "resident",        "--json", "--target"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run_ballast(std::move(all));
  };
  const Finished bf16 = with({"h200"}), fp8 = with({"h200", "--fp8-matmul"});
  ASSERT_EQ(bf16.exit_code, 0) << bf16.err;
  ASSERT_EQ(fp8.exit_code, 0) << fp8.err;
  const auto a = nlohmann::json::parse(bf16.out), b = nlohmann::json::parse(fp8.out);
  EXPECT_LT(b["step_seconds"].get<double>(), 0.85 * a["step_seconds"].get<double>());
  EXPECT_LT(b["device"]["peak_bytes"], a["device"]["peak_bytes"]);
  const Finished old = with({"rtx3090", "--fp8-matmul"});
  EXPECT_EQ(old.exit_code, 5);
  EXPECT_THAT(old.err, AllOf(HasSubstr("compute capability 8.6"), HasSubstr("--weights fp8")));
  EXPECT_EQ(with({"h200", "--fp8-matmul", "--weights", "int8"}).exit_code, 2);
}

TEST(Plan, NamedPolicyIsTakenAsItIs) {
  const Finished f =
      run_ballast({"plan", "--model", "wan2.2-t2v-a14b", "--mode", "lora", "--frames", "5",
                   "--height", "480", "--width", "832", "--gpu", "140GB", "--ram", "200GB",
                   "--target", "h200", "--policy", "stream2"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("weights of 40 of 40 blocks streamed from disk through 2 slots"));
}

}  // namespace
}  // namespace ballast::test
