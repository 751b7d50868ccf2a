# Sources whose name ends in _cpu.cpp hold vector kernels over core/simd.h. Each is compiled once per
# instruction set, its functions in a namespace of that name.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(BALLAST_ISAS sse2 avx2 avx512)
  set(BALLAST_FLAGS_sse2 $<$<CONFIG:Release>:-O2>)  # for processors of before 2013: half the time to compile
  set(BALLAST_FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(BALLAST_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
                           -mprefer-vector-width=512)
else()
  set(BALLAST_ISAS neon)
endif()

# Kernels of elements by themselves (ops/elementwise.h) compute what is left behind the last whole
# vector in code of its own. With a * b + c * d as one product and one fused sum the compiler may
# choose the product differently there, so nothing is fused; these wait for memory anyway.
function(ballast_simd_sources target)
  set(apart)
  foreach(source ${ARGN})
    file(STRINGS ${source} shared REGEX "#include \"ops/(elementwise|parameter_simd)\\.h\"")
    if(shared)
      list(APPEND apart ${source})
    endif()
  endforeach()
  set(together ${ARGN})
  if(apart)
    list(REMOVE_ITEM together ${apart})
  endif()
  foreach(isa ${BALLAST_ISAS})
    foreach(kind together apart)
      if(NOT ${kind})
        continue()
      endif()
      set(objects ${target}_${isa}_${kind})
      add_library(${objects} OBJECT ${${kind}})
      ballast_unity(${objects} ${${kind}})
      target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR}/src)
      target_compile_definitions(${objects} PRIVATE BALLAST_ISA=${isa})
      # Zero signs and NaNs matter to the number formats, so no -ffast-math; comparisons may trap freely.
      target_compile_options(${objects} PRIVATE ${BALLAST_FLAGS_${isa}} -fno-math-errno -fno-trapping-math)
      if(kind STREQUAL "apart")
        target_compile_options(${objects} PRIVATE -ffp-contract=off)
      endif()
      target_link_libraries(${objects} PRIVATE fmt::fmt ballast_openblas)
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
    endforeach()
  endforeach()
endfunction()

# An op is a family of files; a missing one stops the configure step. A COMPOSED op records other ops
# and has no kernels.
function(ballast_op name)
  cmake_parse_arguments(PARSE_ARGV 1 op "COMPOSED" "" "")
  set(files src/ops/${name}.h src/ops/${name}.cpp tests/ref/${name}.h tests/ops/${name}_test.cpp
            bench/ops/${name}_bench.cpp)
  if(NOT op_COMPOSED)
    list(APPEND files src/ops/${name}_cpu.cpp src/ops/${name}_cuda.h src/ops/${name}_cuda.cu)
  endif()
  foreach(file ${files})
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${file})
      message(FATAL_ERROR "op ${name} has no ${file}")
    endif()
  endforeach()
endfunction()
