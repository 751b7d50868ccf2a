// A dataset file of diffusion-pipe or musubi-tuner.

#include "data/dataset_options.h"
#include "fuzz.h"

namespace ballast::fuzz {

void one_input(Input input) {
  accepts([&] {
    const TomlFile file = TomlFile::parse(input.rest(), "fuzz.toml");
    std::vector<std::string> notes;
    switch (data::recognise_dataset(file.root())) {
      case data::DatasetFileKind::diffusion_pipe:
        data::read_diffusion_pipe_dataset(file.root(), {}, false, notes);
        break;
      case data::DatasetFileKind::musubi:
        data::read_musubi_datasets(file.root(), notes);
        break;
    }
    check_notes(notes);
  });
}

}  // namespace ballast::fuzz
