# Writes the header that core/version.cpp includes: cmake -DOUTPUT=FILE -DSOURCE=FOLDER -DCOMPILER=...
# -DFLAGS=... -DTARGET=... -DVERSION=... -P build_info.cmake. Run by each build; the file changes only with what it says.
set(commit "")
set(clean false)
find_program(GIT git)
if(GIT AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse HEAD OUTPUT_VARIABLE commit ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE no_commit)
  execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain --untracked-files=no
                  OUTPUT_VARIABLE changes ERROR_QUIET RESULT_VARIABLE no_status)
  if(no_commit)
    set(commit "")
  elseif(no_status EQUAL 0 AND changes STREQUAL "")
    set(clean true)
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#pragma once

#define BALLAST_VERSION "@VERSION@"
#define BALLAST_BUILD_COMMIT "@commit@"
#define BALLAST_BUILD_CLEAN @clean@
#define BALLAST_BUILD_COMPILER R"(@COMPILER@)"
#define BALLAST_BUILD_FLAGS R"(@FLAGS@)"
#define BALLAST_BUILD_TARGET R"(@TARGET@)"
]])
