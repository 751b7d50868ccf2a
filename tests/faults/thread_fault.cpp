// Preloaded into the program: pthread_create fails with EAGAIN from the call on that
// BALLAST_FAIL_THREAD counts to (1: the first).

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) {
  static std::atomic<int> calls{0};
  const char* const first = std::getenv("BALLAST_FAIL_THREAD");
  if (first != nullptr && ++calls >= std::atoi(first)) return EAGAIN;
  static const auto real =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, body, argument);
}
