#pragma once

#include <string>

#include "io/weight_files.h"
#include "models/wan/config.h"
#include "models/wan/names.h"

namespace ballast::wan {

// Sizes of a student that is a Wan transformer itself; 0: as many as the teacher.
struct SmallerSizes {
  std::int64_t layers = 0, dim = 0, ffn_dim = 0;
};

// Fails with ErrorCode::input, naming the key, where the student would be larger, have part of a
// head, or be the teacher itself.
Config smaller_config(const Config& teacher, const SmallerSizes& sizes);

// Block b of the student begins as the teacher's block b * layers there / layers here.
std::int64_t teacher_block(const Config& teacher, const Config& student, std::int64_t b);

// A file with a student's first weights: of every tensor the first rows and columns of the
// teacher's, which are its first heads and features; matrices that lose inputs times
// sqrt(inputs there / inputs here). Official names, written whole or not at all.
void write_smaller_model(const std::string& path, const Config& student, const Config& teacher,
                         const WeightFiles& checkpoint, const TensorMap& names, DType dtype);

}  // namespace ballast::wan
