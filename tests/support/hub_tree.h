#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "tests/support/temp_dir.h"

namespace ballast::support {

// Environment variables for as long as a test runs; nullopt: not set.
class WithEnvironment {
 public:
  explicit WithEnvironment(const std::map<std::string, std::optional<std::string>>& values) {
    for (const auto& [name, value] : values) {
      const char* old = std::getenv(name.c_str());
      before_[name] = old == nullptr ? std::nullopt : std::optional<std::string>(old);
      put(name, value);
    }
  }
  WithEnvironment(const WithEnvironment&) = delete;
  ~WithEnvironment() {
    for (const auto& [name, value] : before_) put(name, value);
  }

 private:
  static void put(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
  std::map<std::string, std::optional<std::string>> before_;
};

// A Hugging Face cache in a folder of its own, which HF_HUB_CACHE names meanwhile.
class HubTree {
 public:
  HubTree() : environment_({{"HF_HUB_CACHE", dir_.path()}}) {}

  // A file of a snapshot: a link to a blob, as the hub's tools make it.
  void add(const std::string& id, const std::string& commit, const std::string& file,
           const std::string& content) {
    const std::string blob = "blobs/" + std::to_string(++blobs_);
    dir_.write(repository(id) + "/" + blob, content);
    link(id, commit, file, blob);
  }
  void add_broken(const std::string& id, const std::string& commit, const std::string& file) {
    link(id, commit, file, "blobs/gone");
  }
  void refer(const std::string& id, const std::string& name, const std::string& commit) {
    dir_.write(repository(id) + "/refs/" + name, commit);
  }
  std::string snapshot(const std::string& id, const std::string& commit) const {
    return dir_.path(repository(id) + "/snapshots/" + commit);
  }
  std::string path(const std::string& id) const { return dir_.path(repository(id)); }
  const std::string& root() const { return dir_.path(); }

 private:
  static std::string repository(std::string id) {
    if (const std::size_t at = id.find('/'); at != std::string::npos) id.replace(at, 1, "--");
    return "models--" + id;
  }
  void link(const std::string& id, const std::string& commit, const std::string& file,
            const std::string& blob) {
    const std::filesystem::path at = std::filesystem::path(snapshot(id, commit)) / file;
    std::filesystem::create_directories(at.parent_path());
    const std::string target = path(id) + "/" + blob;
    if (::symlink(target.c_str(), at.c_str()) != 0) throw std::runtime_error("symlink");
  }

  test::TempDir dir_;
  WithEnvironment environment_;
  int blobs_ = 0;
};

}  // namespace ballast::support
