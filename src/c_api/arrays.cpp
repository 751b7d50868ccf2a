#include "c_api/arrays.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "c_api/guard.h"
#include "core/to_size.h"

namespace ballast::c_api {
namespace {

constexpr std::int32_t kCpu = 1, kPinned = 3;
constexpr std::uint8_t kFloat = 2, kBfloat = 4;
constexpr std::int64_t kMaxValues = std::int64_t{1} << 40;

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::span<const std::int64_t> shape_of(const DLTensor& a) { return {a.shape, to_size(a.ndim)}; }

[[noreturn]] void fail_array(std::string_view what, const std::string& found,
                             std::string_view expected) {
  fail(ErrorCode::input, fmt::format("{} {}, expected {}", what, found, expected));
}

std::optional<v1::SaveType> type_of(const DLDataType& t) {
  if (t.lanes != 1) return std::nullopt;
  if (t.code == kFloat && t.bits == 32) return v1::SaveType::f32;
  if (t.code == kFloat && t.bits == 16) return v1::SaveType::f16;
  if (t.code == kBfloat && t.bits == 16) return v1::SaveType::bf16;
  return std::nullopt;
}

std::string type_text(const DLDataType& t) {
  const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const std::string kind =
      t.code < std::size(kinds) ? kinds[t.code] : fmt::format("type {} of ", t.code);
  return fmt::format("{}{}{}", kind, t.bits, t.lanes == 1 ? "" : fmt::format(" x {}", t.lanes));
}

std::int64_t values_of(const DLTensor& a) {
  std::int64_t n = 1;
  for (const std::int64_t side : shape_of(a)) n *= side;
  return n;
}

char* data_of(const DLTensor& a) { return static_cast<char*>(a.data) + a.byte_offset; }

v1::Array read(const DLTensor* array, std::string_view what, int rank) {
  return array == nullptr ? v1::Array() : array_of(*array, what, rank);
}

}  // namespace

void check_array(const DLTensor& a, std::string_view what, int rank) {
  if (a.ndim != rank || a.shape == nullptr) {
    fail_array(what, fmt::format("has {} dimensions", a.ndim), fmt::format("{}", rank));
  }
  std::int64_t values = 1;
  for (const std::int64_t side : shape_of(a)) {
    if (side < 0 || (side > 0 && values > kMaxValues / side)) {
      fail_array(what, "has the shape " + shape_text(shape_of(a)), "sizes that memory can hold");
    }
    values *= side;
  }
  if (a.device.device_type != kCpu && a.device.device_type != kPinned) {
    fail_array(what, fmt::format("is on a device of type {}", a.device.device_type),
               "memory of the CPU");
  }
  if (!type_of(a.dtype)) {
    fail_array(what, "is of " + type_text(a.dtype), "float32, float16 or bfloat16");
  }
  std::int64_t row = 1;
  for (int d = rank - 1; a.strides != nullptr && d >= 0; --d) {
    if (a.shape[d] > 1 && values > 0 && a.strides[d] != row) {
      fail_array(
          what,
          fmt::format("has gaps between rows (strides {})", shape_text({a.strides, to_size(rank)})),
          "rows behind rows");
    }
    row *= a.shape[d];
  }
  if (values > 0 && a.data == nullptr) fail_array(what, "has no data", "values");
}

v1::Array array_of(const DLTensor& a, std::string_view what, int rank) {
  check_array(a, what, rank);
  return {.data = data_of(a), .values = to_size(values_of(a)), .type = *type_of(a.dtype)};
}

v1::MutableArray mutable_array_of(const DLTensor& a, std::string_view what, int rank) {
  check_array(a, what, rank);
  return {.data = data_of(a), .values = to_size(values_of(a)), .type = *type_of(a.dtype)};
}

std::span<float> floats_of(const DLTensor& a, std::string_view what, int rank) {
  check_array(a, what, rank);
  if (*type_of(a.dtype) != v1::SaveType::f32) {
    fail_array(what, "is of " + type_text(a.dtype), "float32");
  }
  return {reinterpret_cast<float*>(data_of(a)), to_size(values_of(a))};
}

void require_shape(const DLTensor& a, std::string_view what,
                   std::span<const std::int64_t> expected) {
  if (std::ranges::equal(shape_of(a), expected)) return;
  fail_array(what, "has the shape " + shape_text(shape_of(a)), shape_text(expected));
}

v1::ArraySample sample_of(const ballast_sample& s) {
  if (s.struct_size != sizeof(ballast_sample)) {
    fail(ErrorCode::usage, fmt::format("a sample's struct_size is {}, expected {}", s.struct_size,
                                       sizeof(ballast_sample)));
  }
  require(s.latent, "a sample's latent");
  v1::ArraySample sample;
  sample.latent = read(s.latent, "latent", 4);
  sample.size = {
      .frames = s.latent->shape[1], .height = s.latent->shape[2], .width = s.latent->shape[3]};
  sample.conditioning = read(s.conditioning, "conditioning", 4);
  sample.text = read(s.text, "text", 2);
  if (!std::isnan(s.t)) sample.t = s.t;
  return sample;
}

}  // namespace ballast::c_api
