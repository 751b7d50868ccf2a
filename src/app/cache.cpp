#include <CLI/CLI.hpp>

#include "app/cache_dataset.h"
#include "app/command.h"
#include "train/read_config.h"

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
        "ballast cache --dataset_config FILE --vae FILE --t5 FILE    musubi-tuner's flags\n"
        "ballast cache --dataset_path FOLDER --vae_checkpoint FILE --checkpoint FILE\n"
        "                                          X.safetensors and X.latent.safetensors\n\n"
        "Takes the arguments of `ballast train`. Encodes captions, then media, inside --gpu and\n"
        "--ram, and leaves out what is encoded already: stopped at any moment and started again\n"
        "it continues. --regenerate_cache encodes everything again.\n");
    app.footer(own_flags_help() + "\n" + train::config_flags_help());
  }
  bool takes(const std::vector<std::string>& arguments) override {
    for (const std::string& a : arguments) {
      if (a == "--help" || a == "-h") return false;
    }
    own_ = split_own_flags(arguments);
    return true;
  }
  void run() override {
    cache_dataset(train::read_config(own_.rest, train::ConfigUse::cache), own_);
  }

 private:
  OwnFlags own_;
};

const RegisterCommand<Cache> kCache("cache", "encodes a dataset for training");

}  // namespace
}  // namespace ballast
