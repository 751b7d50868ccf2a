#pragma once

#include <optional>
#include <string_view>

#include "io/pickle.h"

namespace ballast {

struct PickleGlobal {
  std::string_view name;  // "module.name"
  Pickle::Global global = Pickle::Global::opaque_call;
  FileDType dtype = FileDType::u8;  // of a storage class or a dtype
  bool untyped = false;
};

// All that a file may refer to; nullopt for everything else.
std::optional<PickleGlobal> find_pickle_global(std::string_view module, std::string_view name);

}  // namespace ballast
