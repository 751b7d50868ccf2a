// A cached sample: latent and text files of all layouts. The first byte chooses:
//   'S'       a safetensors file as it is
//   anything  tensors line by line (fuzz.h)

#include <vector>

#include "core/to_size.h"
#include "data/cache_file.h"
#include "data/sample_layout.h"
#include "fuzz.h"

namespace ballast::fuzz {
namespace {

constexpr data::SampleLayout kLayouts[] = {data::SampleLayout::ballast, data::SampleLayout::musubi,
                                           data::SampleLayout::embedding_pair};

void read_sample(const data::CacheFile& file, data::SampleLayout layout,
                 const data::ModelNeeds& needs) {
  accepts([&] {
    const data::LatentTensors found = data::find_latent(file, layout, needs);
    require(found.shape.elements() >= 0 && found.shape.elements() <= 1 << 16);
    std::vector<float> latent(to_size(found.shape.elements()));
    data::read_latent(file, found, layout, needs, latent);
    const std::size_t cells = latent.size() / to_size(found.shape.channels);
    if (found.conditioning != nullptr) {
      std::vector<float> y(cells * to_size(needs.conditioning_channels));
      data::read_conditioning(file, found, y);
    }
    std::vector<float> mask(cells);
    data::read_mask(file, found, mask);
  });
  accepts([&] {
    const SafetensorsEntry& rows = data::find_text(file, layout, needs);
    std::vector<float> text(to_size(rows.shape.elements()));
    data::read_text(file, rows, text);
  });
}

}  // namespace

void one_input(Input input) {
  static MemoryFile stored("latents.safetensors");
  if (input.byte() == 'S') {
    stored.write(input.rest());
  } else {
    const std::string_view fill = input.line();
    stored.write(safetensors_of_lines(input.rest(), fill));
  }
  accepts([&] {
    const data::CacheFile file = data::CacheFile::open(stored.path());
    const data::ModelNeeds image{
        .latent_channels = 2, .conditioning_channels = 6, .text_len = 4, .text_dim = 8};
    const data::ModelNeeds text{.latent_channels = 2, .text_len = 4, .text_dim = 8};
    const data::ModelNeeds pixels{
        .latent_channels = 3, .spatial_stride = 1, .temporal_stride = 1, .pixels = true};
    for (const data::SampleLayout layout : kLayouts) {
      read_sample(file, layout, text);
      read_sample(file, layout, image);
    }
    read_sample(file, data::SampleLayout::ballast, pixels);
    for (const SafetensorsEntry& e : file.header().entries()) {
      std::vector<float> values(to_size(e.shape.elements()));
      accepts([&] { file.read(e, values); });
    }
  });
}

}  // namespace ballast::fuzz
