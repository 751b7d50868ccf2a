#pragma once

#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint.h"

namespace ballast::train::sample {

// State of a small run whose every byte follows from the step.
class SampleRun {
 public:
  explicit SampleRun(std::int64_t step = 0, std::size_t elements = 1000)
      : adapter_(elements), moment_(elements / 2), scale_(1) {
    set(step);
  }

  void set(std::int64_t step) {
    state = {.step = step,
             .epoch = 1 + step / 10,
             .batches = step % 10,
             .examples = 4 * step,
             .seed = 0xffff'ffff'ffff'fff0u,
             .wall_seconds = 0.1 * static_cast<double>(step),
             .config_hash = "c0",
             .plan_hash = "p0",
             .model_hash = "m0",
             .counts = {{"expert0", step}},
             .numbers = {{"loss_sum", 1.0 / 3 + static_cast<double>(step)}},
             .texts = {{"schedule", "cosine \"é\"\n"}}};
    for (std::size_t i = 0; i < adapter_.size(); ++i) adapter_[i] = value(step, i);
    for (std::size_t i = 0; i < moment_.size(); ++i) {
      moment_[i] = static_cast<std::uint16_t>(value(step, i + 77));
    }
    scale_[0] = value(step, 1);
  }

  std::vector<SavedTensor> saved() {
    std::vector<SavedTensor> all;
    for (const LoadedTensor& t : loaded()) {
      all.push_back(SavedTensor::of(t.name, {t.data, t.dtype, t.shape}));
    }
    return all;
  }
  std::vector<LoadedTensor> loaded() {
    const auto rows = static_cast<std::int64_t>(adapter_.size() / 2);
    return {LoadedTensor::of("blocks.0.q.lora_A", {bytes(adapter_), DType::f32, {rows, 2}}),
            LoadedTensor::of("blocks.0.q.lora_A/moment", {bytes(moment_), DType::bf16, {rows}}),
            LoadedTensor::of("nothing", {nullptr, DType::u8, {0, 3}}),
            LoadedTensor::of("scale", {bytes(scale_), DType::f32, {}})};
  }

  std::string save(const std::string& run) { return save_checkpoint(run, state, saved()); }

  friend bool operator==(const SampleRun& a, const SampleRun& b) {
    return a.state == b.state && a.adapter_ == b.adapter_ && a.moment_ == b.moment_ &&
           a.scale_ == b.scale_;
  }

  TrainerState state;

 private:
  static std::uint32_t value(std::int64_t step, std::size_t i) {
    return static_cast<std::uint32_t>(
        (static_cast<std::uint64_t>(step) * 1'000'003 + i) * 2'654'435'761u >> 7);
  }
  template <class T>
  static std::byte* bytes(std::vector<T>& v) {
    return reinterpret_cast<std::byte*>(v.data());
  }

  std::vector<std::uint32_t> adapter_;  // any bits: NaNs are restored like all others
  std::vector<std::uint16_t> moment_;
  std::vector<std::uint32_t> scale_;
};

// Where fsync costs nothing, since these tests wait for it hundreds of times; containers may have
// very little of it.
inline std::string quick_disk() {
  std::error_code none;
  const auto space = std::filesystem::space("/dev/shm", none);
  return !none && space.available > (512u << 20) ? "/dev/shm" : ".";
}

inline std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

}  // namespace ballast::train::sample
