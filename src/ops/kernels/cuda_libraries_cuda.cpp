#include <dlfcn.h>

#include <array>
#include <string>
#include <utility>

#include "core/error.h"
#include "memory/gpu_libraries.h"
#include "ops/kernels/cuda_libraries.h"

namespace ballast::ops::cuda {
namespace {

// A shared library that stays loaded: its functions are used until the process ends.
class Library {
 public:
  Library(const char* what, const WantedLibrary& wanted, Advice install)
      : what_(what), install_(std::move(install)) {
    const FoundLibrary found = search_library(wanted);
    handle_ = found.handle;
    name_ = found.path;
    if (handle_ != nullptr) return;
    refuse(fmt::format("{} cannot be loaded, which products and attention on the GPU need: {}",
                       what_, found.tried));
  }

  template <class F>
  void load(F& function, const char* symbol) const {
    function = reinterpret_cast<F>(::dlsym(handle_, symbol));
    if (function == nullptr) {
      refuse(fmt::format("{} ({}) has no function {}: it is too old", what_, name_, symbol));
    }
  }

  [[noreturn]] void refuse(const std::string& message) const {
    fail(ErrorCode::device, message, {install_, {"--device cpu", "runs on the CPU"}});
  }

 private:
  const char* what_;
  Advice install_;
  std::string name_;
  void* handle_ = nullptr;
};

CublasLt load_cublas_lt() {
  const Library library(
      "cuBLASLt", wanted_cublas_lt(CUBLAS_VER_MAJOR),
      {fmt::format("apt install libcublas-{}", CUBLAS_VER_MAJOR),
       "or pip install nvidia-cublas, beside ballast-ml; BALLAST_CUDA_PATH names other folders"});
  CublasLt f{};
  library.load(f.create, "cublasLtCreate");
  library.load(f.destroy, "cublasLtDestroy");
  library.load(f.get_version, "cublasLtGetVersion");
  library.load(f.text_of, "cublasLtGetStatusString");
  library.load(f.desc_create, "cublasLtMatmulDescCreate");
  library.load(f.desc_set, "cublasLtMatmulDescSetAttribute");
  library.load(f.desc_destroy, "cublasLtMatmulDescDestroy");
  library.load(f.layout_create, "cublasLtMatrixLayoutCreate");
  library.load(f.layout_set, "cublasLtMatrixLayoutSetAttribute");
  library.load(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
  library.load(f.preference_create, "cublasLtMatmulPreferenceCreate");
  library.load(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  library.load(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  library.load(f.get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  library.load(f.check, "cublasLtMatmulAlgoCheck");
  library.load(f.matmul, "cublasLtMatmul");
  return f;
}

Cudnn load_cudnn() {
  const Library library("cuDNN", wanted_cudnn(CUBLAS_VER_MAJOR),
                        {fmt::format("apt install libcudnn9-cuda-{}", CUBLAS_VER_MAJOR),
                         "or pip install nvidia-cudnn-cu13, beside ballast-ml; BALLAST_CUDA_PATH "
                         "names other folders"});
  Cudnn f{};
  library.load(f.get_version, "cudnnGetVersion");
  library.load(f.text_of, "cudnnGetErrorString");
  library.load(f.last_error, "cudnnGetLastErrorString");
  library.load(f.create, "cudnnCreate");
  library.load(f.destroy, "cudnnDestroy");
  library.load(f.set_stream, "cudnnSetStream");
  library.load(f.create_descriptor, "cudnnBackendCreateDescriptor");
  library.load(f.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  library.load(f.set_attribute, "cudnnBackendSetAttribute");
  library.load(f.get_attribute, "cudnnBackendGetAttribute");
  library.load(f.finalize, "cudnnBackendFinalize");
  library.load(f.execute, "cudnnBackendExecute");
  return f;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt functions = load_cublas_lt();
  return functions;
}

const Cudnn& cudnn() {
  static const Cudnn functions = load_cudnn();
  return functions;
}

void check_cublas(cublasStatus_t status, const char* doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorCode::device,
       fmt::format("cuBLASLt failed while {}: {}", doing, cublas_lt().text_of(status)),
       {{"ballast doctor", "checks the driver and the card"}});
}

void check_cudnn(cudnnStatus_t status, const char* doing) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> why{};
  cudnn().last_error(why.data(), why.size());
  fail(ErrorCode::device,
       fmt::format("cuDNN failed while {}: {} {}", doing, cudnn().text_of(status), why.data()),
       {{"ballast doctor", "checks the driver and the card"}});
}

}  // namespace ballast::ops::cuda
