// demo_model: what the demo's text-to-video model is made of and trained on; train.sh says how.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "core/error.h"
#include "examples/demo_model/clips.h"
#include "examples/demo_model/energy.h"
#include "examples/demo_model/first_model.h"
#include "examples/demo_model/latents.h"
#include "examples/demo_model/seen.h"
#include "examples/demo_model/sheet.h"

namespace {

using namespace ballast;

void add_commands(CLI::App& app) {
  static struct {
    std::string folder, set, vae, cache, output;
    std::vector<std::string> before, after, teacher;
    std::uint64_t seed = 1;
    int repeats = 0;
    bool bf16 = false;
  } o;
  CLI::App* clips = app.add_subcommand("clips", "videos of moving shapes with their captions");
  clips->add_option("set", o.set, "base, new (the shape that base has not), shapes (all of them)")
      ->required();
  clips->add_option("folder", o.folder, "where they are written")->required();
  clips->add_option("--seed", o.seed, "of sizes and places")->capture_default_str();
  clips->add_option("--repeats", o.repeats, "clips of every caption")->check(CLI::Range(1, 1000));
  clips->callback([&] {
    const std::vector<demo::Clip> all = demo::clips_of(o.set, o.seed, o.repeats);
    if (all.empty()) {
      fail(ErrorCode::usage, fmt::format("there is no set {}: base, new or shapes", o.set));
    }
    demo::write_clips(o.folder, all);
    std::printf("%zu clips in %s, e.g. \"%s\"\n", all.size(), o.folder.c_str(),
                demo::caption(all.front()).c_str());
  });

  CLI::App* first = app.add_subcommand("first", "a model of random weights, to be trained");
  first->add_option("folder", o.folder, "where it is written")->required();
  first->add_option("--seed", o.seed, "of the weights")->capture_default_str();
  first->callback([&] { demo::write_first_model(o.folder, o.seed); });

  CLI::App* centre = app.add_subcommand("centre",
                                        "a VAE whose latents have zero mean and unit "
                                        "deviation on a cache that it has made");
  centre->add_option("vae", o.vae, "the VAE")->required();
  centre->add_option("cache", o.cache, "folder with latents/")->required();
  centre->add_option("output", o.output, "the new VAE")->required();
  centre->add_flag("--bf16", o.bf16, "in bf16");
  centre->callback([&] { demo::write_centred_vae(o.vae, o.cache, o.output, o.bf16); });

  static demo::SheetSize size;
  CLI::App* sheet = app.add_subcommand("sheet", "clips before and after, in one picture");
  sheet->add_option("output", o.output, "a PNG file")->required();
  sheet->add_option("--before", o.before, "clips")->required();
  sheet->add_option("--after", o.after, "as many, of the same prompts")->required();
  sheet->add_option("--teacher", o.teacher, "as many by a teacher, for a third column");
  sheet->add_option("--frames", size.frames, "of each clip")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  sheet->add_option("--picture", size.picture, "pixels of a frame's side")
      ->check(CLI::Range(8, 1000))
      ->capture_default_str();
  sheet->callback([&] {
    std::vector<demo::SheetColumn> columns = {{"before", o.before}, {"after", o.after}};
    if (!o.teacher.empty()) columns.push_back({"teacher", o.teacher});
    demo::write_sheet(o.output, columns, size);
  });

  CLI::App* distance = app.add_subcommand("distance", "how far latents are from others");
  distance->add_option("--from", o.before, "latents by `ballast sample`")->required();
  distance
      ->add_option("--of", o.after, "as many of the same noise and prompts, or several times that")
      ->required();
  distance->callback([&] {
    for (const demo::Distance& d : demo::distances(o.before, o.after)) {
      std::printf("%-40s mean squared distance %.5f over %zu clips (least %.5f, most %.5f)\n",
                  d.first.c_str(), d.mean, d.clips, d.least, d.most);
    }
  });
  CLI::App* energy =
      app.add_subcommand("energy", "how far latents are from others as a distribution");
  energy->add_option("--from", o.before, "latents by `ballast sample`, several of each prompt")
      ->required();
  energy->add_option("--of", o.after, "as many of the same prompts, or several times that")
      ->required();
  energy->callback([&] {
    for (const demo::EnergyOfSet& e : demo::energies(o.before, o.after)) {
      std::printf(
          "%-40s energy distance %.4f +- %.4f, %+.4f +- %.4f against the first, variety %.3f "
          "(%zu clips of %zu prompts)\n",
          e.first.c_str(), e.mean.distance, e.error, e.change, e.change_error, e.mean.variety,
          e.clips, e.prompts);
    }
  });

  CLI::App* seen = app.add_subcommand("seen", "how many clips show what was asked for");
  seen->add_option("clips", o.before, "videos by `ballast sample`")->required();
  seen->callback([&] {
    const demo::Adherence a = demo::adherence_of(o.before);
    const auto share = [&](std::size_t n) {
      return 100. * static_cast<double>(n) / static_cast<double>(a.clips);
    };
    std::printf(
        "%zu clips: colour %.1f %%, form %.1f %%, motion %.1f %%, all three %.1f %%; overlap "
        "with the form %.3f\n",
        a.clips, share(a.colour), share(a.form), share(a.motion), share(a.all), a.overlap);
  });
  app.require_subcommand(1);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("clips, first weights and pictures of the demo's model");
  try {
    add_commands(app);
    CLI11_PARSE(app, argc, argv);
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "demo_model: %s\n", e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "demo_model: %s\n", e.what());
    return 1;
  }
}
