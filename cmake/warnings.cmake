set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion)
# Errors where every change is compiled: with g++ 12, and clang for fuzzing. Other compilers warn of
# other things, g++ 13 of array bounds inside fmt.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CXX_COMPILER_VERSION MATCHES "^12\.")
  list(APPEND warnings -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -Wno-psabi: that warning speaks of passing wide vectors by value between translation units; ours
  # stay inline. -Wno-restrict: g++ 12 sees an overlap in every "text" + std::string (bug 105651).
  list(APPEND warnings -Wshadow=local -Wno-psabi -Wno-restrict)
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
# What nvcc generates for the host does not keep -Wpedantic.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--Werror=all-warnings>")
