#include "core/simd.h"

#include <cstdlib>
#include <string_view>

namespace ballast {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // this may run before constructors do
  const char* most = std::getenv("BALLAST_MAX_ISA");
  const std::string_view cap = most ? most : "";
  if (cap != "sse2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    if (cap != "avx2" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      return Isa::avx512;
    }
    return Isa::avx2;
  }
  return Isa::sse2;
#else
  return Isa::neon;
#endif
}

}  // namespace

Isa isa() {
  static const Isa found = detect();
  return found;
}

const char* name_of(Isa i) {
  constexpr const char* kNames[] = {"neon", "sse2", "avx2", "avx512"};
  return kNames[static_cast<int>(i)];
}

}  // namespace ballast
