#include "io/hub_cache.h"

#include <gmock/gmock.h>

#include <chrono>

#include "tests/support/errors.h"
#include "tests/support/hub_tree.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kModel = "Wan-AI/Wan2.2-TI2V-5B";

TEST(HubId, HasARepositoryARevisionAndAPlaceInside) {
  const auto plain = parse_hub_id("Wan-AI/Wan2.2-T2V-A14B");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->repository, "Wan-AI/Wan2.2-T2V-A14B");
  EXPECT_EQ(plain->revision, "");
  const auto whole = parse_hub_id("Wan-AI/Wan2.2-T2V-A14B@v1.0/low_noise_model/x.safetensors");
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->repository, "Wan-AI/Wan2.2-T2V-A14B");
  EXPECT_EQ(whole->revision, "v1.0");
  EXPECT_EQ(whole->inside, "low_noise_model/x.safetensors");
  EXPECT_EQ(parse_hub_id("t5-small@main")->repository, "t5-small");
  EXPECT_EQ(parse_hub_id("google/flan-t5-xl/")->inside, "");
}

TEST(HubId, IsNoPath) {
  for (const char* text : {"", "/models/wan", "./wan", "../wan", "~/wan", "a//b", "a/../b",
                           "a/b/../c", "a/b@", "a/b@..", "a/b@x y", "a b/c", "a--b/c", ".hidden/x",
                           "a/b/./c", "a/b/\x1b[2J", "a/b/\x88"}) {
    EXPECT_FALSE(parse_hub_id(text)) << text;
  }
}

TEST(HubCache, IsWhereTheHubsToolsKeepIt) {
  const auto folder = [](const std::map<std::string, std::optional<std::string>>& set) {
    std::map<std::string, std::optional<std::string>> all = {{"HF_HUB_CACHE", {}},
                                                             {"HUGGINGFACE_HUB_CACHE", {}},
                                                             {"HF_HOME", {}},
                                                             {"XDG_CACHE_HOME", {}},
                                                             {"HOME", "/home/x"}};
    for (const auto& [name, value] : set) all[name] = value;
    const support::WithEnvironment environment(all);
    return hub_cache_folder();
  };
  EXPECT_EQ(folder({}), "/home/x/.cache/huggingface/hub");
  EXPECT_EQ(folder({{"XDG_CACHE_HOME", "/c"}}), "/c/huggingface/hub");
  EXPECT_EQ(folder({{"XDG_CACHE_HOME", "/c"}, {"HF_HOME", "/h"}}), "/h/hub");
  EXPECT_EQ(folder({{"HF_HOME", "/h"}, {"HUGGINGFACE_HUB_CACHE", "/old"}}), "/old");
  EXPECT_EQ(folder({{"HUGGINGFACE_HUB_CACHE", "/old"}, {"HF_HUB_CACHE", "~/new"}}), "/home/x/new");
}

TEST(HubCache, FindsTheSnapshotOfMainOrOfARevision) {
  support::HubTree hub;
  hub.add(kModel, "aa11", "model.safetensors", "x");
  hub.add(kModel, "bb22", "model.safetensors", "y");
  hub.refer(kModel, "main", "bb22");
  hub.refer(kModel, "v1", "aa11");
  EXPECT_EQ(resolve_model_path(kModel).path, hub.snapshot(kModel, "bb22"));
  EXPECT_EQ(resolve_model_path(kModel).note, "");
  EXPECT_EQ(resolve_model_path(std::string(kModel) + "@v1").path, hub.snapshot(kModel, "aa11"));
  EXPECT_EQ(resolve_model_path(std::string(kModel) + "@aa11").path, hub.snapshot(kModel, "aa11"));
  EXPECT_EQ(resolve_model_path(std::string(kModel) + "/model.safetensors").path,
            hub.snapshot(kModel, "bb22") + "/model.safetensors");
  EXPECT_FAILS(resolve_model_path(std::string(kModel) + "@v2"), ErrorCode::input,
               "no revision v2; it has aa11, bb22, main, v1");
  EXPECT_FAILS(resolve_model_path(std::string(kModel) + "/other.safetensors"), ErrorCode::input,
               "other.safetensors is not in the local cache");
  EXPECT_EQ(resolve_model_path(hub.path(kModel)).path, hub.snapshot(kModel, "bb22"));
  hub.add("t5-small", "cc33", "model.safetensors", "x");
  EXPECT_EQ(resolve_model_path("t5-small").path, hub.snapshot("t5-small", "cc33"));
}

TEST(HubCache, WithoutMainTheOnlyOrTheNewestSnapshotIsUsedAndSaid) {
  support::HubTree hub;
  hub.add(kModel, "aa11", "model.safetensors", "x");
  EXPECT_THAT(resolve_model_path(kModel).note, HasSubstr("its only snapshot aa11 is used"));
  hub.add(kModel, "bb22", "model.safetensors", "y");
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(hub.snapshot(kModel, "aa11"), now);
  std::filesystem::last_write_time(hub.snapshot(kModel, "bb22"), now - std::chrono::hours(1));
  const ModelPath found = resolve_model_path(kModel);
  EXPECT_EQ(found.path, hub.snapshot(kModel, "aa11"));
  EXPECT_THAT(found.note, HasSubstr("the newest snapshot aa11 is used"));
  // What refs/main says must not lead anywhere else.
  hub.refer(kModel, "main", "../../../etc");
  EXPECT_EQ(resolve_model_path(kModel).path, hub.snapshot(kModel, "aa11"));
}

TEST(HubCache, AnExistingPathWins) {
  support::HubTree hub;
  hub.add("org/name", "aa11", "model.safetensors", "x");
  const test::TempDir dir(".");
  EXPECT_EQ(resolve_model_path(dir.path()).path, dir.path());
  std::filesystem::create_directories("org/name");
  EXPECT_EQ(resolve_model_path("org/name").path, "org/name");
  std::filesystem::remove_all("org");
  EXPECT_EQ(resolve_model_path("org/name").path, hub.snapshot("org/name", "aa11"));
  EXPECT_EQ(resolve_model_path("org/other").path, "org/other");
  EXPECT_EQ(resolve_model_path("").path, "");
}

TEST(HubCache, AnIncompleteSnapshotListsWhatIsMissing) {
  support::HubTree hub;
  hub.add(kModel, "aa11", "transformer/x.safetensors.index.json",
          R"({"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors","c":"x-3.safetensors"}})");
  hub.add(kModel, "aa11", "transformer/x-1.safetensors", "x");
  hub.add_broken(kModel, "aa11", "transformer/x-3.safetensors");
  hub.add_broken(kModel, "aa11", "vae/y.safetensors");
  hub.refer(kModel, "main", "aa11");
  const auto error = test::error_of([&] { resolve_model_path(kModel); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), AllOf(HasSubstr("3 files are missing: transformer/x-2.safetensors, "
                                             "transformer/x-3.safetensors, vae/y.safetensors"),
                                   Not(HasSubstr("x-1"))));
  EXPECT_EQ(error->advice().at(0).change, std::string("hf download ") + kModel);
  // A part that is whole can be used.
  EXPECT_FAILS(resolve_model_path(std::string(kModel) + "/vae"), ErrorCode::input, "1 file is");
  hub.add(kModel, "aa11", "tokenizer/spiece.model", "x");
  EXPECT_EQ(resolve_model_path(std::string(kModel) + "/tokenizer", HubUse::tokenizer).path,
            hub.snapshot(kModel, "aa11") + "/tokenizer");
}

TEST(HubCache, ASnapshotWithoutWeightsHoldsNoModelButMayHoldATokenizer) {
  support::HubTree hub;
  hub.add("google/umt5-xxl", "aa11", "spiece.model", "x");
  EXPECT_FAILS(resolve_model_path("google/umt5-xxl"), ErrorCode::input, "weights (*.safetensors");
  EXPECT_EQ(resolve_model_path("google/umt5-xxl", HubUse::tokenizer).path,
            hub.snapshot("google/umt5-xxl", "aa11"));
}

TEST(HubCache, ASnapshotIsCalledAsItsRepository) {
  EXPECT_EQ(model_name_of("/c/models--google--flan-t5-xl/snapshots/aa11"), "flan-t5-xl");
  EXPECT_EQ(model_name_of("/c/models--google--flan-t5-xl/snapshots/aa11/model.safetensors"),
            "flan-t5-xl");
  EXPECT_EQ(model_name_of("/models/flan-t5-xl/"), "flan-t5-xl");
  EXPECT_EQ(model_name_of("google/flan-t5-xl"), "flan-t5-xl");
}

TEST(HubCache, TheDownloadGoesWhereTheSameCommandFindsIt) {
  const auto command = [](const char* text) { return download_command(*parse_hub_id(text), text); };
  EXPECT_EQ(command("google/flan-t5-xl"),
            "hf download google/flan-t5-xl --local-dir google/flan-t5-xl");
  EXPECT_EQ(command("a/b@v1"), "hf download a/b --revision v1 --local-dir a/b@v1");
  EXPECT_EQ(command("a/b/low_noise_model"),
            "hf download a/b --include 'low_noise_model/*' --local-dir a/b");
  EXPECT_EQ(command("a/b/x/y.safetensors"), "hf download a/b x/y.safetensors --local-dir a/b");
  EXPECT_EQ(download_advice("models/x.safetensors").size(), 0u);
  EXPECT_EQ(download_advice("/x/y").size(), 0u);
  EXPECT_EQ(download_advice("org/name").size(), 1u);
}

}  // namespace
}  // namespace ballast
