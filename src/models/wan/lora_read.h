#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"
#include "io/weight_files.h"
#include "models/wan/config.h"
#include "models/wan/lora_file.h"
#include "models/wan/lora_module.h"

namespace ballast::wan {

// A LoRA file of any dialect, its headers read and checked; factors are read when asked for.
//
// Where alpha comes from: the module's own .alpha; else PEFT's config (the metadata entry
// lora_adapter_metadata, or adapter_config.json beside a file named adapter_model.safetensors);
// else it is the rank.
//
// Refused with ErrorCode::input, the file and the key: a factor without the other, factors that do
// not fit each other or the model, a strange alpha, a tensor that is there twice under two names,
// parts that change what the factors mean (DoRA, LoKr, LoHa, a middle factor), and files without
// any module of this model.
class LoraReader {
 public:
  // path: a file, or a folder that holds one. model: what the shapes must fit; nullptr: anything
  // consistent.
  static LoraReader open(const std::string& path, const Config* model = nullptr,
                         DiskMode mode = DiskMode::automatic);

  const std::string& path() const { return checkpoint_.path(); }
  LoraDialect dialect() const { return dialect_; }
  const Metadata& metadata() const { return checkpoint_.files()[0].metadata(); }
  std::span<const LoraModule> modules() const { return modules_; }  // by block, then name
  const LoraModule* find(std::string_view official) const;          // nullptr when absent
  // Keys that mean nothing to this model; they are left out.
  std::span<const std::string> unused() const { return unused_; }

 private:
  explicit LoraReader(WeightFiles checkpoint) : checkpoint_(std::move(checkpoint)) {}

  WeightFiles checkpoint_;
  LoraDialect dialect_ = LoraDialect::comfy;
  std::vector<LoraModule> modules_;
  std::vector<std::string> unused_;
};

// A pair of factors that training starts from, wherever they lie.
struct LoraTarget {
  using Put = std::function<void(std::span<const float>)>;  // gets the whole factor
  std::string name;                                         // official
  Shape down, up;                                           // [rank, in], [out, rank]
  Put put_down, put_up;
};

// Fills targets from a file, so that target_scale up down is what the file means: where its scale
// is another, the quotient is folded into the factors. Returns the names of targets that the file
// does not have; those are left as they are. Refused: modules of the file that are no targets,
// another rank, differences (.diff, .diff_b), which no factors can hold.
std::vector<std::string> init_factors(const LoraReader& file, std::span<const LoraTarget> targets,
                                      double target_scale);

}  // namespace ballast::wan
