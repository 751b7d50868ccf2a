// The pickle inside a torch.save() file. Every handle of an accepted one leads somewhere.

#include <vector>

#include "fuzz.h"
#include "io/pickle.h"

namespace ballast::fuzz {
namespace {

void check_value(const Pickle& pickle, Pickle::Handle h) {
  switch (pickle.kind(h)) {
    case Pickle::Kind::text:
      require(pickle.text(h).size() <= 1 << 20);
      break;
    case Pickle::Kind::tensor: {
      const Pickle::Tensor& t = pickle.tensor(h);
      require(t.storage < pickle.storages().size() && t.shape.rank() == t.strides.rank());
      break;
    }
    default:
      break;
  }
}

}  // namespace

void one_input(Input input) {
  accepts([&] {
    const Pickle pickle(std::string(input.rest()), "fuzz");
    // Lists may hold themselves, so a few levels are enough.
    std::vector<Pickle::Handle> level = {pickle.root()}, next;
    for (int depth = 0; depth < 4; ++depth) {
      for (const Pickle::Handle h : level) {
        check_value(pickle, h);
        const Pickle::Kind kind = pickle.kind(h);
        if (kind != Pickle::Kind::tuple && kind != Pickle::Kind::list &&
            kind != Pickle::Kind::dict) {
          continue;
        }
        const auto items = pickle.items(h);
        if (next.size() < 1000) next.insert(next.end(), items.begin(), items.end());
      }
      level.swap(next);
      next.clear();
    }
  });
}

}  // namespace ballast::fuzz
