#pragma once

#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace ballast {

struct RandomTensor {
  std::string name;
  Shape shape;
};

// A safetensors file of random numbers under the names of a model, for measuring how it is read and
// run. Small numbers, gains are 1. The file is removed at the end.
class RandomCheckpoint {
 public:
  RandomCheckpoint(const std::vector<RandomTensor>& tensors, DType dtype,
                   const std::string& folder);
  ~RandomCheckpoint();
  RandomCheckpoint(const RandomCheckpoint&) = delete;
  RandomCheckpoint& operator=(const RandomCheckpoint&) = delete;

  const std::string& path() const { return path_; }

  // Out of the page cache, so that it is the disk that is measured.
  void drop_cache() const;

 private:
  std::string path_;
};

}  // namespace ballast
