#include "core/sha256.h"

#include <gtest/gtest.h>

namespace ballast::sha256_test {
namespace {

TEST(Sha256, AgreesWithPublishedDigests) {
  EXPECT_EQ(sha256_base64(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
  EXPECT_EQ(sha256_base64("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
  EXPECT_EQ(sha256_base64(std::string(1'000'000, 'a')),
            "zcduXJkU+5KBocfihNc+Z/GAmkiklyAOBG05zMcRLNA=");
  // Around the length where a second block is needed.
  EXPECT_EQ(sha256_base64(std::string(55, 'x')), "1eKFaDzU78AtAhpcYgFGlJWJAQBdb3HongmJ+sd+QHI=");
  EXPECT_EQ(sha256_base64(std::string(56, 'x')), "BMJiYTcO51QVSdFt7jIMcj4/0UZx5moJmv4KN3wWiI4=");
}

}  // namespace
}  // namespace ballast::sha256_test
