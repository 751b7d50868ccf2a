// cuDNN is not emulated: attention takes the plain kernel where it is not made of products.

#include "memory/gpu.h"
#include "ops/attention/attention_products.h"

namespace ballast::ops::cuda {

void attention(const Attention& a, GpuQueue& queue) {
  if (a.whole_scores) return attention_of_scores(a, queue, Doing::run);
  plain_attention(a, queue.stream().native);
}
void attention_backward(const AttentionBackward& a, GpuQueue& queue) {
  if (a.whole_scores) return attention_backward_of_scores(a, queue, Doing::run);
  plain_attention_backward(a, queue.stream().native);
}
void prepare_attention(const Attention& a, GpuQueue& queue) {
  if (a.whole_scores) attention_of_scores(a, queue, Doing::prepare);
}
void prepare_attention_backward(const AttentionBackward& a, GpuQueue& queue) {
  if (a.whole_scores) attention_backward_of_scores(a, queue, Doing::prepare);
}

}  // namespace ballast::ops::cuda
