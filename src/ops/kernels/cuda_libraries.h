#pragma once

#include <cublasLt.h>
#include <cudnn_graph.h>

// cuBLASLt and cuDNN, loaded when they are first used: one program serves machines with and without
// them, and a run on the CPU does not carry their memory. For _cuda.cpp files only.
namespace ballast::ops::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtGetStatusString) text_of;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmul) matmul;
};

struct Cudnn {
  decltype(&cudnnGetVersion) get_version;
  decltype(&cudnnGetErrorString) text_of;
  decltype(&cudnnGetLastErrorString) last_error;
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
};

// Fail with ErrorCode::device, naming the library and what to install, when it cannot be loaded or
// is a version that computes wrongly.
const CublasLt& cublas_lt();
const Cudnn& cudnn();

// Fail with ErrorCode::device. doing: "making a product".
void check_cublas(cublasStatus_t status, const char* doing);
void check_cudnn(cudnnStatus_t status, const char* doing);

}  // namespace ballast::ops::cuda
