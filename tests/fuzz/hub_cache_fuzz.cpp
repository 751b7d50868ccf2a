// Names of models and the local hub cache. The first byte chooses:
//   'I'  an id as users write it
//   'R'  the content of refs/main: the snapshot that is taken lies in the cache
//   'X'  the index of a snapshot

#include <cstdlib>
#include <filesystem>

#include "fuzz.h"
#include "io/hub_cache.h"

namespace ballast::fuzz {
namespace {

const std::string& cache() {
  static const std::string folder = [] {
    const std::string path = memory_folder() + "/hub";
    std::filesystem::create_directories(path + "/models--a--b/snapshots/0123");
    std::filesystem::create_directories(path + "/models--a--b/refs");
    ::setenv("HF_HUB_CACHE", path.c_str(), 1);
    return path;
  }();
  return folder;
}

void check_id(std::string_view text) {
  const auto id = parse_hub_id(text);
  if (!id) return;
  for (const std::string& part : {id->repository, id->revision, id->inside}) {
    require(!part.starts_with('/') && ("/" + part + "/").find("/../") == std::string::npos);
  }
  download_command(*id, "folder");
  download_advice(std::string(text));
  accepts([&] { resolve_model_path(std::string(text)); });
}

void resolve() {
  accepts([&] {
    const ModelPath found = resolve_model_path("a/b");
    require(found.path.starts_with(cache() + "/models--a--b/snapshots/"));
    require(std::filesystem::equivalent(std::filesystem::path(found.path).parent_path(),
                                        cache() + "/models--a--b/snapshots"));
    check_notes({found.note});
  });
}

}  // namespace

void one_input(Input input) {
  cache();
  static MemoryFile main("hub/models--a--b/refs/main");
  static MemoryFile weights("hub/models--a--b/snapshots/0123/model-00001-of-00002.safetensors");
  static MemoryFile index("hub/models--a--b/snapshots/0123/model.safetensors.index.json");
  static const bool whole = [] {
    main.write("0123");
    index.write(R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
    return true;
  }();
  require(whole);
  switch (input.byte()) {
    case 'I':
      return check_id(input.rest());
    case 'R':
      main.write(input.rest());
      resolve();
      main.write("0123");
      return;
    case 'X':
      index.write(input.rest());
      resolve();
      index.write(R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
      return;
    default:
      return;
  }
}

}  // namespace ballast::fuzz
