#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <typeindex>
#include <vector>

#include "core/bytes.h"
#include "core/device.h"

// The GPU as plan/runner.h uses it. gpu_cuda.cpp implements it, gpu_none.cpp in builds without
// CUDA, where every constructor fails with ErrorCode::device.
namespace ballast {

struct GpuInfo {
  std::string name;
  int sm = 0;  // compute capability: 90 is 9.0
  int multiprocessors = 0;
  Bytes memory, free;           // of the whole card, at the time of the call; the context is made
  Bytes context;                // what making it took; 0 where the driver does not say
  int driver = 0, runtime = 0;  // CUDA versions: 13000 is 13.0
};

// Chooses the device of this process and says what it is; again and again it is the same. Fails
// with ErrorCode::device, with what to do, when there is no driver, the driver is too old, there is
// no such device, or it is older than compute capability 8.0.
GpuInfo open_gpu(int index = 0);
// Whether open_gpu() would succeed; makes no context.
bool gpu_is_usable();
// Whether this build has the CUDA backend.
bool built_with_cuda();
// ErrorCode::device; for builds without it.
[[noreturn]] void fail_without_cuda();
// Other threads of this process work on the same device.
void use_gpu();

struct GpuMemory {
  Bytes used, free;  // of the card, by all programs
};
// Of the opened device, now. Some 10 us, allocates nothing.
GpuMemory gpu_memory();
// What this process has of it, its context included, by how free memory changed since open_gpu():
// what other programs took or gave back meanwhile is in it.
Bytes gpu_memory_of_process();

// A moment in a queue's work.
class GpuMark {
 public:
  enum class Kind { order, time };
  explicit GpuMark(Kind kind = Kind::order);
  ~GpuMark();
  GpuMark(GpuMark&& o) noexcept;
  GpuMark& operator=(GpuMark&& o) noexcept;

  void wait() const;    // the calling thread, until the work before the mark is done
  bool passed() const;  // whether it is done
  void* native() const { return event_; }

 private:
  void* event_ = nullptr;
};
// Both of Kind::time, both passed.
double seconds_between(const GpuMark& begin, const GpuMark& end);

// GPU work that was captured instead of run. One call launches it, any number of times, with the
// addresses and numbers of the capture.
class CudaGraph {
 public:
  CudaGraph() = default;
  explicit CudaGraph(void* graph) : graph_(graph) {}
  ~CudaGraph();
  CudaGraph(CudaGraph&& o) noexcept;
  CudaGraph& operator=(CudaGraph&& o) noexcept;

  explicit operator bool() const { return graph_ != nullptr; }
  void* native() const { return graph_; }

 private:
  void* graph_ = nullptr;
};

// Keeps host memory where it is, so that the GPU reads and writes it: copies run beside compute,
// and kernels may use it directly.
class PinnedRegion {
 public:
  PinnedRegion() = default;
  PinnedRegion(std::byte* base, Bytes size);
  ~PinnedRegion();
  PinnedRegion(PinnedRegion&& o) noexcept;
  PinnedRegion& operator=(PinnedRegion&& o) noexcept;

 private:
  std::byte* base_ = nullptr;
};

// Work that the GPU does in order, beside other queues. Used by one thread at a time.
class GpuQueue {
 public:
  GpuQueue();
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  Stream stream(ThreadPool* pool = nullptr) {
    return {.pool = pool, .native = stream_, .queue = this};
  }
  void record(GpuMark& mark);
  void wait(const GpuMark& mark);  // the queue, not the calling thread
  void finish();                   // the calling thread, until the queue is empty

  // What the calling thread gives to the queue between these two is noted and not done. Without
  // a recording when the driver or a library cannot note something of it.
  void begin_capture();
  CudaGraph end_capture();
  // Whether something given to it since begin_capture() cannot be noted.
  bool recording_is_broken() const;
  void launch(const CudaGraph& recording);

  // How far the queue's work is, for the report of a failure: the GPU writes the number when all
  // before it is done. It is an empty kernel, or nearly.
  void reach(std::uint32_t position);
  void clear_progress_marker();                  // between runs
  std::optional<std::uint32_t> reached() const;  // also after a failure; nullopt: nothing yet

  // The one object of a type that belongs to this queue, made when it is first asked for: handles
  // of libraries, prepared products, attention plans. T is made from the queue. Two threads may ask
  // at once: while one prepares what another's programs need later.
  template <class T>
  T& local() {
    const std::lock_guard lock(locals_mutex_);
    for (Local& l : locals_) {
      if (l.type == std::type_index(typeid(T))) return *static_cast<T*>(l.object.get());
    }
    locals_.push_back({typeid(T), std::make_shared<T>(*this)});
    return *static_cast<T*>(locals_.back().object.get());
  }

 private:
  struct Local {
    std::type_index type;
    std::shared_ptr<void> object;  // shared: the pointer that knows how to destroy what it forgot
  };
  void* stream_ = nullptr;
  std::uint32_t* progress_marker_ = nullptr;  // one more than the number, 0: none yet
  PinnedRegion pinned_marker_;
  std::recursive_mutex locals_mutex_;  // one may ask for another while it is made
  std::vector<Local> locals_;
};

// One region of device memory: the arena that a run's device tier is planned in, zero at first.
class GpuArena {
 public:
  enum class Reach { device, host_too };  // host_too is slow: for looking at it while debugging

  GpuArena() = default;
  // Fails with ErrorCode::refused, naming what is free, when there is not so much.
  GpuArena(Bytes size, const std::string& name, Reach reach = Reach::device);
  ~GpuArena();
  GpuArena(GpuArena&& o) noexcept;
  GpuArena& operator=(GpuArena&& o) noexcept;

  std::byte* base() const { return base_; }
  Bytes size() const { return size_; }

 private:
  std::byte* base_ = nullptr;
  Bytes size_;
};

// Between steps, by the calling thread; either side may be host or device memory.
void gpu_copy(void* to, const void* from, Bytes size);
void gpu_fill(void* to, int byte, Bytes size);

}  // namespace ballast
