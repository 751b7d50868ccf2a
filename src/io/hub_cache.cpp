#include "io/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/path_kind.h"
#include "io/limits.h"
#include "io/weight_index.h"
#include "memory/text_file.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxEntries = 100'000;  // of a snapshot
constexpr std::size_t kMaxPart = 96;          // characters of a part of an id, as on the hub
constexpr std::string_view kRepositoryPrefix = "models--";
constexpr std::string_view kIndexEnd = ".index.json";

bool is_id_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

bool is_id_part(std::string_view part) {
  return !part.empty() && part.size() <= kMaxPart && part.front() != '.' && part.front() != '-' &&
         part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos &&
         std::ranges::all_of(part, is_id_character);
}

bool is_revision(std::string_view text) {
  return !text.empty() && text.size() <= kMaxPart && text.front() != '.' &&
         text.find("..") == std::string_view::npos && std::ranges::all_of(text, is_id_character);
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "~/x" as a shell reads it.
std::string with_home(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  return environment("HOME") + path.substr(1);
}

// "models--ORG--NAME" -> "ORG/NAME"
std::string repository_of(const fs::path& folder) {
  std::string name = folder.filename().string();
  if (!name.starts_with(kRepositoryPrefix)) return name;
  name.erase(0, kRepositoryPrefix.size());
  if (const std::size_t at = name.find("--"); at != std::string::npos) name.replace(at, 2, "/");
  return name;
}

// The commit that a file in refs/ names; "": none.
std::string commit_of(const fs::path& repository, const std::string& reference) {
  constexpr std::uint64_t kReferenceBytes = 4096;
  const fs::path path = repository / "refs" / reference;
  if (std::error_code error; !fs::is_regular_file(path, error)) return "";
  const std::string text = read_text_file(path.string(), kReferenceBytes, "a reference");
  const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const std::string commit = text.substr(begin, text.find_first_of(" \t\r\n", begin) - begin);
  return is_revision(commit) ? commit : "";
}

std::vector<fs::path> snapshots_of(const fs::path& repository) {
  std::vector<fs::path> all;
  std::error_code error;
  for (fs::directory_iterator at(repository / "snapshots", error), end; !error && at != end;
       at.increment(error)) {
    if (is_folder(at->path())) all.push_back(at->path());
  }
  const auto changed = [](const fs::path& p) {
    std::error_code ignored;
    return fs::last_write_time(p, ignored);
  };
  std::ranges::sort(all, [&](const fs::path& a, const fs::path& b) {
    const auto x = changed(a), y = changed(b);
    return x != y ? x > y : a < b;
  });
  return all;
}

std::string joined_names(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + printable(names[i]);
  }
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

std::vector<std::string> revisions_of(const fs::path& repository) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(repository / "refs", error), end; !error && at != end;
       at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  for (const fs::path& p : snapshots_of(repository)) names.push_back(p.filename().string());
  std::ranges::sort(names);
  return names;
}

// The snapshot of a repository's folder; nullopt: it has none.
std::optional<ModelPath> snapshot_in(const fs::path& repository, const std::string& revision) {
  const std::vector<fs::path> all = snapshots_of(repository);
  if (all.empty()) return std::nullopt;
  if (!revision.empty()) {
    if (is_folder(repository / "snapshots" / revision)) {
      return ModelPath{(repository / "snapshots" / revision).string()};
    }
    const std::string commit = commit_of(repository, revision);
    if (!commit.empty() && is_folder(repository / "snapshots" / commit)) {
      return ModelPath{(repository / "snapshots" / commit).string()};
    }
    const std::string id = repository_of(repository);
    fail(ErrorCode::input,
         fmt::format("{}: the local cache has no revision {}; it has {}", id, printable(revision),
                     joined_names(revisions_of(repository))),
         {{fmt::format("hf download {} --revision {}", id, revision), "downloads it"}});
  }
  const std::string main = commit_of(repository, "main");
  if (!main.empty() && is_folder(repository / "snapshots" / main)) {
    return ModelPath{(repository / "snapshots" / main).string()};
  }
  return ModelPath{
      all[0].string(),
      fmt::format("{}: the cache has no main revision; {} {} is used", repository_of(repository),
                  all.size() == 1 ? "its only snapshot" : "the newest snapshot",
                  all[0].filename().string())};
}

bool is_weight_name(const std::string& name) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{".safetensors", ".pth", ".pt", ".bin", ".gguf"},
      [&](std::string_view end) { return name.ends_with(end); });
}

// Shards that an index names and its folder does not have.
void add_absent_shards(const fs::path& index, const fs::path& root,
                       std::vector<std::string>& missing) {
  const std::string text =
      read_text_file(index.string(), limits::kIndexBytes, "index.limit: an index");
  for (const std::string& shard : parse_weight_index(text, index.string()).shards) {
    const fs::path path = index.parent_path() / shard;
    // A broken link is found where links are looked at.
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error))) {
      missing.push_back(path.lexically_relative(root).generic_string());
    }
  }
}

// Files that a download has not brought yet, by name.
std::vector<std::string> missing_files(const fs::path& root, HubUse use) {
  std::vector<std::string> missing;
  bool weights = false;
  std::size_t seen = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(root, error), end; !error && at != end;
       at.increment(error)) {
    if (++seen > kMaxEntries) {
      fail(ErrorCode::input, "{}: more than {} entries", printable(root.string()), kMaxEntries);
    }
    const std::string name = at->path().filename().string();
    if (!path_exists(at->path())) {
      missing.push_back(at->path().lexically_relative(root).generic_string());
    } else if (use == HubUse::weights && name.ends_with(kIndexEnd)) {
      weights = true;
      add_absent_shards(at->path(), root, missing);
    }
    weights |= is_weight_name(name);
  }
  if (use == HubUse::weights && !weights) {
    missing.push_back("weights (*.safetensors, *.bin or *.pth)");
  }
  std::ranges::sort(missing);
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

void require_complete(const ModelPath& snapshot, const HubId& id, HubUse use) {
  const fs::path root = fs::path(snapshot.path) / id.inside;
  if (!is_folder(root)) return;
  const std::vector<std::string> missing = missing_files(root, use);
  if (missing.empty()) return;
  const std::string revision = id.revision.empty() ? "" : " --revision " + id.revision;
  fail(ErrorCode::input,
       fmt::format("{} is incomplete in the local cache: {} missing: {}", id.repository,
                   missing.size() == 1 ? "1 file is" : fmt::format("{} files are", missing.size()),
                   joined_names(missing)),
       {{fmt::format("hf download {}{}", id.repository, revision), "fetches what is missing"}});
}

}  // namespace

std::optional<HubId> parse_hub_id(std::string_view text) {
  if (text.empty() || text.size() > 4096 || printable(text, text.size()) != text) {
    return std::nullopt;
  }
  std::vector<std::string_view> parts;
  for (std::string_view rest = text;;) {
    const std::size_t slash = rest.find('/');
    parts.push_back(rest.substr(0, slash));
    if (slash == std::string_view::npos) break;
    rest.remove_prefix(slash + 1);
  }
  if (parts.size() > 1 && parts.back().empty()) parts.pop_back();  // "ORG/NAME/"
  HubId id;
  const std::size_t named = std::min<std::size_t>(parts.size(), 2);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::string_view part = parts[i];
    if (i + 1 == named) {
      if (const std::size_t at = part.find('@'); at != std::string_view::npos) {
        id.revision = part.substr(at + 1);
        if (!is_revision(id.revision)) return std::nullopt;
        part = part.substr(0, at);
      }
    }
    if (i < named) {
      if (!is_id_part(part)) return std::nullopt;
      id.repository += (i > 0 ? "/" : "") + std::string(part);
    } else {
      if (part.empty() || part == "." || part == "..") return std::nullopt;
      id.inside += (i > named ? "/" : "") + std::string(part);
    }
  }
  return id;
}

std::string hub_cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string value = environment(name); !value.empty()) return with_home(value);
  }
  if (const std::string home = environment("HF_HOME"); !home.empty()) {
    return with_home(home) + "/hub";
  }
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return with_home(cache) + "/huggingface/hub";
  }
  return environment("HOME") + "/.cache/huggingface/hub";
}

ModelPath resolve_model_path(const std::string& named, HubUse use) {
  if (named.empty()) return {};
  if (path_exists(named)) {
    if (!is_folder(fs::path(named) / "snapshots")) return {named};
    const auto snapshot = snapshot_in(named, "");
    if (!snapshot) return {named};
    fs::path folder(named);
    if (!folder.has_filename()) folder = folder.parent_path();
    require_complete(*snapshot, {.repository = repository_of(folder)}, use);
    return *snapshot;
  }
  const auto id = parse_hub_id(named);
  if (!id) return {named};
  std::string folder(kRepositoryPrefix);
  for (const char c : id->repository) folder += c == '/' ? "--" : std::string(1, c);
  const auto snapshot = snapshot_in(fs::path(hub_cache_folder()) / folder, id->revision);
  if (!snapshot) return {named};
  require_complete(*snapshot, *id, use);
  if (id->inside.empty()) return *snapshot;
  const fs::path path = fs::path(snapshot->path) / id->inside;
  if (!path_exists(path)) {
    fail(ErrorCode::input,
         fmt::format("{}: {} is not in the local cache", id->repository, printable(id->inside)),
         {{download_command(*id, named), "downloads it"}});
  }
  return {path.string(), snapshot->note};
}

std::string model_name_of(const std::string& path) {
  fs::path p = fs::path(path).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  for (fs::path at = p; at.has_parent_path() && at.parent_path() != at; at = at.parent_path()) {
    if (at.parent_path().filename() != "snapshots") continue;
    const std::string repository = repository_of(at.parent_path().parent_path());
    return repository.substr(repository.rfind('/') + 1);
  }
  return p.filename().string();
}

std::string download_command(const HubId& id, const std::string& folder) {
  std::string command = "hf download " + id.repository;
  std::string to = folder;
  while (to.size() > 1 && to.ends_with('/')) to.pop_back();
  if (!id.inside.empty()) {
    command +=
        is_weight_name(id.inside) ? " " + id.inside : fmt::format(" --include '{}/*'", id.inside);
    if (to.ends_with("/" + id.inside)) to.resize(to.size() - id.inside.size() - 1);
  }
  if (!id.revision.empty()) command += " --revision " + id.revision;
  return command + " --local-dir " + to;
}

void fail_not_downloaded(const std::string& named, const HubId& id) {
  fail(ErrorCode::input, fmt::format("{} is not on this machine", printable(named)),
       {{download_command(id, named), "downloads it; then give the same command again"}});
}

std::vector<Advice> download_advice(const std::string& named) {
  const auto id = parse_hub_id(named);
  const bool may_be_id = id && id->inside.empty() &&
                         id->repository.find('/') != std::string::npos &&
                         !is_weight_name(id->repository);
  if (!may_be_id) return {};
  return {{download_command(*id, named), "downloads it, where it is a model of the hub"}};
}

}  // namespace ballast
