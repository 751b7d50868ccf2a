#include "memory/gpu_libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <functional>

namespace ballast {
namespace {

using Inspect = std::function<void(GpuLibrary&, void*)>;  // fills version and problem

GpuLibrary find(std::string name, const WantedLibrary& wanted, const Inspect& inspect) {
  const FoundLibrary library = search_library(wanted);
  GpuLibrary found = {.name = std::move(name),
                      .file = library.file,
                      .path = library.path,
                      .origin = {},
                      .version = {},
                      .problem = {}};
  if (library.handle == nullptr) {
    found.file = wanted.files.front();
    found.problem = library.tried;
    return found;
  }
  found.origin = text_of(library.origin);
  inspect(found, library.handle);
  ::dlclose(library.handle);
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

std::size_t cudnn_version(void* library) { return ask_version(library, "cudnnGetVersion"); }

void inspect_cudnn(GpuLibrary& found, void* library) {
  found.version = version_text(cudnn_version(library));
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

WantedLibrary wanted_cublas_lt(int cuda_major) {
  WantedLibrary wanted = {.files = {fmt::format("libcublasLt.so.{}", cuda_major)}};
  if (cuda_major == 12 || cuda_major == 13) {
    wanted.files.push_back(fmt::format("libcublasLt.so.{}", 25 - cuda_major));
  }
  return wanted;
}

WantedLibrary wanted_nvrtc(int cuda_major) {
  return {.files = {fmt::format("libnvrtc.so.{}", cuda_major)}, .parts = {"libnvrtc-builtins.so"}};
}

WantedLibrary wanted_cudnn(int cuda_major) {
  return {.files = {"libcudnn.so.9"},
          .parts = {"libcudnn_graph.so", "libcudnn_heuristic.so", "libcudnn_engines_"},
          .needs = {wanted_nvrtc(cuda_major), wanted_cublas_lt(cuda_major)},
          .fault = [](void* library) { return cudnn_fault(cudnn_version(library)); }};
}

std::vector<GpuLibrary> find_gpu_libraries(int cuda_major) {
  return {find("cuBLASLt", wanted_cublas_lt(cuda_major),
               [](GpuLibrary& found, void* library) {
                 found.version = version_text(ask_version(library, "cublasLtGetVersion"));
               }),
          find("cuDNN", wanted_cudnn(cuda_major), inspect_cudnn),
          find("NVRTC", wanted_nvrtc(cuda_major), inspect_nvrtc)};
}

}  // namespace ballast
