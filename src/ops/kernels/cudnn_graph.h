#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/kernels/cuda_libraries.h"

// cuDNN's backend: a graph of operations is described, cuDNN offers configurations that compute all
// of it in one kernel, one of them is compiled into a plan, and the plan runs on packs of
// addresses. For _cuda.cpp files only.
namespace ballast {
class GpuQueue;
}

namespace ballast::ops::cuda {

// One object of the backend: its attributes are set, then it is finalized and never changes.
class CudnnObject {
 public:
  CudnnObject() = default;
  explicit CudnnObject(cudnnBackendDescriptorType_t type);
  ~CudnnObject();
  CudnnObject(CudnnObject&& o) noexcept;
  CudnnObject& operator=(CudnnObject&& o) noexcept;

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values);
  void set(cudnnBackendAttributeName_t name, std::int64_t value);
  void set(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values);
  void set(cudnnBackendAttributeName_t name, bool value);
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value);
  void set(cudnnBackendAttributeName_t name, cudnnHandle_t value);
  void set(cudnnBackendAttributeName_t name, const CudnnObject& value);

  void finalize(const char* doing);
  cudnnStatus_t try_finalize();
  std::int64_t integer(cudnnBackendAttributeName_t name) const;
  cudnnBackendDescriptor_t raw() const { return raw_; }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

// cuDNN's state for one queue: queue.local<CudnnHandle>().
class CudnnHandle {
 public:
  explicit CudnnHandle(GpuQueue& queue);
  ~CudnnHandle();
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;

  cudnnHandle_t raw() const { return raw_; }  // runs plans, in the queue's thread
  // Makes them, beside that: a handle is for one thread at a time, whoever holds making().
  cudnnHandle_t maker() const { return maker_; }
  std::mutex& making() { return making_; }

 private:
  cudnnHandle_t raw_ = nullptr, maker_ = nullptr;
  std::mutex making_;
};

// The GPU that configurations are asked for: the one of a handle, or one that is elsewhere, by its
// properties as JSON. For the second there are configurations and their workspaces, but no plans.
class CudnnTarget {
 public:
  explicit CudnnTarget(cudnnHandle_t handle) : handle_(handle) {}
  explicit CudnnTarget(std::string_view properties);

  cudnnHandle_t handle() const { return handle_; }  // null for properties
  const CudnnObject& properties() const { return properties_; }

 private:
  cudnnHandle_t handle_ = nullptr;
  CudnnObject properties_;
};

// A kernel of cuDNN's and how it is set up, whatever the sizes of a graph's tensors.
struct CudnnChoice {
  std::int64_t engine = 0;
  std::vector<std::pair<cudnnBackendKnobType_t, std::int64_t>> knobs = {};
};

class CudnnGraph {
 public:
  using Dims = std::array<std::int64_t, 4>;
  struct Layout {
    cudnnDataType_t type;
    Dims dims, strides;
  };
  struct Tensor {  // names one tensor of this graph
    std::size_t index;
  };

  // In memory that a pack names by this id. alignment: bytes, of its first element.
  Tensor in_memory(std::int64_t id, const Layout& layout, std::int64_t alignment = 16);
  // Never in memory as a whole: one operation hands it to the next.
  Tensor between(const Layout& layout);
  // The same of any rank; a convolution's are [batch, channels, frames, rows, columns].
  struct AnyLayout {
    cudnnDataType_t type;
    std::vector<std::int64_t> dims, strides;
  };
  Tensor in_memory(std::int64_t id, const AnyLayout& layout);
  Tensor between(const AnyLayout& layout);
  // One float in host memory, read when a plan runs.
  Tensor scalar(std::int64_t id);

  // All arithmetic is f32; results are rounded to the type of the tensor that takes them.
  void matmul(Tensor a, Tensor b, Tensor c);                                // c = a b
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y);            // y = f(x)
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y);  // y = f(x, b)
  void reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y);                // dims of 1 in y
  void reshape(Tensor x, Tensor y);
  // y = x * w, cross-correlation; zeros before and behind each axis but the first two.
  void convolution(Tensor x, Tensor w, Tensor y, std::span<const std::int64_t> before,
                   std::span<const std::int64_t> behind, std::span<const std::int64_t> strides);

  // What cuDNN can compute this graph with, best first; empty: it cannot. Closes the graph.
  std::vector<CudnnObject> configurations(const CudnnTarget& target);
  // One of them as it was chosen for another graph of the same operations. Closes the graph.
  CudnnObject configuration(const CudnnTarget& target, const CudnnChoice& choice,
                            std::string_view what);

 private:
  void close(const CudnnTarget& target);
  const CudnnObject& object(Tensor t) const { return tensors_[t.index]; }
  Tensor add(std::int64_t id, cudnnDataType_t type, std::span<const std::int64_t> dims,
             std::span<const std::int64_t> strides, std::int64_t alignment,
             cudnnBackendAttributeName_t kind);
  CudnnObject& add_pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y);

  std::vector<CudnnObject> tensors_, operations_;
  std::vector<CudnnObject> settings_;  // of operations
  CudnnObject graph_;
  std::int64_t next_id_ = 1000;  // of tensors that no pack names
};

// Memory that a configuration needs besides its tensors.
std::int64_t workspace_of(const CudnnObject& configuration);
// Brings those that need no more to the front; order is kept among them and among the others.
void prefer(std::vector<CudnnObject>& configurations, std::int64_t workspace);
// Whether it gives the same bits every time.
bool is_deterministic(const CudnnObject& configuration);
CudnnChoice choice_of(const CudnnObject& configuration);
// The same kernel without a workspace, where it has a setting for that.
CudnnChoice without_workspace(CudnnChoice choice);

// The addresses of one run; by-value tensors have the address of a float in host memory, which is
// read when the plan runs.
class CudnnPack {
 public:
  CudnnPack() = default;
  CudnnPack(std::span<const std::int64_t> ids, std::span<void* const> places, void* workspace);
  cudnnBackendDescriptor_t raw() const { return object_.raw(); }

 private:
  CudnnObject object_;
};

// A compiled graph.
class CudnnPlan {
 public:
  // The first configuration that compiles and needs no more than workspace bytes. what names the
  // graph in the error when there is none.
  CudnnPlan(CudnnGraph graph, cudnnHandle_t handle, std::int64_t workspace, std::string_view what);
  // The same of those that say of themselves to give the same bits every time (attention's graphs
  // ask for that in another way); ones that need no more than `preferred` come before all others.
  CudnnPlan(CudnnGraph graph, cudnnHandle_t handle, std::int64_t workspace, std::string_view what,
            std::int64_t preferred);
  // By this choice or none, whatever its workspace.
  CudnnPlan(CudnnGraph graph, cudnnHandle_t handle, std::string_view what,
            const CudnnChoice& choice);

  CudnnChoice choice() const { return choice_of(configuration_); }
  std::int64_t workspace() const { return plan_.integer(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE); }
  void run(cudnnHandle_t handle, const CudnnPack& pack) const;

 private:
  void choose(std::vector<CudnnObject> configurations, cudnnHandle_t handle, std::int64_t workspace,
              std::string_view what);

  CudnnGraph graph_;  // nobody promises that a plan outlives what it was made from
  CudnnObject configuration_, plan_;
};

}  // namespace ballast::ops::cuda
