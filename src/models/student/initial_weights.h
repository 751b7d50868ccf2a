#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/weight_files.h"
#include "models/student/config.h"
#include "models/wan/config.h"
#include "models/wan/names.h"

namespace ballast::student {

// The rows of in_proj: what a student's attention takes from its teacher's.
enum class AttentionStart : std::uint8_t {
  each,       // q, k and v, each cut to the student's size
  truncated,  // what the reference does: q, k and v stacked, then cut, which is q alone
};

// Which of the teacher's blocks block `b` of the student begins as.
std::int64_t teacher_block(const Config& c, std::int64_t teacher_layers, std::int64_t b);

// The values a student begins with. Attention and MLP of every block come from the teacher: the
// first rows and columns of a matrix, times sqrt(inputs there / inputs here) where there are more
// there; the first entries of a vector. Everything else, and what reaches beyond the teacher's
// size, is drawn as PyTorch does for such layers, from the seed and the tensor's name.
class InitialWeights {
 public:
  // Checkpoint and names must outlive it.
  InitialWeights(const Config& config, const wan::Config& teacher, const WeightFiles& checkpoint,
                 const wan::TensorMap& names, AttentionStart attention, std::uint64_t seed)
      : config_(config),
        teacher_(teacher),
        checkpoint_(checkpoint),
        names_(names),
        attention_(attention),
        seed_(seed) {}

  std::vector<float> of(const std::string& name, const Shape& shape) const;

 private:
  // rows [first, first + count) of the student's tensor from the beginning of the teacher's.
  void take(const std::string& from, const Shape& shape, std::int64_t first, std::int64_t count,
            std::vector<float>& to) const;

  Config config_;
  wan::Config teacher_;
  const WeightFiles& checkpoint_;
  const wan::TensorMap& names_;
  AttentionStart attention_;
  std::uint64_t seed_;
};

// What PyTorch draws for such a tensor: uniform within 1 / sqrt(inputs) (in_proj_weight: Xavier),
// attention's biases 0, norms 1 and 0.
std::vector<float> drawn_values(const Config& c, const std::string& name, const Shape& shape,
                                std::uint64_t seed);

}  // namespace ballast::student
