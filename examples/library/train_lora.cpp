// Trains a LoRA on random clips inside a memory budget, with and without gradient checkpointing,
// and shows what each needs.
//
//   train_lora MODEL [OUTPUT FOLDER]
//
// MODEL is a Wan transformer: a safetensors file, an index, or a folder that holds one.

#include <ballast/ballast.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace ballast::v1;

constexpr LatentSize kSize = {.frames = 2, .height = 8, .width = 8};
constexpr int kSteps = 5;

// A clip as it comes from the VAE and the text encoder; here it is noise.
struct Clip {
  std::vector<float> latent, conditioning, text;

  Clip(const ModelInfo& model, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, std::int64_t count) {
      v.resize(static_cast<std::size_t>(count));
      for (float& x : v) x = normal(random);
    };
    const std::int64_t cells = kSize.frames * kSize.height * kSize.width;
    fill(latent, model.latent_channels * cells);
    fill(conditioning, model.conditioning_channels * cells);
    fill(text, 7 * model.text_width);
  }

  Sample sample() const {
    return {.size = kSize, .latent = latent, .conditioning = conditioning, .text = text};
  }
};

Model prepared(const std::string& path) {
  Model model = Model::open(path);
  model.set_training({.rank = 4, .learning_rate = 1e-3, .seed = 1});
  model.set_batches({{kSize, kSize}});
  return model;
}

// The loss of the last step.
double train(Model& model, const std::vector<Clip>& clips) {
  double loss = 0;
  for (int i = 0; i < kSteps; ++i) {
    const std::vector<Sample> samples = {clips[0].sample(), clips[1].sample()};
    const StepResult r = model.step(samples);
    std::printf("  step %lld: loss %.6f, gradient norm %.4f\n", static_cast<long long>(r.step),
                r.loss, r.grad_norm);
    loss = r.loss;
  }
  return loss;
}

int run(const std::string& path, const std::string& folder) {
  Model fast = prepared(path), lean = prepared(path);
  const ModelInfo& info = fast.info();
  std::printf("%s: %s, %llu parameters, %lld blocks\n", path.c_str(), info.name.c_str(),
              static_cast<unsigned long long>(info.parameters),
              static_cast<long long>(info.layers));
  const std::vector<Clip> clips = {Clip(info, 1), Clip(info, 2)};

  fast.disable_gradient_checkpointing();
  fast.disable_offloading();
  lean.enable_gradient_checkpointing();
  lean.enable_offloading();
  double losses[2];
  Model* const models[2] = {&fast, &lean};
  for (int m = 0; m < 2; ++m) {
    const Plan plan = models[m]->plan();
    if (!plan.fits) {
      std::printf("%s", plan.text.c_str());
      for (const Advice& a : plan.advice) {
        std::printf("  %s: %s\n", a.change.c_str(), a.effect.c_str());
      }
      return 3;
    }
    std::printf("%s\n  planned: device %llu bytes, host %llu bytes\n", plan.policy.c_str(),
                static_cast<unsigned long long>(plan.planned.device),
                static_cast<unsigned long long>(plan.planned.host));
    losses[m] = train(*models[m], clips);
    const MemoryUse used = models[m]->measured();
    std::printf("  measured: device %llu bytes, host %llu bytes\n",
                static_cast<unsigned long long>(used.device),
                static_cast<unsigned long long>(used.host));
  }
  std::printf("both ways give the same loss: %s\n", losses[0] == losses[1] ? "yes" : "no");

  std::vector<float> velocity(clips[0].latent.size());
  lean.predict(clips[0].sample(), 500, velocity);
  lean.save_lora(folder + "/lora.safetensors");
  std::printf("saved %s/lora.safetensors\n", folder.c_str());
  return losses[0] == losses[1] ? 0 : 7;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: train_lora MODEL [OUTPUT FOLDER]\n");
    return 2;
  }
  try {
    return run(argv[1], argc > 2 ? argv[2] : ".");
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    for (const std::string& doing : e.trail()) std::fprintf(stderr, "  while %s\n", doing.c_str());
    for (const Advice& a : e.advice()) {
      std::fprintf(stderr, "  %s: %s\n", a.change.c_str(), a.effect.c_str());
    }
    return static_cast<int>(e.code());
  }
}
