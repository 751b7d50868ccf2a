// A library of CUDA as the search for them meets it: it has a version and loads a part by its name.
#include <dlfcn.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 0
#endif

extern "C" int fake_version() { return FAKE_VERSION; }

extern "C" int fake_finds_part() {
  return dlopen("libballast_fake_part.so.9", RTLD_LAZY | RTLD_LOCAL) != nullptr ? 1 : 0;
}
