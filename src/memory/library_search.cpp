#include "memory/library_search.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

namespace ballast {
namespace {

namespace fs = std::filesystem;

// Files and folders in a folder whose names begin so, in order.
std::vector<std::string> entries(const std::string& folder, std::string_view begin) {
  std::vector<std::string> paths;
  std::error_code missing;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, missing)) {
    if (entry.path().filename().string().starts_with(begin)) paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  return paths;
}

// The folder of the file that holds this function: libballast.so.0, or the program.
fs::path own_folder() {
  Dl_info self{};
  const void* const here = reinterpret_cast<const void*>(&library_folders);
  if (::dladdr(here, &self) != 0 && self.dli_fname != nullptr && self.dli_fname[0] == '/' &&
      fs::path(self.dli_fname).filename().string().find(".so") != std::string::npos) {
    return fs::path(self.dli_fname).parent_path();
  }
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

std::vector<std::string> pip_folders(const fs::path& own) {
  // Beside the package "ballast", and for the program in the environment's bin.
  std::vector<std::string> roots = {(own / "../nvidia").lexically_normal().string()};
  const std::string packages = (own / "../lib").lexically_normal().string();
  for (const std::string& python : entries(packages, "python3")) {
    for (const char* kind : {"site-packages", "dist-packages"}) {
      roots.push_back(fmt::format("{}/{}/nvidia", python, kind));
    }
  }
  std::vector<std::string> folders;
  for (const std::string& root : roots) {
    for (const char* package : {"cu13", "cudnn", "cublas", "cuda_nvrtc"}) {
      std::string folder = fmt::format("{}/{}/lib", root, package);
      if (::access(folder.c_str(), X_OK) == 0) folders.push_back(std::move(folder));
    }
  }
  return folders;
}

std::vector<std::string> absolute_folders(std::string_view list) {
  std::vector<std::string> folders;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    if (list.substr(begin, end - begin).starts_with('/')) {
      folders.emplace_back(list.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  return folders;
}

std::string path_of(void* library) {
  const link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return {};
  return map->l_name != nullptr ? map->l_name : "";
}

class Search {
 public:
  Search(const WantedLibrary& wanted, const LibraryFolders& folders)
      : wanted_(wanted), folders_(folders) {}

  // loader: whether it is asked too.
  FoundLibrary run(bool loader) {
    for (const std::string& file : wanted_.files) {
      if (by_name(file, LibraryOrigin::process) || in_folders(file, LibraryOrigin::variable) ||
          in_folders(file, LibraryOrigin::pip) ||
          (loader && by_name(file, LibraryOrigin::loader)) ||
          in_folders(file, LibraryOrigin::toolkit)) {
        break;
      }
    }
    return std::move(found_);
  }

 private:
  void reject(const std::string& why) {
    found_.tried += fmt::format("{}{}", found_.tried.empty() ? "" : "; ", why);
  }

  void* open(const std::string& name, int flags) {
    void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
    if (library == nullptr && (flags & RTLD_NOLOAD) == 0) {
      const char* const why = ::dlerror();
      reject(why != nullptr ? why : fmt::format("{} cannot be loaded", name));
    }
    return library;
  }

  bool take(void* library, const std::string& file, LibraryOrigin origin) {
    if (library == nullptr) return false;
    const std::string path = path_of(library);
    if (const auto fault = wanted_.fault ? wanted_.fault(library) : std::nullopt) {
      reject(fmt::format("{}: {}", path.empty() ? file : path, *fault));
      ::dlclose(library);
      return false;
    }
    found_.handle = library;
    found_.file = file;
    found_.path = path;
    found_.origin = origin;
    return true;
  }

  bool by_name(const std::string& file, LibraryOrigin origin) {
    return take(open(file, origin == LibraryOrigin::process ? RTLD_NOLOAD : 0), file, origin);
  }

  bool in_folders(const std::string& file, LibraryOrigin origin) {
    const auto& folders = origin == LibraryOrigin::variable ? folders_.variable
                          : origin == LibraryOrigin::pip    ? folders_.pip
                                                            : folders_.toolkit;
    for (const std::string& folder : folders) {
      const std::string path = folder + "/" + file;
      if (::access(path.c_str(), R_OK) != 0) continue;
      load_before(folder);
      if (take(open(path, 0), file, origin)) return true;
    }
    return false;
  }

  // They stay loaded: the library finds them by name when it is used.
  void load_before(const std::string& folder) {
    for (const WantedLibrary& need : wanted_.needs) Search(need, folders_).run(false);
    for (const std::string& part : wanted_.parts) {
      for (const std::string& path : entries(folder, part)) open(path, 0);
    }
  }

  const WantedLibrary& wanted_;
  const LibraryFolders& folders_;
  FoundLibrary found_;
};

}  // namespace

std::string_view text_of(LibraryOrigin origin) {
  switch (origin) {
    case LibraryOrigin::process:
      return "loaded by this process before";
    case LibraryOrigin::variable:
      return "from BALLAST_CUDA_PATH";
    case LibraryOrigin::pip:
      return "from a Python package";
    case LibraryOrigin::loader:
      return "found by the system's loader";
    case LibraryOrigin::toolkit:
      return "from the CUDA toolkit's folder";
  }
  return "";
}

LibraryFolders library_folders() {
  LibraryFolders folders = {.variable = {},
                            .pip = pip_folders(own_folder()),
                            .toolkit = {"/usr/local/cuda/lib64", "/opt/cuda/lib64"}};
  if (const char* list = std::getenv("BALLAST_CUDA_PATH")) {
    folders.variable = absolute_folders(list);
  }
  return folders;
}

FoundLibrary search_library(const WantedLibrary& wanted, const LibraryFolders& folders) {
  return Search(wanted, folders).run(true);
}

}  // namespace ballast
