#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::test {

// body(rank) of all ranks at once; what each of them failed with.
inline std::vector<std::optional<Error>> run_ranks(int ranks,
                                                   const std::function<void(int)>& body) {
  std::vector<std::optional<Error>> errors(to_size(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const Error& e) {
        errors[to_size(r)] = e;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

inline std::vector<std::string> texts_of(const std::vector<std::optional<Error>>& errors) {
  std::vector<std::string> texts;
  for (const auto& e : errors) {
    if (e) texts.emplace_back(e->what());
  }
  return texts;
}

}  // namespace ballast::test
