#include "train/runner_tensors.h"

#include <algorithm>

#include "core/convert.h"

namespace ballast::train {
namespace {

constexpr std::int64_t kPiece = 64 << 10;        // elements converted at once
constexpr std::uint64_t kDevicePiece = 1 << 20;  // bytes of a GPU's memory copied at once

}  // namespace

ByteSource converted_source(Runner& runner, Buffer from, DType to) {
  return [&runner, from, to](const ByteSink& sink) {
    const TensorView v = runner.view(from);
    const std::size_t size = size_of(v.dtype);
    const std::int64_t total = v.elements();
    std::vector<std::byte> piece(static_cast<std::size_t>(kPiece) * size_of(to));
    std::vector<std::byte> fetched;  // of memory that the host cannot read
    if (v.device == Device::cuda) fetched.resize(static_cast<std::size_t>(kPiece) * size);
    for (std::int64_t first = 0; first < total; first += kPiece) {
      const std::int64_t count = std::min(kPiece, total - first);
      const std::size_t at = static_cast<std::size_t>(first) * size;
      const std::byte* source = v.data + at;
      if (v.device == Device::cuda) {
        runner.read_part(from, at,
                         std::span(fetched).first(static_cast<std::size_t>(count) * size));
        source = fetched.data();
      }
      convert(source, v.dtype, piece.data(), to, count);
      sink(std::span(piece).first(static_cast<std::size_t>(count) * size_of(to)));
    }
  };
}

SavedTensor saved_tensor(std::string name, Runner& runner, Buffer b) {
  const TensorView v = runner.view(b);
  if (v.device == Device::cpu) return SavedTensor::of(std::move(name), v);
  return {.name = std::move(name),
          .dtype = v.dtype,
          .shape = v.shape,
          .source = [&runner, b, total = v.bytes()](const ByteSink& sink) {
            std::vector<std::byte> piece(std::min<std::uint64_t>(kDevicePiece, total));
            for (std::uint64_t first = 0; first < total; first += piece.size()) {
              const auto part =
                  std::span(piece).first(std::min<std::uint64_t>(piece.size(), total - first));
              runner.read_part(b, first, part);
              sink(part);
            }
          }};
}

LoadedTensor loaded_tensor(std::string name, Runner& runner, Buffer b) {
  const TensorView v = runner.view(b);
  if (v.device == Device::cpu) return LoadedTensor::of(std::move(name), v);
  return {.name = std::move(name),
          .dtype = v.dtype,
          .shape = v.shape,
          .data = nullptr,
          .sink = [&runner, b, total = v.bytes(),
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
