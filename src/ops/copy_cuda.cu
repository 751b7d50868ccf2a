#include <type_traits>

#include "ops/copy_cuda.h"
#include "ops/kernels/convert_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

// All kernels: a thread takes one item (a unit of bytes, an element, or eight of them) and strides
// through the rest; bound by memory or by the link, so any block size that fills the machine does.
constexpr int kThreads = 256;

constexpr int kMaxRank = 9;  // eight dimensions, and the bytes of an element

// Dimensions without those of one element, neighbours merged where both sides continue. Steps and
// the last dimension count bytes for equal dtypes, elements where there is something to convert.
struct Walk {
  int rank = 0;
  std::int64_t shape[kMaxRank] = {}, from[kMaxRank] = {}, to[kMaxRank] = {};

  void append(std::int64_t n, std::int64_t f, std::int64_t t) {
    if (n == 1) return;
    const int p = rank - 1;
    if (p >= 0 && from[p] == n * f && to[p] == n * t) {
      shape[p] *= n;
      from[p] = f;
      to[p] = t;
      return;
    }
    shape[rank] = n;
    from[rank] = f;
    to[rank] = t;
    ++rank;
  }
  std::int64_t items() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

Walk walk_of(const Copy& a, bool in_bytes) {
  Walk w;
  const std::int64_t size = in_bytes ? bytes_of(a.to.dtype) : 1;
  for (int i = 0; i < a.to.rank; ++i) {
    w.append(a.to.shape[i], a.from.strides[i] * size, a.to.strides[i] * size);
  }
  if (in_bytes) w.append(size, 1, 1);
  if (w.rank == 0) {  // one item
    w.rank = 1;
    w.shape[0] = w.from[0] = w.to[0] = 1;
  }
  return w;
}

template <class Index>
__device__ __forceinline__ void offsets_of(const Walk& w, Index at, std::int64_t& from,
                                           std::int64_t& to) {
  from = to = 0;
  for (int i = w.rank - 1; i > 0; --i) {
    const Index n = static_cast<Index>(w.shape[i]), here = at % n;
    at /= n;
    from += static_cast<std::int64_t>(here) * w.from[i];
    to += static_cast<std::int64_t>(here) * w.to[i];
  }
  from += static_cast<std::int64_t>(at) * w.from[0];
  to += static_cast<std::int64_t>(at) * w.to[0];
}

template <class Unit, class Index>
__global__ void move(const Unit* from, Unit* to, Walk w, Index items) {
  const Index step = static_cast<Index>(gridDim.x) * kThreads;
  for (Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; i < items; i += step) {
    std::int64_t f, t;
    offsets_of(w, i, f, t);
    to[t] = from[f];
  }
}

template <class Unit>
void move_units(const Copy& a, Walk w, cudaStream_t stream) {
  constexpr std::int64_t kSize = sizeof(Unit);
  w.shape[w.rank - 1] /= kSize;
  for (int i = 0; i < w.rank - 1; ++i) {
    w.from[i] /= kSize;
    w.to[i] /= kSize;
  }
  const std::int64_t items = w.items();
  const unsigned blocks = some_blocks(items, kThreads);
  const auto* from = static_cast<const Unit*>(a.from.data);
  auto* to = static_cast<Unit*>(a.to.data);
  // Half the range, so that the last stride does not wrap.
  if (items < (std::int64_t{1} << 31)) {
    move<Unit, std::uint32_t>
        <<<blocks, kThreads, 0, stream>>>(from, to, w, static_cast<std::uint32_t>(items));
  } else {
    move<Unit, std::uint64_t>
        <<<blocks, kThreads, 0, stream>>>(from, to, w, static_cast<std::uint64_t>(items));
  }
  check_launch("copy");
}

// As many bytes at a time as addresses and steps allow.
void move_bytes(const Copy& a, const Walk& w, cudaStream_t stream) {
  const int last = w.rank - 1;
  if (w.from[last] != 1 || w.to[last] != 1) {  // elements of one byte, apart from each other
    return move_units<std::uint8_t>(a, w, stream);
  }
  std::uint64_t all = reinterpret_cast<std::uintptr_t>(a.from.data) |
                      reinterpret_cast<std::uintptr_t>(a.to.data) |
                      static_cast<std::uint64_t>(w.shape[last]);
  for (int i = 0; i < last; ++i) all |= static_cast<std::uint64_t>(w.from[i] | w.to[i]);
  if (all % 16 == 0) return move_units<uint4>(a, w, stream);
  if (all % 8 == 0) return move_units<std::uint64_t>(a, w, stream);
  if (all % 4 == 0) return move_units<std::uint32_t>(a, w, stream);
  if (all % 2 == 0) return move_units<std::uint16_t>(a, w, stream);
  return move_units<std::uint8_t>(a, w, stream);
}

// Four times 16 bytes to a thread, all of them read before the first is written. In recordings the
// driver's own copies go through an engine that has two thirds of the bandwidth.
constexpr int kFlatThreads = 256, kFlatEach = 4;
__global__ void __launch_bounds__(kFlatThreads)
    copy_flat(const uint4* from, uint4* to, std::int64_t n) {
  const std::int64_t first = std::int64_t{blockIdx.x} * (kFlatThreads * kFlatEach) + threadIdx.x;
  uint4 x[kFlatEach];
#pragma unroll
  for (int i = 0; i < kFlatEach; ++i) {
    if (first + i * kFlatThreads < n) x[i] = from[first + i * kFlatThreads];
  }
#pragma unroll
  for (int i = 0; i < kFlatEach; ++i) {
    if (first + i * kFlatThreads < n) to[first + i * kFlatThreads] = x[i];
  }
}

void copy_equal(const Copy& a, cudaStream_t stream) {
  const Walk w = walk_of(a, true);
  const auto width = static_cast<std::size_t>(w.shape[w.rank - 1]);
  const bool contiguous = w.rank == 1 && w.from[0] == 1 && w.to[0] == 1;
  const auto at_sixteen = [](const View& v) {
    return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
  };
  if (contiguous && !a.through_engine && width > 0 && width % 16 == 0 && at_sixteen(a.from) &&
      at_sixteen(a.to)) {
    const auto n = static_cast<std::int64_t>(width / 16);
    copy_flat<<<blocks_for(n, kFlatThreads * kFlatEach), kFlatThreads, 0, stream>>>(
        static_cast<const uint4*>(a.from.data), static_cast<uint4*>(a.to.data), n);
    check_launch("copy");
    return;
  }
  if (contiguous) {
    check_cuda(cudaMemcpyAsync(a.to.data, a.from.data, width, cudaMemcpyDefault, stream),
               "copying");
    return;
  }
  const auto taken = [&](std::int64_t step) {
    return engine_takes({.width = static_cast<std::int64_t>(width), .pitch = step});
  };
  if (a.through_engine && w.rank == 2 && w.from[1] == 1 && w.to[1] == 1 && taken(w.from[0]) &&
      taken(w.to[0])) {
    check_cuda(cudaMemcpy2DAsync(a.to.data, static_cast<std::size_t>(w.to[0]), a.from.data,
                                 static_cast<std::size_t>(w.from[0]), width,
                                 static_cast<std::size_t>(w.shape[0]), cudaMemcpyDefault, stream),
               "copying rows");
    return;
  }
  move_bytes(a, w, stream);
}

// Elements of any two dtypes anywhere.
template <class Index>
__global__ void convert_each(const unsigned char* from, DType from_type, bool from_aligned,
                             unsigned char* to, DType to_type, bool to_aligned, Walk w, Index items,
                             bool saturating) {
  const int from_size = bytes_of(from_type), to_size = bytes_of(to_type);
  const Index step = static_cast<Index>(gridDim.x) * kThreads;
  for (Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; i < items; i += step) {
    std::int64_t f, t;
    offsets_of(w, i, f, t);
    const std::uint64_t code = load_code(from + f * from_size, from_size, from_aligned);
    store_code(to + t * to_size, converted(code, from_type, to_type, saturating), to_size,
               to_aligned);
  }
}

// Elements as they lie in memory.
template <DType T, int kCount>
struct alignas(kCount* bytes_of(T) < 16 ? kCount * bytes_of(T) : 16) Elements {
  using Word =
      std::conditional_t<bytes_of(T) == 1, std::uint8_t,
                         std::conditional_t<bytes_of(T) == 2, std::uint16_t, std::uint32_t>>;
  Word e[kCount];
};

// Rows of both sides in whole aligned vectors: as many elements as are stored with one instruction,
// because neighbours that store half of 32 bytes each, twice, have two thirds of the bandwidth. A
// thread has some vectors in flight; blocks are short.
template <DType To>
constexpr int kVector = bytes_of(To) == 4 ? 4 : 8;
constexpr int kVectorsEach = 4;
template <DType From, DType To>
__global__ void __launch_bounds__(kThreads)
    convert_vectors(const Elements<From, kVector<To>>* from, std::int64_t from_step,
                    Elements<To, kVector<To>>* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t per_row, bool saturating) {
  constexpr int kEach = kVectorsEach;
  const std::int64_t all = rows * per_row;
  const std::int64_t first = std::int64_t{blockIdx.x} * (kThreads * kEach) + threadIdx.x;
  Elements<From, kVector<To>> a[kEach];
  std::int64_t place[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const std::int64_t i = first + k * kThreads;
    if (i >= all) continue;
    const std::int64_t row = rows == 1 ? 0 : i / per_row, at = i - row * per_row;
    a[k] = from[row * from_step + at];
    place[k] = row * to_step + at;
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (first + k * kThreads >= all) continue;
    Elements<To, kVector<To>> b;
#pragma unroll
    for (int e = 0; e < kVector<To>; ++e) {
      b.e[e] = static_cast<std::remove_reference_t<decltype(b.e[e])>>(
          narrow<To>(widen<From>(a[k].e[e]), saturating));
    }
    to[place[k]] = b;
  }
}

template <class F>
bool with_narrow(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      f(Code<DType::f32>());
      return true;
    case DType::bf16:
      f(Code<DType::bf16>());
      return true;
    case DType::f16:
      f(Code<DType::f16>());
      return true;
    case DType::f8_e4m3:
      f(Code<DType::f8_e4m3>());
      return true;
    case DType::f8_e5m2:
      f(Code<DType::f8_e5m2>());
      return true;
    default:
      return false;
  }
}

// Whether every row starts at a multiple of eight elements.
bool rows_of_eights(const void* data, DType t, const Walk& w,
                    const std::int64_t (&steps)[kMaxRank]) {
  const std::int64_t bytes = bytes_of(t) * 8 < 16 ? 8 : 16;
  return aligned_to(data, bytes) && w.shape[w.rank - 1] % 8 == 0 && steps[w.rank - 1] == 1 &&
         w.rank <= 2 && (w.rank == 1 || steps[0] % 8 == 0);
}

void convert_any(const Copy& a, cudaStream_t stream) {
  const Walk w = walk_of(a, false);
  const std::int64_t items = w.items();
  if (rows_of_eights(a.from.data, a.from.dtype, w, w.from) &&
      rows_of_eights(a.to.data, a.to.dtype, w, w.to)) {
    const std::int64_t rows = w.rank == 2 ? w.shape[0] : 1;
    bool done = false;
    with_narrow(a.from.dtype, [&](auto f) {
      with_narrow(a.to.dtype, [&](auto t) {
        constexpr DType From = decltype(f)::value, To = decltype(t)::value;
        if constexpr (From != To) {
          constexpr int kCount = kVector<To>;
          const unsigned blocks = blocks_for(items / kCount, kThreads * kVectorsEach);
          convert_vectors<From, To><<<blocks, kThreads, 0, stream>>>(
              static_cast<const Elements<From, kCount>*>(a.from.data), w.from[0] / kCount,
              static_cast<Elements<To, kCount>*>(a.to.data), w.to[0] / kCount, rows,
              w.shape[w.rank - 1] / kCount, a.saturating);
          done = true;
        }
      });
    });
    if (done) return;
  }
  const auto launch = [&](auto index) {
    using Index = decltype(index);
    convert_each<Index><<<some_blocks(items, kThreads), kThreads, 0, stream>>>(
        static_cast<const unsigned char*>(a.from.data), a.from.dtype,
        aligned_to(a.from.data, bytes_of(a.from.dtype)), static_cast<unsigned char*>(a.to.data),
        a.to.dtype, aligned_to(a.to.data, bytes_of(a.to.dtype)), w, static_cast<Index>(items),
        a.saturating);
  };
  if (items < (std::int64_t{1} << 31)) {
    launch(std::uint32_t());
  } else {
    launch(std::uint64_t());
  }
}

}  // namespace

void copy(const Copy& a, void* stream) {
  if (a.to.elements() == 0) return;
  if (a.from.dtype == a.to.dtype) {
    copy_equal(a, stream_of(stream));
  } else {
    convert_any(a, stream_of(stream));
    check_launch("copy");
  }
}

}  // namespace ballast::ops::cuda
