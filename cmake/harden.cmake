# What makes a defect harder to use: tools/check_elf.py checks the program for it.
include(CheckCXXSourceCompiles)

# Addresses that differ from run to run. Most compilers make such programs unless told otherwise.
check_cxx_source_compiles("#ifndef __PIE__\n#error\n#endif\nint main() {}" BALLAST_PIE_BY_DEFAULT)
if(NOT BALLAST_PIE_BY_DEFAULT)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIE>)
  add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)
endif()
# Tables of functions are read-only once the program runs, and no stack is executable.
add_link_options(LINKER:-z,relro,-z,now,-z,noexecstack)

# Functions with arrays check the stack when they return. Not the vector kernels: they call nothing,
# and parse nothing. Sanitizers check more.
function(ballast_harden)  # targets...
  if(BALLAST_SANITIZE)
    return()
  endif()
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
  endforeach()
endfunction()
