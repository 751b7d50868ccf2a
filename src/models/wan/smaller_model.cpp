#include "models/wan/smaller_model.h"

#include <cmath>

#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "models/wan/params.h"
#include "models/wan/tensor_rows.h"

namespace ballast::wan {
namespace {

std::int64_t size_of_key(const char* key, std::int64_t wanted, std::int64_t teacher) {
  if (wanted == 0) return teacher;
  if (wanted < 1 || wanted > teacher) {
    fail(ErrorCode::input, "[distill] {} = {}: expected 1 to {}, what the teacher has", key, wanted,
         teacher);
  }
  return wanted;
}

std::string teacher_name(const Config& teacher, const Config& student, const std::string& name) {
  constexpr std::string_view kBlocks = "blocks.";
  if (!name.starts_with(kBlocks)) return name;
  const std::size_t dot = name.find('.', kBlocks.size());
  const auto block = std::stoll(name.substr(kBlocks.size(), dot - kBlocks.size()));
  return fmt::format("blocks.{}{}", teacher_block(teacher, student, block), name.substr(dot));
}

}  // namespace

Config smaller_config(const Config& teacher, const SmallerSizes& sizes) {
  Config c = teacher;
  c.layers = size_of_key("layers", sizes.layers, teacher.layers);
  c.dim = size_of_key("dim", sizes.dim, teacher.dim);
  c.ffn_dim = size_of_key("ffn_dim", sizes.ffn_dim, teacher.ffn_dim);
  if (c.dim % teacher.head_dim() != 0) {
    fail(ErrorCode::input,
         "[distill] dim = {}: expected a multiple of {}, the width "
         "of a head",
         c.dim, teacher.head_dim());
  }
  c.heads = c.dim / teacher.head_dim();
  if (c.layers == teacher.layers && c.dim == teacher.dim && c.ffn_dim == teacher.ffn_dim) {
    fail(ErrorCode::input, "[distill]: the student is as large as its teacher",
         {{fmt::format("layers = {}", (teacher.layers + 1) / 2), "every other block"}});
  }
  c.name = fmt::format("{} of {} blocks, width {}", teacher.name, c.layers, c.dim);
  c.description = "";
  c.experts = 1;
  validate(c);
  return c;
}

std::int64_t teacher_block(const Config& teacher, const Config& student, std::int64_t b) {
  return b * teacher.layers / student.layers;
}

void write_smaller_model(const std::string& path, const Config& student, const Config& teacher,
                         const WeightFiles& checkpoint, const TensorMap& names, DType dtype) {
  SafetensorsWriter writer({.metadata = {{"format", "pt"}}});
  each_parameter(student, [&](int, const std::string& name, const Shape& shape) {
    writer.add(name, dtype, shape, [&, name, shape](const ByteSink& sink) {
      const bool table = name.ends_with("modulation");  // [1, rows, C]
      TensorRows from(checkpoint, names, teacher_name(teacher, student, name),
                      table ? teacher.dim : 0);
      const std::int64_t columns = table ? student.dim : shape.elements() / shape[0];
      const std::int64_t rows = shape.elements() / columns;
      // time_projection has six parts, one below the other.
      const std::int64_t part = name.starts_with("time_projection") ? student.dim : rows;
      const std::int64_t part_there = part == rows ? from.rows() : teacher.dim;
      const bool loses = shape.rank() > 1 && !table && columns < from.columns();
      const double factor =
          loses ? std::sqrt(static_cast<double>(from.columns()) / static_cast<double>(columns)) : 1;
      std::vector<float> row(to_size(columns));
      std::vector<std::byte> stored(row.size() * size_of(dtype));
      for (std::int64_t r = 0; r < rows; ++r) {
        from.read(r / part * part_there + r % part, row);
        for (float& x : row) x = static_cast<float>(factor * x);
        convert(row.data(), DType::f32, stored.data(), dtype, columns);
        sink(stored);
      }
    });
  });
  writer.write(path);
}

}  // namespace ballast::wan
