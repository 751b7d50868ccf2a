add_compile_options(-Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -Wno-psabi: that warning speaks of passing wide vectors by value between translation units; ours
  # stay inline. -Wno-restrict: g++ 12 sees an overlap in every "text" + std::string (bug 105651).
  add_compile_options(-Wshadow=local -Wno-psabi -Wno-restrict)
endif()
