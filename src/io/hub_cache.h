#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace ballast {

// A model of the Hugging Face hub as people name it: ORG/NAME or NAME, then @REVISION, then the
// path of a file or folder in it. Nothing here uses the network.
struct HubId {
  std::string repository;     // "Wan-AI/Wan2.2-T2V-A14B", "t5-small"
  std::string revision = {};  // "": main
  std::string inside = {};    // "low_noise_model"; "": the whole repository
};

// nullopt for what cannot be an id: absolute and relative paths ("/x", "./x", "../x", "~/x"), empty
// parts, characters that the hub does not allow.
std::optional<HubId> parse_hub_id(std::string_view text);

// Where the hub's tools keep what they download: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub: the first that is set.
std::string hub_cache_folder();

struct ModelPath {
  std::string path;
  std::string note = {};  // a sentence for the user, where a snapshot had to be chosen; else ""
};

enum class HubUse {
  weights,    // shards that an index names must be there, and some weights at all
  tokenizer,  // a snapshot that holds nothing else will do
};

// The file or folder that a user means by `named`. A local path that exists is taken as it is; of a
// folder models--ORG--NAME of a cache the snapshot is taken. Otherwise an id whose repository is in
// the cache is its snapshot: that of the revision, else of refs/main, else the only or the newest
// one. What is found nowhere is returned as it was given. Fails with ErrorCode::input where the
// revision is not in the cache, and where files of the snapshot are missing, with their names.
ModelPath resolve_model_path(const std::string& named, HubUse use = HubUse::weights);

// What people call the model at a path: the last part of it, or of a snapshot the repository's
// name.
std::string model_name_of(const std::string& path);

// The command that downloads the id to the local folder of that name.
std::string download_command(const HubId& id, const std::string& folder);

// ErrorCode::input: a model that is known, and neither a local path nor in the cache. The advice
// downloads it to a folder called as the user named it, so that the same command works then.
[[noreturn]] void fail_not_downloaded(const std::string& named, const HubId& id);

// The same as advice, where a path that is not there could be an id: ORG/NAME.
std::vector<Advice> download_advice(const std::string& named);

}  // namespace ballast
