#pragma once

#include <memory>
#include <string>
#include <vector>

#include "memory/disk_file.h"
#include "models/wan/config.h"
#include "models/wan/weights.h"

namespace ballast {

// A file of random weights with the shapes of a model, for measuring. Numbers are of the size that
// keeps activations finite; gains are 1. The file is removed at the end.
class RandomWeights {
 public:
  // Where its file goes.
  struct Place {
    std::string folder;
    std::string kept =
        {};  // if any: a file that stays, and is used as it is where it is there already
  };
  enum class Blocks {
    each,   // the whole model: reading it is reading a model
    alike,  // one block, which all blocks read: little to write where loading is not measured
  };
  RandomWeights(const wan::Config& config, DType stored, Blocks blocks, const Place& place);
  // A model of any family, in its groups' dtypes; tensors of one shape share their bytes.
  RandomWeights(std::vector<WeightGroup> groups, const std::string& folder);
  ~RandomWeights();
  RandomWeights(const RandomWeights&) = delete;
  RandomWeights& operator=(const RandomWeights&) = delete;

  const std::vector<WeightGroup>& groups() const { return groups_; }
  std::uint64_t bytes() const { return file_->size(); }
  const std::string& path() const { return path_; }

 private:
  void write(DType matrices, std::uint64_t bytes, const std::vector<const StoredTensor*>& tensors);
  void open();

  std::string path_;
  bool kept_ = false;
  std::unique_ptr<DiskFile> file_;  // groups point to it
  std::vector<WeightGroup> groups_;
};

}  // namespace ballast
