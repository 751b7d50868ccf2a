#include "ops/fill_cuda.h"
#include "ops/kernels/convert_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

// A thread writes 16 bytes of a contiguous tensor, or one element of any other, and strides on;
// bound by memory, so any block size that fills the machine does.
constexpr int kThreads = 256;

__global__ void fill_sixteens(uint4* to, std::int64_t n, uint4 value) {
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * kThreads) {
    to[i] = value;
  }
}

__global__ void fill_each(View to, int size, bool aligned, std::int64_t n, std::uint64_t pattern) {
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * kThreads) {
    std::int64_t at = 0;
    for (std::int64_t rest = i, d = to.rank - 1; d >= 0; --d) {
      at += rest % to.shape[d] * to.strides[d];
      rest /= to.shape[d];
    }
    store_code(static_cast<unsigned char*>(to.data) + at * size, pattern, size, aligned);
  }
}

bool contiguous(const View& v) {
  std::int64_t step = 1;
  for (int i = v.rank; i-- > 0;) {
    if (v.shape[i] != 1 && v.strides[i] != step) return false;
    step *= v.shape[i];
  }
  return true;
}

}  // namespace

void fill(const Fill& a, void* stream) {
  const int size = bytes_of(a.to.dtype);
  std::int64_t n = a.to.elements();
  if (n == 0) return;
  std::uint64_t pattern = a.pattern;
  for (int done = size; done < 8; done *= 2) {  // the element again and again
    pattern = (pattern & ((std::uint64_t{1} << (8 * done)) - 1)) | pattern << (8 * done);
  }
  View to = a.to;
  if (contiguous(to)) {
    std::uint64_t bytes = static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(size);
    const auto byte = static_cast<int>(pattern & 0xffu);
    if (pattern == static_cast<std::uint64_t>(byte) * 0x0101010101010101u) {  // zeros mostly
      check_cuda(cudaMemsetAsync(to.data, byte, bytes, stream_of(stream)), "filling");
      return;
    }
    if (aligned_to(to.data, 16) && bytes >= 16) {
      const auto whole = static_cast<std::int64_t>(bytes / 16);
      const auto low = static_cast<unsigned>(pattern), high = static_cast<unsigned>(pattern >> 32);
      fill_sixteens<<<some_blocks(whole, kThreads), kThreads, 0, stream_of(stream)>>>(
          static_cast<uint4*>(to.data), whole, make_uint4(low, high, low, high));
      check_launch("fill");
      to.data = static_cast<uint4*>(to.data) + whole;
      n -= whole * 16 / size;
      to.rank = 1;
      to.shape[0] = n;
      to.strides[0] = 1;
    }
    if (n == 0) return;
  }
  fill_each<<<some_blocks(n, kThreads), kThreads, 0, stream_of(stream)>>>(
      to, size, aligned_to(to.data, size), n, pattern);
  check_launch("fill");
}

}  // namespace ballast::ops::cuda
