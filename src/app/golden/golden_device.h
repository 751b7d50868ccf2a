#pragma once

#include <memory>
#include <vector>

#include "app/golden/golden_results.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "memory/gpu.h"

namespace ballast {

// Gives single operations the tensors of a golden file where the device can reach them.
//
//   ops::scale_by({.factor = device.in(factor), .x = device.out(x)}, device.stream());
//   device.settle();  // x has the result
//
// On the CPU the views are handed through.
class GoldenDevice {
 public:
  explicit GoldenDevice(const VerifyOptions& options);

  ConstTensorView in(const ConstTensorView& host);
  TensorView out(const TensorView& host);  // read and written
  Stream stream();
  void synchronize();

 private:
  struct Copy {
    GpuArena memory;
    TensorView host;  // data is null: was only read
  };
  TensorView upload(const ConstTensorView& host);

  ThreadPool pool_;
  std::unique_ptr<GpuQueue> queue_;  // none on the CPU
  GpuArena scratch_;                 // of its operations
  std::vector<Copy> copies_;
};

}  // namespace ballast
