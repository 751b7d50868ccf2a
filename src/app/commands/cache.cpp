#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/commands/cache_dataset.h"
#include "app/help_text.h"
#include "train/config/read_config.h"

namespace ballast {
namespace {

// ballast cache CONFIG: encodes what training reads.
class Cache : public Command {
 public:
  void declare(CLI::App& app) override {
    app.description(
        app.get_description() +
        "\n\n"
        "ballast cache CONFIG.toml [FLAGS]         a diffusion-pipe or musubi-tuner file\n"
        "ballast cache --dataset_config FILE --vae FILE     musubi-tuner's flags: latents\n"
        "ballast cache --dataset_config FILE --t5 FILE      ... captions, or both at once\n"
        "ballast cache --dataset_path FOLDER --vae_checkpoint FILE --checkpoint FILE\n"
        "                                          X.safetensors and X.latent.safetensors\n\n"
        "Takes the arguments of `ballast train`. Encodes captions, then media, inside\n"
        "--gpu and --ram, and skips what is encoded already: stopped at any moment and\n"
        "started again it continues. --regenerate_cache encodes everything again.\n");
    app.footer(own_flags_help() + "\n" + more_help("cache"));
  }
  std::optional<std::string> help_page(const std::vector<std::string>& arguments) override {
    return training_help("cache", arguments);
  }
  bool takes(const std::vector<std::string>& arguments) override {
    own_ = split_own_flags(arguments);
    return true;
  }
  void run() override {
    train::TrainConfig config = train::read_config(own_.rest, train::ConfigUse::cache);
    apply(own_, config.memory);
    cache_dataset(config, own_);
  }

 private:
  OwnFlags own_;
};

const RegisterCommand<Cache> kCache("cache", "encodes a dataset for training");

}  // namespace
}  // namespace ballast
