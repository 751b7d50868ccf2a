#include "app/golden/golden_device.h"

#include "core/error.h"
#include "ops/kernels/ordered_sum_cuda.h"

namespace ballast {

GoldenDevice::GoldenDevice(const VerifyOptions& options) : pool_(thread_count(options)) {
  if (verify_backend(options).device == Device::cpu) return;
  queue_ = std::make_unique<GpuQueue>();
  scratch_ = GpuArena(Bytes{ops::cuda::kColumnScratchBytes}, "sums of a golden file");
}

TensorView GoldenDevice::upload(const ConstTensorView& host) {
  check(host.contiguous(), "a golden tensor {} has gaps", host.shape);
  Copy& c = copies_.emplace_back();
  c.memory = GpuArena(Bytes{std::max<std::uint64_t>(host.bytes(), 1)}, "a golden tensor");
  gpu_copy(c.memory.base(), host.data, {host.bytes()});
  return TensorView(c.memory.base(), host.dtype, host.shape, Device::cuda);
}

ConstTensorView GoldenDevice::in(const ConstTensorView& host) {
  return queue_ ? upload(host) : host;
}

TensorView GoldenDevice::out(const TensorView& host) {
  if (!queue_) return host;
  const TensorView there = upload(host);
  copies_.back().host = host;
  return there;
}

Stream GoldenDevice::stream() {
  if (!queue_) return {.pool = &pool_};
  Stream stream = queue_->stream(&pool_);
  stream.scratch = scratch_.base();
  return stream;
}

void GoldenDevice::synchronize() {
  if (!queue_) return;
  queue_->finish();
  for (const Copy& c : copies_) {
    if (c.host) gpu_copy(c.host.data, c.memory.base(), {c.host.bytes()});
  }
  copies_.clear();
}

}  // namespace ballast
