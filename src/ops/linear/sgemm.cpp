#include "ops/linear/sgemm.h"

#include <cblas.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/simd.h"
#include "core/system_limits.h"
#include "core/thread_pool.h"
#include "core/to_size.h"

// OpenBLAS asks for its packing buffer through these two. The linker redirects its calls here
// (cmake/blas.cmake): the table behind the originals is not safe when a serial x86-64 build is
// called from several threads (Debian's 0.3.21 gave wrong products from two threads on), and one
// buffer per thread needs no table and no lock.
extern "C" {
void* __real_blas_memory_alloc(int unused);
void __real_blas_memory_free(void* buffer);
void* __wrap_blas_memory_alloc(int unused);
void __wrap_blas_memory_free(void* buffer);

// Its start-up code, in builds that hold kernels for several processors.
[[gnu::weak]] void gotoblas_dynamic_init();
[[gnu::weak]] void gotoblas_dynamic_quit();
}

namespace ballast::ops {
namespace {

// Which of its kernels OpenBLAS uses is decided when the program starts, from a list of processors
// that ends with the library's release: newer ones fall back to SSE3 code (0.3.21 on Sapphire
// Rapids), and those with AVX-512 get kernels that allocate inside a call. So the choice is made
// again here: the AVX2 kernels wherever they run. What the user chose in the environment stands; a
// library built for one processor has no choice and no such functions.
struct KernelChoice {
  KernelChoice() {
    const bool has_avx2 = isa() == Isa::avx2 || isa() == Isa::avx512;
    if (!has_avx2 || std::getenv("OPENBLAS_CORETYPE") || !gotoblas_dynamic_init ||
        !gotoblas_dynamic_quit) {
      return;
    }
    setenv("OPENBLAS_CORETYPE", "Haswell", 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    unsetenv("OPENBLAS_CORETYPE");
  }
};
const KernelChoice kernel_choice;

// Address space for the largest panels of any kernel; pages that no call touches are never there.
constexpr std::size_t kBufferSpace = std::size_t{256} << 20;

class ThreadBuffer {
 public:
  ~ThreadBuffer() {
    if (base_) munmap(base_, kBufferSpace);
  }
  // False where the system has no address space for it.
  bool reserve() {
    if (base_) return true;
    void* at = mmap(nullptr, kBufferSpace, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) base_ = at;
    return base_ != nullptr;
  }
  // nullptr when it is in use already or cannot be had.
  void* take() {
    if (busy_ || !reserve()) return nullptr;
    busy_ = true;
    return base_;
  }
  bool give_back(void* buffer) {
    if (buffer != base_) return false;
    busy_ = false;
    return true;
  }

 private:
  void* base_ = nullptr;
  bool busy_ = false;
};

thread_local ThreadBuffer thread_buffer;

int to_int(std::int64_t n) {
  check(n >= 0 && n <= std::numeric_limits<int>::max(), "a BLAS size is {}, more than int holds",
        n);
  return static_cast<int>(n);
}

}  // namespace

void sgemm(const Sgemm& g) {
  // Where only a threaded build is installed, each product would be split again over every
  // processor, with an allocation. Not at start-up: its own start-up code may come later.
  [[maybe_unused]] static const bool one_thread = (openblas_set_num_threads(1), true);
  // OpenBLAS asks the system again and again, for ever, where it gets no memory (ulimit -v).
  if (!thread_buffer.reserve()) throw out_of_memory();
  cblas_sgemm(CblasRowMajor, g.transpose_a ? CblasTrans : CblasNoTrans,
              g.transpose_b ? CblasTrans : CblasNoTrans, to_int(g.m), to_int(g.n), to_int(g.k),
              g.alpha, g.a, to_int(g.lda), g.b, to_int(g.ldb), g.beta, g.c, to_int(g.ldc));
}

void warm_up_blas(ThreadPool& pool) {
  // kBlasRows x 512 x 1024 fills the panels as far as any call of ours does.
  const std::int64_t n = 512, k = 1024;
  const int threads = pool.threads();
  const std::vector<float> ones(to_size(kBlasRows * k), 1.0f);
  std::vector<float> c(to_size(threads * kBlasRows * n));
  std::atomic<int> arrived{0};
  pool.parallel(threads, [&](std::int64_t task, int) {
    // Nobody goes on before all are here, so that every thread takes exactly one task.
    arrived.fetch_add(1);
    while (arrived.load() < threads) std::this_thread::yield();
    sgemm({.transpose_b = true,
           .m = kBlasRows,
           .n = n,
           .k = k,
           .a = ones.data(),
           .lda = k,
           .b = ones.data(),
           .ldb = k,
           .c = c.data() + task * kBlasRows * n,
           .ldc = n});
  });
}

}  // namespace ballast::ops

void* __wrap_blas_memory_alloc(int unused) {
  if (void* buffer = ballast::ops::thread_buffer.take()) return buffer;
  return __real_blas_memory_alloc(unused);
}

void __wrap_blas_memory_free(void* buffer) {
  if (!ballast::ops::thread_buffer.give_back(buffer)) __real_blas_memory_free(buffer);
}
