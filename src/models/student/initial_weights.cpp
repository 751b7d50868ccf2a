#include "models/student/initial_weights.h"

#include <algorithm>
#include <cmath>

#include "core/random.h"
#include "core/to_size.h"
#include "models/student/params.h"
#include "models/wan/tensor_rows.h"

namespace ballast::student {
namespace {

std::int64_t inputs_of(const Shape& s) { return s.elements() / s[0]; }

// Inputs of the layer that a tensor belongs to: a bias is drawn by its weight's.
std::int64_t fan_in(const Config& c, const std::string& name, const Shape& shape) {
  if (shape.rank() > 1) return inputs_of(shape);
  std::int64_t inputs = 1;
  const std::string weight = name.substr(0, name.size() - 4) + "weight";  // "bias" is four letters
  each_parameter(c, [&](int, const std::string& other, const Shape& s) {
    if (other == weight) inputs = inputs_of(s);
  });
  return inputs;
}

}  // namespace

std::int64_t teacher_block(const Config& c, std::int64_t teacher_layers, std::int64_t b) {
  return b * teacher_layers / c.depth;
}

std::vector<float> drawn_values(const Config& c, const std::string& name, const Shape& shape,
                                std::uint64_t seed) {
  std::vector<float> v(to_size(shape.elements()), 0.0f);
  if (name.find(".norm") != std::string::npos) {
    if (name.ends_with("weight")) std::ranges::fill(v, 1.0f);
    return v;
  }
  if (name.ends_with("in_proj_bias") || name.ends_with("out_proj.bias")) return v;
  double bound = 1 / std::sqrt(static_cast<double>(fan_in(c, name, shape)));
  if (name.ends_with("in_proj_weight")) {
    bound = std::sqrt(6.0 / static_cast<double>(shape[0] + shape[1]));
  }
  fill_uniform(random_source(seed, "student_weights", 0, name), 0, v.data(), std::ssize(v));
  for (float& x : v) x = static_cast<float>(bound * (2.0 * x - 1.0));
  return v;
}

void InitialWeights::take(const std::string& from, const Shape& shape, std::int64_t first,
                          std::int64_t count, std::vector<float>& to) const {
  wan::TensorRows teacher(checkpoint_, names_, from);
  const std::int64_t rows = std::min(count, teacher.rows());
  const std::int64_t columns = teacher.columns(), own = inputs_of(shape);
  const double factor = shape.rank() > 1 && columns > own
                            ? std::sqrt(static_cast<double>(columns) / static_cast<double>(own))
                            : 1;
  std::vector<float> row(to_size(std::min(columns, own)));
  for (std::int64_t r = 0; r < rows; ++r) {
    teacher.read(r, row);
    float* out = to.data() + (first + r) * own;
    for (std::size_t k = 0; k < row.size(); ++k) out[k] = static_cast<float>(factor * row[k]);
  }
}

std::vector<float> InitialWeights::of(const std::string& name, const Shape& shape) const {
  std::vector<float> v = drawn_values(config_, name, shape, seed_);
  constexpr std::string_view kPrefix = "blocks.";
  if (!name.starts_with(kPrefix)) return v;
  const std::size_t dot = name.find('.', kPrefix.size());
  const std::int64_t block = std::stoll(name.substr(kPrefix.size(), dot - kPrefix.size()));
  const std::string part = name.substr(dot + 1);
  const std::string teacher =
      fmt::format("blocks.{}.", teacher_block(config_, teacher_.layers, block));
  const std::string kind = part.ends_with("weight") ? "weight" : "bias";
  if (part.starts_with("attn.in_proj")) {
    const std::int64_t h = config_.hidden_size;
    if (attention_ == AttentionStart::each) {
      const char* const names[] = {"q", "k", "v"};
      for (std::int64_t i = 0; i < 3; ++i) {
        take(teacher + "self_attn." + names[i] + "." + kind, shape, i * h, h, v);
      }
    } else {
      // Row r of the stack belongs to q, k or v by the teacher's size, not the student's.
      std::int64_t at = 0;
      for (const char* n : {"q", "k", "v"}) {
        const std::int64_t count = std::min(teacher_.dim, 3 * h - at);
        if (count > 0) take(teacher + "self_attn." + n + "." + kind, shape, at, count, v);
        at += count;
      }
    }
  } else if (part.starts_with("attn.out_proj")) {
    take(teacher + "self_attn.o." + kind, shape, 0, shape[0], v);
  } else if (part.starts_with("mlp.0")) {
    take(teacher + "ffn.0." + kind, shape, 0, shape[0], v);
  } else if (part.starts_with("mlp.2")) {
    take(teacher + "ffn.2." + kind, shape, 0, shape[0], v);
  }
  return v;
}

}  // namespace ballast::student
