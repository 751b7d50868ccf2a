#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ballast {

// Where a library was found, in the order of the search.
enum class LibraryOrigin {
  process,   // loaded already: PyTorch's, where PyTorch was imported first
  variable,  // a folder of BALLAST_CUDA_PATH
  pip,       // a Python package beside ours
  loader,    // by name: LD_LIBRARY_PATH, the system's folders
  toolkit,   // the CUDA toolkit's usual folder
};

// "from a Python package"
std::string_view text_of(LibraryOrigin origin);

struct WantedLibrary {
  std::vector<std::string> files;  // its names, the one to prefer first: "libcudnn.so.9"
  // What it loads itself by name. Where it is taken from a folder the loader does not know these,
  // so they are loaded before it: names begin with one of these, in this order, of the same folder.
  std::vector<std::string> parts = {};
  std::vector<WantedLibrary> needs = {};  // the same, from any of the folders; may be missing
  // Why this one cannot be used, given its handle; the search goes on then.
  std::function<std::optional<std::string>(void*)> fault = {};
};

// Folders to look into, absolute paths.
struct LibraryFolders {
  std::vector<std::string> variable, pip, toolkit;
};

struct FoundLibrary {
  void* handle = nullptr;  // null: there is none
  std::string file;        // which of the names
  std::string path;        // as it was loaded
  LibraryOrigin origin = LibraryOrigin::loader;
  std::string tried;  // why others were not taken, "; " between them
};

// Those of this process: BALLAST_CUDA_PATH without relative folders, NVIDIA's Python packages of
// the environment that holds this program or library, /usr/local/cuda/lib64 and /opt/cuda/lib64.
LibraryFolders library_folders();

// The first that loads and has no fault; a preferred name is sought everywhere before the next one.
FoundLibrary search_library(const WantedLibrary& wanted,
                            const LibraryFolders& folders = library_folders());

}  // namespace ballast
