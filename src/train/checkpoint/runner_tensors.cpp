#include "train/checkpoint/runner_tensors.h"

#include <algorithm>

#include "core/convert.h"
#include "core/error.h"
#include "core/non_finite.h"
#include "core/to_size.h"

namespace ballast::train {
namespace {

constexpr std::int64_t kConvertedAtOnce = 64 << 10;  // elements converted at once
constexpr std::uint64_t kFarPiece = 1 << 20;  // bytes of a GPU's memory or a file copied at once

// Of the pieces of one tensor, in order.
class FiniteScan {
 public:
  FiniteScan(std::string_view tensor, DType dtype) : tensor_(tensor), dtype_(dtype) {}

  std::optional<NonFinite> add(std::span<const std::byte> piece) {
    const std::size_t size = size_of(dtype_);
    check(piece.size() % size == 0, "{}: a piece of {} bytes cuts an element", tensor_,
          piece.size());
    const auto count = static_cast<std::int64_t>(piece.size() / size);
    const auto bad =
        first_non_finite(std::span(piece).first(to_size(count) * size_of(dtype_)), dtype_);
    if (!bad) {
      done_ += count;
      return std::nullopt;
    }
    float value = 0;
    convert(piece.data() + to_size(*bad) * size, dtype_, &value, DType::f32, 1);
    return NonFinite{std::string(tensor_), done_ + *bad, value};
  }

 private:
  std::string_view tensor_;
  DType dtype_;
  std::int64_t done_ = 0;
};

}  // namespace

double run_value_norm(Runner& runner, Buffer norm) {
  runner.run(kValueNorm);
  return *runner.view(norm).as<float>();
}

std::optional<NonFinite> find_non_finite(std::span<const SavedTensor> tensors) {
  std::optional<NonFinite> found;
  for (const SavedTensor& t : tensors) {
    FiniteScan scan(t.name, t.dtype);
    t.source([&](std::span<const std::byte> piece) {
      if (!found) found = scan.add(piece);
    });
    if (found) break;
  }
  return found;
}

std::vector<SavedTensor> watched(std::vector<SavedTensor> tensors,
                                 const std::function<void(const NonFinite&)>& found) {
  for (SavedTensor& t : tensors) {
    t.source = [name = t.name, dtype = t.dtype, source = std::move(t.source),
                found](const ByteSink& sink) {
      FiniteScan scan(name, dtype);
      source([&](std::span<const std::byte> piece) {
        if (const auto bad = scan.add(piece)) found(*bad);
        sink(piece);
      });
    };
  }
  return tensors;
}

ByteSource converted_source(Runner& runner, Buffer from, DType to) {
  return [&runner, from, to](const ByteSink& sink) {
    const BufferSpec& s = runner.spec(from);
    const std::size_t size = size_of(s.dtype);
    const std::int64_t total = s.shape.elements();
    const bool in_reach = runner.host_can_touch(from);
    std::vector<std::byte> piece(to_size(kConvertedAtOnce) * size_of(to));
    std::vector<std::byte> fetched;  // of what the host cannot read in place
    if (!in_reach) fetched.resize(to_size(kConvertedAtOnce) * size);
    for (std::int64_t first = 0; first < total; first += kConvertedAtOnce) {
      const std::int64_t count = std::min(kConvertedAtOnce, total - first);
      const std::size_t at = to_size(first) * size;
      if (!in_reach) {
        runner.read_part(from, at, std::span(fetched).first(to_size(count) * size));
      }
      const std::byte* source = in_reach ? runner.view(from).data + at : fetched.data();
      convert(source, s.dtype, piece.data(), to, count);
      sink(std::span(piece).first(to_size(count) * size_of(to)));
    }
  };
}

SavedTensor saved_tensor(std::string name, Runner& runner, Buffer b) {
  if (runner.host_can_touch(b)) return SavedTensor::of(std::move(name), runner.view(b));
  const BufferSpec& s = runner.spec(b);
  return {.name = std::move(name),
          .dtype = s.dtype,
          .shape = s.shape,
          .source = [&runner, b, total = s.bytes](const ByteSink& sink) {
            std::vector<std::byte> piece(std::min<std::uint64_t>(kFarPiece, total));
            for (std::uint64_t first = 0; first < total; first += piece.size()) {
              const auto part =
                  std::span(piece).first(std::min<std::uint64_t>(piece.size(), total - first));
              runner.read_part(b, first, part);
              sink(part);
            }
          }};
}

LoadedTensor loaded_tensor(std::string name, Runner& runner, Buffer b) {
  if (runner.host_can_touch(b)) return LoadedTensor::of(std::move(name), runner.view(b));
  const BufferSpec& s = runner.spec(b);
  return {.name = std::move(name),
          .dtype = s.dtype,
          .shape = s.shape,
          .data = nullptr,
          .sink = [&runner, b, total = s.bytes,
                   at = std::uint64_t{0}](std::span<const std::byte> piece) mutable {
            runner.write_part(b, at, piece);
            at += piece.size();
            if (at == total) at = 0;  // whoever loads it again begins again
          }};
}

std::vector<SavedTensor> saved_tensors(std::span<const UpdatedTensor> trained, Runner& runner) {
  std::vector<SavedTensor> all;
  for (const UpdatedTensor& t : trained) {
    all.push_back(saved_tensor(t.name, runner, t.value));
    for (std::size_t s = 0; s < t.states.size(); ++s) {
      all.push_back(saved_tensor(t.name + t.specs[s].suffix, runner, t.states[s]));
    }
  }
  return all;
}

std::vector<LoadedTensor> loaded_tensors(std::span<const UpdatedTensor> trained, Runner& runner,
                                         bool values_only) {
  std::vector<LoadedTensor> all;
  for (const UpdatedTensor& t : trained) {
    all.push_back(loaded_tensor(t.name, runner, t.value));
    for (std::size_t s = 0; s < t.states.size() && !values_only; ++s) {
      all.push_back(loaded_tensor(t.name + t.specs[s].suffix, runner, t.states[s]));
    }
  }
  return all;
}

Buffer value_to_save(const UpdatedTensor& t) {
  for (std::size_t s = 0; s < t.specs.size(); ++s) {
    if (t.specs[s].starts_as_parameter) return t.states[s];
  }
  return t.value;
}

}  // namespace ballast::train
