#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/e2e/ballast_process.h"

namespace ballast::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST(CommandLine, PrintsItsVersion) {
  const Finished f = run_ballast({"--version"});
  EXPECT_EQ(f.exit_code, 0);
  EXPECT_THAT(f.out, ::testing::MatchesRegex("ballast [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  EXPECT_THAT(f.err, IsEmpty());
}

TEST(CommandLine, HelpNamesEveryCommandOnOneLine) {
  const Finished f = run_ballast({"--help"});
  EXPECT_EQ(f.exit_code, 0);
  for (const char* command : {"\n  doctor ", "\n  inspect ", "\n  verify "}) {
    EXPECT_THAT(f.out, HasSubstr(command));
  }
}

TEST(CommandLine, HelpOfACommandListsItsOptions) {
  const Finished f = run_ballast({"verify", "--help"});
  EXPECT_EQ(f.exit_code, 0);
  EXPECT_THAT(f.out, AllOf(HasSubstr("--policy"), HasSubstr("keep-attention"), HasSubstr("--out")));
}

// Every command that takes a budget, with what it needs besides.
const std::vector<std::vector<std::string>> kTakeBudgets = {
    {"plan", "--model", "wan2.2-ti2v-5b"},
    {"plan", "--dit", "m", "--dataset_config", "d", "--output_dir", "o", "--output_name", "n"},
    {"train", "--dit", "m", "--dataset_config", "d", "--output_dir", "o", "--output_name", "n"},
    {"train", "--dataset_path", "d"},
    {"train", "--model_name_or_path", "m", "--train_file", "t.json", "--output_dir", "o"},
    {"cache", "--dataset_config", "d", "--vae", "v"},
    {"distill", "--teacher_path", "t", "--student_config", "s.json", "--data_path", "p.txt"},
    {"sample", "--model", "m", "--prompt", "x"},
    {"sample", "--model_path", "m", "--prompt", "x"},
    {"generate", "--model", "m", "--prompt", "x"},
    {"init", "--model", "m", "--data", "d"},
    {"bench", "wan"},
    {"bench", "t5"},
    {"bench", "text"},
    {"bench", "vae"},
    {"bench", "distill"}};

TEST(CommandLine, EveryCommandSaysTheSameOfAWrongBudget) {
  for (const auto& words : kTakeBudgets) {
    for (const char* flag : {"--gpu", "--ram"}) {
      const auto err = [&](const char* size) {
        std::vector<std::string> all = words;
        all.insert(all.end(), {flag, size});
        const Finished f = run_ballast(all);
        EXPECT_EQ(f.exit_code, 2) << words[0] << ": " << f.err;
        return f.err;
      };
      const std::string name = flag;
      EXPECT_THAT(err("lots"), HasSubstr(name + ": expected a size such as 24GB, found \"lots\"\n"))
          << words[0] << " " << words[1];
      EXPECT_THAT(err("24"), HasSubstr(name + ": 24 means 24 bytes; did you mean 24GB?"))
          << words[0] << " " << words[1];
    }
  }
}

TEST(CommandLine, EveryCommandTakesTheSameSpellingsOfABudget) {
  for (const auto& words : kTakeBudgets) {
    if (words[0] == "bench") continue;  // it would run
    for (const std::vector<std::string>& spelling : {std::vector<std::string>{"--ram", "24GB"},
                                                     {"--ram=24GiB"},
                                                     {"--ram", "24000MB"},
                                                     {"--ram", "24G"},
                                                     {"--ram", "24000000000"}}) {
      std::vector<std::string> all = words;
      all.insert(all.end(), spelling.begin(), spelling.end());
      // The spelling is right; the files are missing.
      EXPECT_THAT(run_ballast(all).err, Not(HasSubstr("--ram: ")))
          << words[0] << " " << words[1] << " " << spelling[0];
    }
  }
}

TEST(CommandLine, TheFlagReferenceIsWhatTheProgramSays) {
  const Finished f = run_ballast({"help", "--markdown"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  std::ifstream file(BALLAST_SOURCE_DIR "/docs/flags.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  EXPECT_TRUE(page == f.out) << "docs/flags.md is not what the program says. To make it again: "
                                "build/release/bin/ballast help --markdown > docs/flags.md";
}

TEST(CommandLine, HelpFitsEightyColumns) {
  std::vector<std::vector<std::string>> pages = {{"--help"}};
  std::istringstream lines(run_ballast({"--help"}).out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ") && line.size() > 13 && line[12] == ' ' && line[2] != ' ' &&
        line.find("ballast") != 2) {
      pages.push_back({line.substr(2, line.find(' ', 2) - 2), "--help"});
    }
  }
  ASSERT_GE(pages.size(), 12u);
  for (const char* command : {"train", "plan", "cache"}) {
    for (const char* page :
         {"--help-all", "--help-musubi", "--help-diffusion-pipe", "--help-flow-matching"}) {
      pages.push_back({command, page});
    }
  }
  pages.push_back({"train", "--help-t5"});
  for (const auto& page : pages) {
    const Finished f = run_ballast(page);
    EXPECT_EQ(f.exit_code, 0) << page[0] << f.err;
    std::istringstream text(f.out);
    for (std::string line; std::getline(text, line);) {
      EXPECT_LE(line.size(), 80u) << page[0] << " " << page.back() << ": " << line;
    }
  }
}

TEST(CommandLine, HelpOfACommandByItsName) {
  EXPECT_EQ(run_ballast({"help", "verify"}).out, run_ballast({"verify", "--help"}).out);
  EXPECT_EQ(run_ballast({"help"}).out, run_ballast({"--help"}).out);
  EXPECT_THAT(run_ballast({"help", "inspct"}).err, HasSubstr("did you mean inspect?"));
  EXPECT_EQ(run_ballast({"help", "bench", "wan"}).out, run_ballast({"bench", "wan", "--help"}).out);
}

TEST(CommandLine, NothingIsAUsageError) {
  const Finished f = run_ballast({});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err,
              AllOf(StartsWith("ballast: no command"), HasSubstr("what would help:\n  1. ")));
}

TEST(CommandLine, UnknownCommandSuggestsTheNearest) {
  const Finished f = run_ballast({"inspct", "x"});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, HasSubstr("no command inspct, did you mean inspect?"));
  EXPECT_THAT(f.out, IsEmpty());
}

TEST(CommandLine, UnknownOptionSuggestsTheNearest) {
  const Finished f = run_ballast({"verify", golden("dtypes"), "--polcy", "all"});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, HasSubstr("no option --polcy, did you mean --policy?"));
}

TEST(CommandLine, FarAwayOptionIsRefusedWithoutASuggestion) {
  const Finished f = run_ballast({"inspect", golden("dtypes"), "--quality=9"});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, HasSubstr("no option --quality\n"));
}

TEST(CommandLine, MissingArgumentAndSurplusArgumentAreUsageErrors) {
  EXPECT_EQ(run_ballast({"inspect"}).exit_code, 2);
  EXPECT_EQ(run_ballast({"inspect", golden("dtypes"), golden("optimizer")}).exit_code, 2);
  EXPECT_EQ(run_ballast({"verify", golden("dtypes"), "--threads", "many"}).exit_code, 2);
}

// No option has two words yet, so this is the rule itself: both spellings reach the same lookup.
TEST(CommandLine, UnderscoresInOptionsAreDashes) {
  const Finished f = run_ballast({"verify", golden("dtypes"), "--no_such=a_b"});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, HasSubstr("no option --no-such\n"));
}

TEST(CommandLine, ReaderThatGoesAwayIsNoCrash) {
  const Finished f = run_ballast({"inspect", golden("dit_lora"), "--tensors"}, Stdout::reader_gone);
  EXPECT_EQ(f.exit_code, 0);
  EXPECT_THAT(f.err, IsEmpty());
}

TEST(CommandLine, FullDiskBehindStdoutIsAnIoError) {
  const Finished f = run_ballast({"doctor"}, Stdout::disk_full);
  EXPECT_EQ(f.exit_code, 6);
  EXPECT_THAT(f.err, HasSubstr("standard output"));
}

TEST(CommandLine, MissingFileIsAnIoErrorThatNamesIt) {
  const Finished f = run_ballast({"inspect", "/nowhere/model.safetensors"});
  EXPECT_EQ(f.exit_code, 6);
  EXPECT_THAT(f.err, HasSubstr("/nowhere/model.safetensors"));
}

TEST(Doctor, ShowsMemoryInUnitsAndInJson) {
  const Finished text = run_ballast({"doctor"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, ::testing::ContainsRegex("RAM +[0-9.]+ [MGT]B"));
  const Finished json = run_ballast({"doctor", "--json"});
  EXPECT_EQ(json.exit_code, 0);
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_GT(parsed.at("ram").get<std::uint64_t>(), 1u << 20);
  EXPECT_GE(parsed.at("threads").get<int>(), 1);
}

}  // namespace
}  // namespace ballast::test
