# The serial OpenBLAS, linked statically: the threaded build allocates on every call, and the shared
# library's name is the same for both, so which one a machine loads is decided by its alternatives.
set(serial_dir ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-serial)
find_library(BALLAST_OPENBLAS_LIBRARY NAMES libopenblas.a openblas
             PATHS /usr/lib/${serial_dir} NO_DEFAULT_PATH)
find_path(BALLAST_OPENBLAS_INCLUDE NAMES cblas.h PATHS /usr/include/${serial_dir} NO_DEFAULT_PATH)
if(NOT BALLAST_OPENBLAS_LIBRARY)
  find_library(BALLAST_OPENBLAS_LIBRARY NAMES libopenblas.a openblas REQUIRED)
  find_path(BALLAST_OPENBLAS_INCLUDE NAMES cblas.h PATH_SUFFIXES openblas REQUIRED)
  message(WARNING "no serial OpenBLAS found (libopenblas-serial-dev), using ${BALLAST_OPENBLAS_LIBRARY}")
endif()
add_library(ballast_openblas INTERFACE)
target_link_libraries(ballast_openblas INTERFACE ${BALLAST_OPENBLAS_LIBRARY} m)
target_include_directories(ballast_openblas SYSTEM INTERFACE ${BALLAST_OPENBLAS_INCLUDE})
# Its packing buffers come from src/ops/linear/sgemm.cpp, one per thread; the reason stands there.
target_link_options(ballast_openblas INTERFACE LINKER:--wrap=blas_memory_alloc LINKER:--wrap=blas_memory_free)
