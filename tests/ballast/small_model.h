#pragma once

// A small model and samples for it, as a user of the library has them.

#include <string>
#include <vector>

#include "ballast/ballast.h"
#include "tests/support/tiny_training.h"

namespace ballast::support {

inline constexpr v1::LatentSize kSmallLatent = {.frames = 2, .height = 8, .width = 8};

class SmallModel {
 public:
  explicit SmallModel(wan::Config config = trainable_config(4, 2))
      : config_(std::move(config)), file_(config_) {}

  // Open, with steps of `samples` latents and a LoRA of rank 4.
  v1::Model open(std::size_t samples = 2, v1::LatentSize size = kSmallLatent) const {
    v1::Model m = v1::Model::open(file_.path());
    m.set_threads(2);
    m.set_training({.rank = 4, .learning_rate = 1e-2, .seed = 5});
    m.set_batches({v1::Batch(samples, size)});
    return m;
  }

  // Samples whose content depends on `first` alone. They live as long as this object.
  std::vector<v1::Sample> samples(std::size_t count, int first = 0,
                                  v1::LatentSize size = kSmallLatent) {
    const std::int64_t cells = size.frames * size.height * size.width;
    std::vector<v1::Sample> all;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string id = std::to_string(first + static_cast<int>(i));
      const auto keep = [&](const std::string& name, std::int64_t n) -> const std::vector<float>& {
        return *kept_.emplace_back(
            std::make_unique<std::vector<float>>(normal_values(name + id, n, 1)));
      };
      all.push_back({.size = size,
                     .latent = keep("latent", config_.out_dim * cells),
                     .conditioning = keep("y", config_.conditioning() * cells),
                     .text = keep("text", 3 * config_.text_dim)});
    }
    return all;
  }

  std::string path() const { return file_.path(); }
  const wan::Config& config() const { return config_; }

 private:
  wan::Config config_;
  TinyCheckpoint file_;
  std::vector<std::unique_ptr<std::vector<float>>> kept_;
};

}  // namespace ballast::support
