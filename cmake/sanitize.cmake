# With sanitizers g++ takes initialised members for uninitialised ones (its manual says so).
if(BALLAST_SANITIZE)
  add_compile_options(-Wno-maybe-uninitialized)
endif()
if(BALLAST_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(BALLAST_SANITIZE STREQUAL "thread")
  # g++ says that fences are not followed by the sanitizer; ours are not load-bearing for it.
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -Wno-tsan)
  add_link_options(-fsanitize=thread)
elseif(BALLAST_SANITIZE)
  message(FATAL_ERROR "BALLAST_SANITIZE is address or thread, not ${BALLAST_SANITIZE}")
endif()

if(BALLAST_FUZZ)
  # The library reports its branches to the fuzzer; a target links with -fsanitize=fuzzer for the
  # main function.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
