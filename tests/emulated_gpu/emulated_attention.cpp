// cuDNN is not emulated: attention takes the plain kernel.

#include "memory/gpu.h"
#include "ops/attention_cuda.h"

namespace ballast::ops::cuda {

void attention(const Attention& a, GpuQueue& queue) { plain_attention(a, queue.stream().native); }
void attention_backward(const AttentionBackward& a, GpuQueue& queue) {
  plain_attention_backward(a, queue.stream().native);
}
void prepare_attention(const Attention&, GpuQueue&) {}
void prepare_attention_backward(const AttentionBackward&, GpuQueue&) {}

}  // namespace ballast::ops::cuda
