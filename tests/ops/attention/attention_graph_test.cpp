#include "ops/attention/attention_graph.h"

#include <gtest/gtest.h>

#include "core/device.h"
#include "ops/attention/attention_cuda_workspace.h"
#include "ops/kernels/on_device.h"
#include "tests/support/cudnn_without_gpu.h"

// These tests need cuDNN and no GPU.
namespace ballast::ops::cuda {
namespace {

class AttentionGraphs : public support::CudnnWithoutGpu {
 protected:
  // The workspace of the configuration that would be taken, -1 when there is none.
  std::int64_t workspace(const AttentionGraph& a) const {
    std::vector<std::int64_t> offers;
    if constexpr (kBuiltWithCuda) offers = offered_workspaces(a, properties(GetParam()));
    return offers.empty() ? -1 : offers[0];
  }
};

INSTANTIATE_TEST_SUITE_P(Gpus, AttentionGraphs, testing::ValuesIn(support::kGpus),
                         [](const auto& test) { return std::string(test.param.name); });

struct Size {
  std::int64_t queries, keys, heads, width;
};
void PrintTo(const Size& n, std::ostream* to) {
  *to << n.queries << " x " << n.keys << ", " << n.heads << " heads of " << n.width;
}

const std::vector<Size> kSizes = {
    {7168, 7168, 40, 128},  // a 14B layer
    {7168, 512, 40, 128},   // its text
    {32760, 32760, 1, 128}, {333, 77, 3, 40}, {1150, 1111, 2, 64},
    {130, 260, 2, 128},     {50, 50, 2, 32},  {300, 2, 1, 16},
    {5, 300, 2, 8},         {2, 1, 1, 8},     {200, 129, 2, 192},  // sm_90 only
    {5, 300, 1, 256},
};

AttentionGraph graph_of(const Size& n) {
  AttentionGraph a = {
      .queries = n.queries, .keys = n.keys, .heads = n.heads, .width = n.width, .strides = {}};
  a.lse_head = n.queries;
  // Heads of a fused q | k | v, and of dense tensors.
  for (auto& s : a.strides) s = {n.heads * n.width, n.width};
  a.strides[kQ].row = a.strides[kK].row = a.strides[kV].row = 3 * n.heads * n.width;
  return a;
}

// Calls test(size, q's shape) for all that cuDNN is given on this GPU.
template <class F>
void for_sizes(int sm, F&& test) {
  for (const Size& n : kSizes) {
    if (!cudnn_has_attention(n.width, DType::bf16, sm)) continue;
    SCOPED_TRACE(testing::PrintToString(n));
    test(n, Shape{n.queries, n.heads, n.width});
  }
}

TEST_P(AttentionGraphs, ForwardNeedsThePlannedWorkspace) {
  for_sizes(GetParam().sm, [&](const Size& n, const Shape& q) {
    EXPECT_EQ(workspace(graph_of(n)), attention_parts(q, DType::bf16, GetParam().sm).library);
  });
}

TEST_P(AttentionGraphs, DeterministicBackwardNeedsThePlannedWorkspaceInWholeTiles) {
  for_sizes(GetParam().sm, [&](const Size& n, const Shape& q) {
    AttentionGraph a = graph_of(n);
    a.backward = true;
    const std::int64_t planned =
        attention_backward_parts(q, n.keys, DType::bf16, GetParam().sm, true).library;
    const std::int64_t needed = workspace(a);
    if (n.queries % 128 == 0 && n.keys % 128 == 0) {
      EXPECT_EQ(needed, planned);
    } else {  // some kernels and versions have smaller tiles
      EXPECT_GT(needed, 2 * n.heads * n.queries * n.keys);
      EXPECT_LE(needed, planned);
    }
  });
}

TEST_P(AttentionGraphs, FastBackwardNeedsThePlannedWorkspace) {
  for_sizes(GetParam().sm, [&](const Size& n, const Shape& q) {
    AttentionGraph a = graph_of(n);
    a.backward = true;
    a.deterministic = false;
    a.dq_sum_is_ours = dq_sum_is_a_tensor(GetParam().sm);
    EXPECT_EQ(workspace(a),
              attention_backward_parts(q, n.keys, DType::bf16, GetParam().sm, false).library);
  });
}

// The widths that the plain kernel gets are those that cuDNN refuses.
TEST_P(AttentionGraphs, WiderHeadsAreRefused) {
  AttentionGraph a = graph_of({200, 200, 2, GetParam().sm == 90 ? 264 : 136});
  a.backward = true;
  EXPECT_EQ(workspace(a), -1);
}

}  // namespace
}  // namespace ballast::ops::cuda
