// model_index.json of a diffusers pipeline. The first byte chooses:
//   'W'       a fine-tuned model is written beside the pipeline's components, and takes no others
//   anything  the layout alone

#include <filesystem>

#include "fuzz.h"
#include "models/wan/config.h"
#include "train/run/model_layout.h"

namespace ballast::fuzz {
namespace {

namespace fs = std::filesystem;

// Components, and files that are none.
void write_pipeline() {
  static MemoryFile transformer("model/transformer/config.json"), vae("model/vae/config.json");
  static MemoryFile notes("model/notes.txt"), outside("outside/secret.txt");
  for (MemoryFile* file : {&transformer, &vae, &notes, &outside}) file->write("{}");
}

void check_written(const train::ModelLayout& layout) {
  static const std::string to = memory_folder() + "/written";
  fs::remove_all(to);
  fs::create_directories(to);
  train::write_diffusers(layout, wan::Config(), {}, {{"format", "pt"}}, to);
  for (const fs::directory_entry& entry : fs::directory_iterator(to)) {
    const std::string name = entry.path().filename().string();
    require(name == "model_index.json" || name == "transformer" || name == "vae");
  }
  require(fs::exists(to + "/transformer/config.json"));
}

}  // namespace

void one_input(Input input) {
  static MemoryFile index("model/model_index.json");
  static const bool written = (write_pipeline(), true);
  require(written);
  const bool write = input.byte() == 'W';
  index.write(input.rest());
  accepts([&] {
    const train::ModelLayout layout =
        train::layout_of(memory_folder() + "/model/transformer", wan::Dialect::diffusers, "");
    require(layout.config == memory_folder() + "/model/transformer/config.json");
    if (layout.kind != train::ModelLayout::Kind::pipeline) return;
    require(layout.component == "transformer" && layout.pipeline == memory_folder() + "/model");
    if (write) check_written(layout);
  });
}

}  // namespace ballast::fuzz
