#pragma once

// Fails with ErrorCode::device when a call of the CUDA runtime, cuBLASLt or cuDNN did. Plain C++17:
// CUDA sources include it.
namespace ballast {

// status: a cudaError_t. doing: "launching rms_norm".
void check_cuda(int status, const char* doing);

// After a kernel launch.
void check_launch(const char* kernel);

}  // namespace ballast
