# The CUDA backend is built where nvcc and cuDNN's headers are. Only the runtime is linked, statically:
# cuBLASLt and cuDNN are loaded when a GPU is used (src/ops/kernels/cuda_libraries.h), so one program serves
# machines with and without them.
# BALLAST_CUDA is AUTO unless given, so a build folder takes notice when nvcc is installed later. Here it
# becomes ON or OFF, and ballast_cuda_status says why; scripts/build.sh prints that line last.
set(BALLAST_CUDA AUTO CACHE STRING "build the CUDA backend: ON, OFF or AUTO (where nvcc and cuDNN 9 are)")
set_property(CACHE BALLAST_CUDA PROPERTY STRINGS AUTO ON OFF)
set(cuda_oldest 12.4)

find_program(BALLAST_NVCC nvcc HINTS /usr/local/cuda/bin)
find_path(CUDNN_INCLUDE_DIR cudnn_graph.h HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT PATH_SUFFIXES include
          PATHS /usr/local/cuda/include /usr/include/${CMAKE_LIBRARY_ARCHITECTURE})
set(cuda_missing)
if(NOT BALLAST_NVCC)
  set(cuda_missing "nvcc not found")
else()
  execute_process(COMMAND ${BALLAST_NVCC} --version OUTPUT_VARIABLE nvcc_text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" nvcc_text "${nvcc_text}")
  if(NOT CMAKE_MATCH_1)
    set(cuda_missing "${BALLAST_NVCC} --version gave no version")
  elseif(CMAKE_MATCH_1 VERSION_LESS cuda_oldest)
    set(cuda_missing "nvcc ${CMAKE_MATCH_1} found, ${cuda_oldest} or newer needed")
  elseif(NOT CUDNN_INCLUDE_DIR)
    set(cuda_missing "cuDNN 9 headers not found")
  endif()
endif()

set(cuda_off_reason)
if(BALLAST_CUDA STREQUAL "AUTO")
  if(BALLAST_SANITIZE OR BALLAST_FUZZ)
    set(cuda_off_reason "sanitizers and fuzzers run without it")
  else()
    set(cuda_off_reason ${cuda_missing})
  endif()
elseif(NOT BALLAST_CUDA)
  set(cuda_off_reason "switched off by BALLAST_CUDA=OFF")
elseif(cuda_missing)
  message(FATAL_ERROR "BALLAST_CUDA=ON: ${cuda_missing}. README lists what a GPU build needs; "
                      "-DBALLAST_CUDA=OFF builds for the CPU.")
endif()

if(cuda_off_reason)
  set(BALLAST_CUDA OFF)
  set(ballast_cuda_status
      "CUDA: no (${cuda_off_reason}): this build computes on the CPU. GPU build: see README")
else()
  set(BALLAST_CUDA ON)
  set(CMAKE_CUDA_COMPILER ${BALLAST_NVCC})
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # For the GPUs of this machine; without one, PTX that the driver of any supported GPU compiles when
    # the program first starts there. scripts/release.sh builds for all of them.
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
  find_package(CUDAToolkit ${cuda_oldest} REQUIRED)
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  # Where the libraries are that are loaded later. The same in the build folder and installed: CMake
  # pads a RUNPATH that it means to shorten with a colon, which the loader reads as the current folder.
  list(APPEND CMAKE_INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR})
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)

  set(architectures ${CMAKE_CUDA_ARCHITECTURES})
  if(architectures STREQUAL "native")
    set(architectures ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
  endif()
  set(names)
  foreach(architecture ${architectures})
    string(REGEX REPLACE "^([0-9]+[a-z]?).*" "sm_\\1" name ${architecture})
    if(architecture MATCHES "virtual")
      string(APPEND name " (PTX, compiled at the first start)")
    endif()
    list(APPEND names ${name})
  endforeach()
  list(REMOVE_DUPLICATES names)
  list(JOIN names ", " names)
  set(ballast_cuda_status "CUDA: yes, ${names}")
endif()
file(WRITE ${CMAKE_BINARY_DIR}/cuda_status.txt "${ballast_cuda_status}\n")
