// The cases about number formats: what core/convert.h makes of the stored values.

#include <array>

#include "app/golden/results.h"
#include "core/convert.h"
#include "core/error.h"

namespace ballast {
namespace {

struct Format {
  DType dtype;
  std::string_view in_half_formats, in_dtypes;  // its name in the files
};

constexpr std::array<Format, 4> kFormats = {{
    {DType::bf16, "bf16", "bf16"},
    {DType::f16, "fp16", "f16"},
    {DType::f8_e4m3, "f8_e4m3fn", "f8_e4m3fn"},
    {DType::f8_e5m2, "f8_e5m2", "f8_e5m2"},
}};

GoldenTensor converted(std::string name, const GoldenTensor& from, DType to, Rounding rounding) {
  GoldenTensor result = golden_tensor(std::move(name), to, from.shape);
  convert(from.data.data(), from.dtype, result.data.data(), to, from.shape.elements(), rounding);
  return result;
}

}  // namespace

std::vector<GoldenTensor> recompute_half_formats(const GoldenFile& file, const VerifyOptions&) {
  const GoldenTensor in = file.load("in.f32");
  if (in.dtype != DType::f32) {
    fail(ErrorCode::input, "{}: in.f32 is {}", file.path(), in.dtype);
  }
  std::vector<GoldenTensor> results;
  for (const Format& f : kFormats) {
    const std::string name = fmt::format("out.{}", f.in_half_formats);
    results.push_back(converted(name, in, f.dtype, Rounding::nearest));
    results.push_back(converted(name + ".saturated", in, f.dtype, Rounding::saturating));
  }
  for (const DType t : {DType::f8_e4m3, DType::f8_e5m2}) {
    results.push_back(
        golden_tensor(fmt::format("table.{}", t == DType::f8_e4m3 ? "f8_e4m3fn" : "f8_e5m2"), {256},
                      f8_values(t)));
  }
  return results;
}

std::vector<GoldenTensor> recompute_dtypes(const GoldenFile& file, const VerifyOptions&) {
  std::vector<GoldenTensor> results;
  for (const Format& f : kFormats) {
    const GoldenTensor in = file.load(fmt::format("t.{}", f.in_dtypes));
    if (in.dtype != f.dtype) {
      fail(ErrorCode::input, "{}: {} is {}, expected {}", file.path(), in.name, in.dtype, f.dtype);
    }
    results.push_back(
        converted(fmt::format("expect.{}", f.in_dtypes), in, DType::f32, Rounding::nearest));
  }
  return results;
}

}  // namespace ballast
