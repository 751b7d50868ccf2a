#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ballast::test {

// A folder of its own for one test, gone when the test is over.
class TempDir {
 public:
  explicit TempDir(const std::string& below = std::filesystem::current_path().string())
      : path_(below + "/ballast_test_XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp in " + below);
  }
  TempDir(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

  // Writes a file, making its folders, and returns its path.
  std::string write(const std::string& name, std::string_view bytes) const {
    const std::string at = path(name);
    std::filesystem::create_directories(std::filesystem::path(at).parent_path());
    std::ofstream(at, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return at;
  }

 private:
  std::string path_;
};

inline std::string read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace ballast::test
