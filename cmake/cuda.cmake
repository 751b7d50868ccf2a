# The CUDA backend is built where nvcc and cuDNN's headers are. Only the runtime is linked, statically:
# cuBLASLt and cuDNN are loaded when a GPU is used (src/ops/cuda_libraries.h), so one program serves
# machines with and without them.
find_program(BALLAST_NVCC nvcc HINTS /usr/local/cuda/bin)
find_path(CUDNN_INCLUDE_DIR cudnn_graph.h HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT PATH_SUFFIXES include
          PATHS /usr/local/cuda/include /usr/include/${CMAKE_LIBRARY_ARCHITECTURE})
set(cuda_found OFF)
if(BALLAST_NVCC AND CUDNN_INCLUDE_DIR AND NOT BALLAST_SANITIZE AND NOT BALLAST_FUZZ)
  set(cuda_found ON)
endif()
option(BALLAST_CUDA "build the CUDA backend" ${cuda_found})
if(BALLAST_CUDA)
  if(NOT BALLAST_NVCC OR NOT CUDNN_INCLUDE_DIR)
    message(FATAL_ERROR "BALLAST_CUDA needs nvcc (${BALLAST_NVCC}) and cudnn_graph.h (${CUDNN_INCLUDE_DIR})")
  endif()
  set(CMAKE_CUDA_COMPILER ${BALLAST_NVCC})
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # For the GPUs of this machine; without one, what the driver of any supported GPU makes its code
    # of when the program starts there. scripts/release.sh builds for all of them.
    find_program(BALLAST_NVIDIA_SMI nvidia-smi)
    set(CMAKE_CUDA_ARCHITECTURES 80-virtual 90-virtual)
    if(BALLAST_NVIDIA_SMI)
      execute_process(COMMAND ${BALLAST_NVIDIA_SMI} -L RESULT_VARIABLE no_gpu OUTPUT_QUIET ERROR_QUIET)
      if(no_gpu EQUAL 0)
        set(CMAKE_CUDA_ARCHITECTURES native)
      endif()
    endif()
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 17)  # CMake 3.25 knows no C++20 for nvcc 13
  find_package(CUDAToolkit 12.4 REQUIRED)
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  # Where the libraries are that are loaded later.
  list(APPEND CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR})
  add_compile_definitions(BALLAST_CUDA)
endif()
