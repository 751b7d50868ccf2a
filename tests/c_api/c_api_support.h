#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ballast/ballast_c.h"

namespace ballast::c_tests {

using Json = nlohmann::json;

// What a function of the interface came to.
struct Answer {
  int code = -1;
  std::string text;
  Json error;
};

// f(text, err) calls one of them.
template <class F>
Answer ask(F&& f) {
  char *text = nullptr, *err = nullptr;
  Answer a;
  a.code = f(&text, &err);
  if (text != nullptr) a.text = text;
  if (err != nullptr) a.error = Json::parse(err);
  EXPECT_EQ(a.code == 0, err == nullptr);
  ballast_free(text);
  ballast_free(err);
  return a;
}

// One that gives nothing back but its code.
template <class F>
Answer tell(F&& f) {
  return ask([&](char**, char** err) { return f(err); });
}

// An array of the test's own, row by row.
class Array {
 public:
  Array(std::vector<std::int64_t> shape, std::vector<float> values)
      : shape_(std::move(shape)), values_(std::move(values)) {
    std::int64_t n = 1;
    for (const std::int64_t side : shape_) n *= side;
    values_.resize(static_cast<std::size_t>(n));
  }

  DLTensor tensor() {
    return {.data = values_.data(),
            .device = {.device_type = 1, .device_id = 0},
            .ndim = static_cast<std::int32_t>(shape_.size()),
            .dtype = {.code = 2, .bits = 32, .lanes = 1},
            .shape = shape_.data(),
            .strides = nullptr,
            .byte_offset = 0};
  }
  const std::vector<float>& values() const { return values_; }

 private:
  std::vector<std::int64_t> shape_;
  std::vector<float> values_;
};

}  // namespace ballast::c_tests
