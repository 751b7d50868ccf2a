#pragma once

#include "models/wan/dit.h"

namespace ballast::wan {

// The columns of the row padding that hold the adapter of one layer (nn/adapted_linear.h).
struct AppendedColumns {
  std::int64_t columns = 0;       // of all layers that read the same input; 0: it is not appended
  std::int64_t first = 0;         // of them: this layer's
  std::vector<std::size_t> down;  // targets whose A stand below this layer's weight, in order
};

// Which adapters a job appends. That depends on the job alone, so that no policy changes a bit: not
// with dropout, where every layer reads another x, nor where products are fp8; not
// cross-attention's keys and values, whose few rows cost little. Weights of another type than the
// activations have no row padding, and their adapters stay apart.
class AppendedAdapters {
 public:
  explicit AppendedAdapters(const DitJob& job);

  // target: an index into adapter_targets().
  AppendedColumns columns_of(std::int64_t block, std::size_t target) const;
  // The target whose weight is tensor `tensor` of a block's group; none: nullopt.
  std::optional<std::size_t> target_of(std::size_t tensor) const;
  RowPadding padding(int group, std::size_t tensor, DType dtype) const;
  // Columns behind the gradient of the residual stream, where that is what products read.
  std::int64_t gradient_room() const;

 private:
  bool adapted(std::int64_t block, std::size_t target) const;

  const DitJob& job_;
  bool any_ = false;
  std::vector<const char*> names_;    // of targets
  std::vector<std::size_t> tensors_;  // their weights' places in a block's group
};

}  // namespace ballast::wan
