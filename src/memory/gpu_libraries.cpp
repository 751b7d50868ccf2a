#include "memory/gpu_libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <functional>

namespace ballast {
namespace {

using Inspect = std::function<void(GpuLibrary&, void*)>;  // fills version and problem

GpuLibrary find(std::string name, std::string file, const Inspect& inspect) {
  GpuLibrary found = {
      .name = std::move(name), .file = std::move(file), .version = {}, .problem = {}};
  void* const library = ::dlopen(found.file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) {
    const char* const why = ::dlerror();
    found.problem = why ? why : "it cannot be loaded";
    return found;
  }
  inspect(found, library);
  ::dlclose(library);
  return found;
}

std::string version_text(std::size_t v) {
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

std::size_t ask_version(void* library, const char* function) {
  using Version = std::size_t (*)();
  const auto version = reinterpret_cast<Version>(::dlsym(library, function));
  return version ? version() : 0;
}

void inspect_cudnn(GpuLibrary& found, void* library) {
  const std::size_t version = ask_version(library, "cudnnGetVersion");
  found.version = version_text(version);
  if (const auto fault = cudnn_fault(version)) {
    found.problem = *fault;
    return;
  }
  // It loads these itself, and without one of them finds no way to compute anything.
  for (const char* part :
       {"graph", "heuristic", "engines_runtime_compiled", "engines_precompiled"}) {
    const std::string file = fmt::format("libcudnn_{}.so.9", part);
    void* const loaded = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (!loaded) {
      found.problem = fmt::format("its part {} cannot be loaded", file);
      return;
    }
    ::dlclose(loaded);
  }
}

void inspect_nvrtc(GpuLibrary& found, void* library) {
  using Version = int (*)(int*, int*);
  const auto version = reinterpret_cast<Version>(::dlsym(library, "nvrtcVersion"));
  int major = 0, minor = 0;
  if (version && version(&major, &minor) == 0) found.version = fmt::format("{}.{}", major, minor);
}

}  // namespace

std::optional<std::string> cudnn_fault(std::size_t version) {
  const std::string text = version_text(version);
  if (version < 90600) return fmt::format("version {} is too old, at least 9.6 is needed", text);
  if (version == 91000 || version == 91001) {
    return fmt::format("version {} computes attention gradients wrongly", text);
  }
  return std::nullopt;
}

std::vector<GpuLibrary> find_gpu_libraries(int cuda_major) {
  return {find("cuBLASLt", fmt::format("libcublasLt.so.{}", cuda_major),
               [](GpuLibrary& found, void* library) {
                 found.version = version_text(ask_version(library, "cublasLtGetVersion"));
               }),
          find("cuDNN", "libcudnn.so.9", inspect_cudnn),
          find("NVRTC", fmt::format("libnvrtc.so.{}", cuda_major), inspect_nvrtc)};
}

}  // namespace ballast
