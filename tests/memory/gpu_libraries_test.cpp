#include "memory/gpu_libraries.h"

#include <gmock/gmock.h>

namespace ballast {
namespace {

using ::testing::HasSubstr;

TEST(GpuLibraries, WrongVersionsOfCudnnAreRefused) {
  EXPECT_THAT(cudnn_fault(90501).value(), HasSubstr("9.5.1 is too old"));
  EXPECT_THAT(cudnn_fault(0).value(), HasSubstr("too old"));
  EXPECT_FALSE(cudnn_fault(90600).has_value());
  EXPECT_THAT(cudnn_fault(91000).value(), HasSubstr("9.10.0 computes attention gradients wrongly"));
  EXPECT_TRUE(cudnn_fault(91001).has_value());
  EXPECT_FALSE(cudnn_fault(91002).has_value());
  EXPECT_FALSE(cudnn_fault(91900).has_value());
}

TEST(GpuLibraries, OnesThatAreNotThereSayWhy) {
  const auto libraries = find_gpu_libraries(77);
  ASSERT_EQ(libraries.size(), 3u);
  EXPECT_EQ(libraries[0].file, "libcublasLt.so.77");
  EXPECT_THAT(libraries[0].problem, HasSubstr("libcublasLt.so.77"));
  EXPECT_THAT(libraries[2].problem, HasSubstr("libnvrtc.so.77"));
}

}  // namespace
}  // namespace ballast
