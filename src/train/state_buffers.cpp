#include "train/state_buffers.h"

#include <algorithm>
#include <vector>

namespace ballast::train {
namespace {

constexpr std::uint64_t kDevicePiece = 1 << 20;  // bytes of a GPU's memory copied at once

}  // namespace

SavedTensor saved_buffer(std::string name, Runner& runner, Buffer b) {
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

LoadedTensor loaded_buffer(std::string name, Runner& runner, Buffer b) {
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

}  // namespace ballast::train
