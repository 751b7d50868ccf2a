#include "report/gpu_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace ballast {
namespace {

using State = MachineCheck::State;

// 13000 is 13.0.
std::string version_text(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

MachineCheck check_device(const GpuInfo& g) {
  MachineCheck c = {"GPU device", State::good,
                    fmt::format("{}, compute capability {}.{}, {} of {} free", g.name, g.sm / 10,
                                g.sm % 10, g.free, g.memory),
                    ""};
  if (g.free.count < g.memory.count / 2) {
    c.state = State::note;
    c.advice = "other programs hold most of it (nvidia-smi lists them): end them for larger runs";
  }
  return c;
}

MachineCheck check_versions(const GpuInfo& g) {
  return {"CUDA", State::good,
          fmt::format("driver for CUDA {}, this build uses {}", version_text(g.driver),
                      version_text(g.runtime)),
          ""};
}

// cuda: 13000 is 13.0.
std::string install_text(const GpuLibrary& l, int cuda) {
  if (l.name == "cuDNN") {
    return fmt::format(
        "install cuDNN 9.6 or later, but not 9.10.0 or 9.10.1 (apt install libcudnn9-cuda-{}), or "
        "name its folder in BALLAST_CUDA_PATH",
        cuda / 1000);
  }
  return fmt::format(
      "install the libraries of CUDA {} (apt install {}-{}-{}), or name their folder in "
      "BALLAST_CUDA_PATH",
      version_text(cuda), l.name == "NVRTC" ? "cuda-nvrtc" : "libcublas", cuda / 1000,
      cuda % 1000 / 10);
}

MachineCheck check_library(const GpuLibrary& l, int cuda) {
  if (!l.problem.empty()) {
    return {l.name, State::warning, fmt::format("{}: {}", l.file, l.problem),
            install_text(l, cuda)};
  }
  const std::string version = l.version.empty() ? "" : fmt::format(", version {}", l.version);
  return {l.name, State::good, fmt::format("{}{}, {}", l.path, version, l.origin), ""};
}

bool is_eager(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text == "EAGER";
}

}  // namespace

GpuFacts find_gpu() {
  GpuFacts facts;
  try {
    facts.gpu = open_gpu();
    facts.libraries = find_gpu_libraries(facts.gpu->runtime / 1000);
  } catch (const Error& e) {  // not an end here: it is the finding
    facts.problem = e.what();
    facts.advice = e.advice();
  }
  if (const char* loading = std::getenv("CUDA_MODULE_LOADING")) facts.loading = loading;
  return facts;
}

std::vector<MachineCheck> check_gpu(const GpuFacts& facts) {
  std::vector<MachineCheck> checks;
  if (!facts.gpu) {
    // Advice to use the CPU is what happens by itself.
    std::string advice;
    for (const Advice& a : facts.advice) {
      if (a.change != "--device cpu") advice = fmt::format("{}: {}", a.change, a.effect);
    }
    checks.push_back({"GPU device", advice.empty() ? State::good : State::warning,
                      fmt::format("no GPU: {}; runs compute on the CPU", facts.problem), advice});
    return checks;
  }
  checks.push_back(check_device(*facts.gpu));
  checks.push_back(check_versions(*facts.gpu));
  for (const GpuLibrary& l : facts.libraries) {
    checks.push_back(check_library(l, facts.gpu->runtime));
  }
  if (facts.loading && is_eager(*facts.loading)) {
    checks.push_back({"CUDA module loading", State::warning,
                      "CUDA_MODULE_LOADING=EAGER: 600 MiB of GPU and 2.4 GiB of RAM for "
                      "kernels that nobody calls, which no plan counts",
                      "unset CUDA_MODULE_LOADING"});
  }
  return checks;
}

}  // namespace ballast
