#pragma once

#include <utility>

#include "ballast/ballast.h"
#include "core/error.h"

namespace ballast::library {

inline std::vector<v1::Advice> public_advice(const std::vector<Advice>& advice) {
  std::vector<v1::Advice> all;
  for (const Advice& a : advice) all.push_back({a.change, a.effect});
  return all;
}

// Callers of the library know one exception. What is neither ours nor theirs (no memory, the
// system's errors) is a bug in their eyes as well.
template <class F>
decltype(auto) translated(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& e) {
    throw v1::Error(static_cast<v1::ErrorCode>(e.code()), e.what(), e.trail(),
                    public_advice(e.advice()));
  } catch (const v1::Error&) {
    throw;
  } catch (const std::exception& e) {
    throw v1::Error(v1::ErrorCode::internal, e.what());
  }
}

}  // namespace ballast::library
