#pragma once

#include <random>
#include <vector>

#include "core/to_size.h"
#include "plan/bindings.h"
#include "plan/program_builder.h"

namespace ballast {

// A program on all lanes whose results depend on the order of every pair of instructions that must
// not be swapped: each mixes all words it reads into all words it writes.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint32_t seed, int instructions = 60) : random_(seed) {
    ProgramBuilder pb(set, "random");
    for (int i = 0; i < 4; ++i) {
      results.push_back(pb.persistent("p", {8, 4}, DType::u32, Role::weights, some_tier()));
    }
    for (int i = 0; i < instructions; ++i) emit(pb, i);
  }

  ProgramSet set;
  std::vector<Buffer> results;  // persistent, whole

 private:
  std::size_t below(std::size_t n) { return random_() % n; }
  Tier some_tier() { return below(3) == 0 ? Tier::host : Tier::device; }

  Buffer some_part(ProgramBuilder& pb, Buffer b) {
    const std::int64_t rows = pb.shape(b)[0];
    switch (below(3)) {
      case 0: {
        const auto first = static_cast<std::int64_t>(below(to_size(rows)));
        const auto most = to_size(rows - first);
        return pb.rows(b, first, 1 + static_cast<std::int64_t>(below(most)));
      }
      case 1:
        return pb.columns(b, static_cast<std::int64_t>(below(3)), 2);
      default:
        return b;
    }
  }

  // Mostly one of the last few temporaries, so that most of them die young.
  Buffer some_buffer() {
    const std::size_t recent = std::min<std::size_t>(temps_.size(), 5);
    if (recent == 0 || below(4) == 0) return results[below(results.size())];
    return temps_[temps_.size() - 1 - below(recent)];
  }

  void emit(ProgramBuilder& pb, int number) {
    Access a{.lane = static_cast<Lane>(below(kLaneCount))};
    for (std::size_t i = below(4); i-- > 0;) a.reads.push_back(some_part(pb, some_buffer()));
    if (below(2) == 0) {  // a new temporary, written whole first
      const auto rows = 1 + static_cast<std::int64_t>(below(12));
      const Buffer t = pb.temp("t", {rows, 4}, DType::u32, Role::activation, some_tier());
      a.writes.push_back(t);
      if (below(3) == 0) a.writes.push_back(some_part(pb, t));  // the same bytes named twice
      temps_.push_back(t);
    } else {
      a.writes.push_back(some_part(pb, some_buffer()));
    }
    // Whoever waits for one waits for its last part, which does all.
    if (a.lane == Lane::disk) a.splits = 1 + static_cast<std::uint32_t>(number) % 3;
    const std::uint32_t last = a.splits - 1;
    pb.emit("mix", a, [number, last, reads = a.reads, writes = a.writes](const Bindings& b) {
      if (b.part() != last) return;
      std::uint32_t h = 2166136261u + static_cast<std::uint32_t>(number);
      const auto each = [](const auto& view, auto&& f) {
        for (std::int64_t r = 0; r < view.shape[0]; ++r) {
          for (std::int64_t c = 0; c < view.shape[1]; ++c) {
            f(view.template as<std::uint32_t>()[r * view.strides[0] + c]);
          }
        }
      };
      for (const Buffer x : reads) {
        each(b.in(x), [&](std::uint32_t word) { h = (h ^ word) * 16777619u; });
      }
      for (const Buffer x : writes) {
        each(b.out(x), [&](std::uint32_t& word) { word = h = h * 16777619u + 1; });
      }
    });
  }

  std::mt19937 random_;
  std::vector<Buffer> temps_;
};

}  // namespace ballast
