#include "core/simd_random.h"
#include "ops/dropout.h"
#include "ops/kernels/elementwise.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

using simd::BALLAST_ISA::load_as;
using simd::BALLAST_ISA::random_words;
using simd::BALLAST_ISA::splat;
using simd::BALLAST_ISA::u32v;
using simd::BALLAST_ISA::with_dtype;

struct Rule {
  RandomSource source;
  std::uint32_t threshold;
  float scale;
  bool nothing_stays = false;
};

// n neighbours, the first of them element `first` of the whole tensor. Words come in pieces that
// start at multiples of kRandomPiece.
template <DType X, DType Y, bool kAccumulate>
void run(const Rule& rule, const Element<X>* x, Element<Y>* y, std::uint64_t first,
         std::int64_t n) {
  std::uint32_t words[kRandomPiece + kLanes] = {};  // the last vector may read past its piece
  for (std::int64_t done = 0; done < n;) {
    const std::uint64_t at = first + static_cast<std::uint64_t>(done);
    const std::uint64_t piece = at / kRandomPiece * kRandomPiece;
    const auto skip = static_cast<std::int64_t>(at - piece);
    const std::int64_t left = n - done,
                       here = kRandomPiece - skip < left ? kRandomPiece - skip : left;
    random_words(rule.source, piece, words);
    const std::uint32_t* w = words + skip;
    const auto* from = x + done;
    auto* to = y + done;
    each_vector(std::int64_t{0}, here, [&](std::int64_t i, std::int64_t count) {
      const f32v scaled = read<X>(from + i, count) * rule.scale;
      f32v kept = load_as<u32v>(w + i) < rule.threshold ? splat(0.0f) : scaled;
      if (rule.nothing_stays) kept = splat(0.0f);
      if constexpr (kAccumulate) kept += read<Y>(to + i, count);
      write<Y>(to + i, kept, count);
    });
    done += here;
  }
}

template <DType X, DType Y, bool kAccumulate>
void rows(const Dropout& a, const Rule& rule, ThreadPool& pool) {
  const auto* x = reinterpret_cast<const Element<X>*>(a.x.data);
  auto* y = reinterpret_cast<Element<Y>*>(a.y.data);
  const std::int64_t n = a.x.shape.elements(), width = a.x.shape[1];
  const bool by_column = a.unit == DropUnit::column;
  const bool whole = !by_column && a.x.strides[0] == width && a.y.strides[0] == width;
  const std::int64_t columns = whole ? n : width;  // of what is walked as one row
  const auto first = static_cast<std::uint64_t>(a.first_row) * static_cast<std::uint64_t>(width);
  pool.parallel((n + kElementsPerTask - 1) / kElementsPerTask, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kElementsPerTask;
    const std::int64_t end = n - begin < kElementsPerTask ? n : begin + kElementsPerTask;
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t row = i / columns, column = i % columns;
      const std::int64_t count = columns - column < end - i ? columns - column : end - i;
      run<X, Y, kAccumulate>(
          rule, x + row * a.x.strides[0] + column, y + row * a.y.strides[0] + column,
          by_column ? static_cast<std::uint64_t>(column) : first + static_cast<std::uint64_t>(i),
          count);
      i += count;
    }
  });
}

}  // namespace

void dropout(const Dropout& a, ThreadPool& pool) {
  Rule rule = {.source = a.source,
               .threshold = static_cast<std::uint32_t>(a.probability * 0x1p32),
               .scale = static_cast<float>(1 / (1 - a.probability))};
  if (a.unit == DropUnit::matrix) {
    std::uint32_t words[kRandomPiece + kLanes];
    random_words(rule.source, 0, words);
    rule = {
        .source = a.source, .threshold = 0, .scale = 1, .nothing_stays = words[0] < rule.threshold};
  }
  with_dtype<DType::f32, DType::bf16>(a.x.dtype, [&](auto x) {
    constexpr DType X = x;
    with_dtype<DType::f32, DType::bf16>(a.y.dtype, [&](auto y) {
      constexpr DType Y = y;
      if (a.accumulate) {
        rows<X, Y, true>(a, rule, pool);
      } else {
        rows<X, Y, false>(a, rule, pool);
      }
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
