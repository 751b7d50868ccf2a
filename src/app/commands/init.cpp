#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <filesystem>

#include "app/command.h"
#include "app/commands/init_files.h"
#include "app/machine_flags.h"
#include "app/output.h"
#include "app/planning.h"
#include "app/planning_heap.h"
#include "core/error.h"
#include "core/log.h"
#include "core/path_kind.h"
#include "core/progress.h"
#include "data/media_clip.h"
#include "fit/refusal_text.h"
#include "infer/model_folder.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "io/hub_cache.h"
#include "models/wan/published.h"
#include "models/wan/recognise.h"
#include "train/config/read_config.h"
#include "train/run/model_choice.h"
#include "train/run/prepared_run.h"
#include "train/run/run_plan.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMediaLookedAt = 16;  // of the folder, to know their size
constexpr double kPatientSeconds = 60;      // a step that takes longer is not the first choice

struct MediaFacts {
  std::int64_t side = 0;    // of a square with the pixels of the largest; 0: nothing is known
  std::int64_t frames = 0;  // of the shortest video, at the model's rate
  bool videos = false;
};

bool is_image_name(const fs::path& file) {
  std::string end = file.extension().string();
  std::ranges::transform(end, end.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{".png", ".jpg", ".jpeg", ".webp", ".bmp"},
      [&](std::string_view known) { return end == known; });
}

// By the first files of the folder; one that cannot be read is left out here as `ballast cache`
// leaves it out.
MediaFacts look_at(const std::string& folder, double fps) {
  MediaFacts facts;
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (data::is_video_name(name) || is_image_name(name)) files.push_back(at->path());
  }
  std::ranges::sort(files);
  for (const fs::path& f : files) facts.videos |= data::is_video_name(f.filename().string());
  files.resize(std::min(files.size(), kMediaLookedAt));
  for (const fs::path& f : files) {
    if (!media_available()) break;
    try {
      const MediaInfo info = probe_media(f.string());
      const auto side =
          static_cast<std::int64_t>(std::sqrt(static_cast<double>(info.width * info.height)));
      facts.side = std::max(facts.side, side);
      if (info.still || info.frames < 2) continue;
      // A video that is shorter than a bucket would be trained on as an image.
      const double scale = info.fps > 0 ? fps / info.fps : 1;
      const auto frames = std::max<std::int64_t>(
          1, static_cast<std::int64_t>(scale * static_cast<double>(info.frames)));
      facts.frames = facts.frames == 0 ? frames : std::min(facts.frames, frames);
    } catch (const Error& e) {
      log::warn("{}", e.what());
    }
  }
  return facts;
}

// ballast init --model ... --data ...: a training file that plans as it is.
class Init : public Command {
 public:
  void declare(CLI::App& app) override {
    app.description(app.get_description() +
                    "\n\n"
                    "ballast init --model MODEL --data FOLDER [--output FOLDER]\n\n"
                    "Writes train.toml and dataset.toml in diffusion-pipe's form, with comments. "
                    "Sizes are\nchosen by planning, so that the run fits this machine. Existing "
                    "files are not touched.\n");
    app.add_option("--model", c_.model,
                   "a folder or file, an id of the hub such as Wan-AI/Wan2.2-TI2V-5B, or a preset")
        ->required();
    app.add_option("--data", c_.data, "the folder of images and videos with captions beside them")
        ->required();
    app.add_option("--output", c_.output, "where both files go")->capture_default_str();
    app.add_option("--vae", c_.vae, "the VAE, where the model's folder has none or several");
    app.add_option("--text-encoder", c_.text_encoder, "the same for the text encoder");
    app.add_option("--tokenizer", c_.tokenizer, "the same for the tokenizer");
    declare_machine(app, c_.machine, {"device", "gpu", "ram"});
  }
  Init() { c_.output = "."; }
  void run() override;

 private:
  struct Planned {
    std::string about;  // for the head of the file
    double seconds = 0;
    bool streams = false;
  };

  void find_model();
  void find_other_files();
  std::optional<Planned> plan(InitChoice c);
  std::optional<Planned> plan_weights(InitChoice& c);
  std::vector<InitChoice> candidates() const;

  InitChoice c_;
  wan::Config model_;
  std::string refusal_;  // of the last plan that did not fit
};

const RegisterCommand<Init> kInit("init", "write a training file for your model, data and machine");

std::string absolute_if_there(const std::string& path) {
  return !path.empty() && path_exists(path) ? fs::absolute(path).lexically_normal().string() : path;
}

// What kind of transformer it is, and which of its experts are trained.
void Init::find_model() {
  const std::string found = infer::model_path(c_.model);
  if (!path_exists(found)) {
    const auto published = wan::find_published(c_.model);
    if (!published) {
      std::vector<Advice> advice = download_advice(c_.model);
      advice.push_back({"--model wan2.2-ti2v-5b", "or another preset, before it is downloaded"});
      fail(ErrorCode::input, fmt::format("{}: there is no such model", printable(c_.model)),
           std::move(advice));
    }
    model_ = published->config;
    c_.both_experts = model_.experts > 1 && published->id.inside.empty();
    return;
  }
  c_.model = absolute_if_there(c_.model);
  const bool folder = is_folder(found);
  infer::ModelFiles files;
  if (folder) {
    files = infer::find_model_files(found);
  } else {
    files.transformer = found;
  }
  const WeightFiles file = WeightFiles::open(files.transformer, DiskMode::buffered);
  model_ = recognised_config(file, wan::TensorMap(file), files.transformer);
  c_.both_experts = folder && !files.high_noise.empty();
  if (c_.both_experts) return;
  // One expert is trained on its own timesteps.
  const std::string name = fs::path(files.transformer).filename().string();
  const double boundary = model_.conditioning() > 0 ? train::kBoundaryI2v : train::kBoundaryT2v;
  if (name.find("low_noise") != std::string::npos) c_.max_t = boundary;
  if (name.find("high_noise") != std::string::npos) c_.min_t = boundary;
}

// VAE, text encoder and tokenizer, where the training would not find them with the model itself.
void Init::find_other_files() {
  for (std::string* path : {&c_.vae, &c_.text_encoder, &c_.tokenizer}) {
    *path = absolute_if_there(*path);
  }
  const std::string found = infer::model_path(c_.model);
  if (!path_exists(found)) return;
  const infer::ModelFiles files =
      is_folder(found) ? infer::find_model_files(found) : infer::find_other_parts(found, found);
  if (c_.vae.empty()) infer::require_one(files.vae_choices, "VAE", "--vae FILE");
  if (c_.text_encoder.empty()) {
    infer::require_one(files.text_encoder_choices, "text encoder", "--text-encoder FILE");
  }
  if (is_folder(found)) return;
  const auto take = [](std::string& to, const std::string& part) {
    if (to.empty()) to = absolute_if_there(part);
  };
  take(c_.vae, files.vae);
  take(c_.text_encoder, files.text_encoder);
  take(c_.tokenizer, files.tokenizer);
}

// From the largest to the smallest; no larger than the media are.
std::vector<InitChoice> Init::candidates() const {
  struct Size {
    std::int64_t side, frames;
  };
  constexpr Size kSizes[] = {{640, 81}, {512, 81}, {512, 49}, {512, 33},
                             {384, 33}, {256, 33}, {256, 17}, {256, 5}};
  const MediaFacts media = look_at(c_.data, model_.spatial_stride == 16 ? 24 : 16);
  const std::int64_t step = 2 * model_.spatial_stride;
  const std::int64_t max_side =
      media.side > 0 ? std::max(step, (media.side + step / 2) / step * step) : kSizes[0].side;
  std::int64_t max_frames = kSizes[0].frames;
  if (media.frames > 0) max_frames = std::min(max_frames, (media.frames - 1) / 4 * 4 + 1);
  if (media.side > 0 && !media.videos) max_frames = 1;
  std::vector<InitChoice> all;
  for (const Size& s : kSizes) {
    InitChoice c = c_;
    c.resolution = std::min(s.side, max_side);
    c.frames = std::min(s.frames, max_frames);
    const bool seen = std::ranges::any_of(all, [&](const InitChoice& o) {
      return o.resolution == c.resolution && o.frames == c.frames;
    });
    if (!seen) all.push_back(c);
  }
  InitChoice least = all.back();
  least.frames = 1;
  least.rank = 16;
  all.push_back(least);
  return all;
}

void write_file(const std::string& path, const std::string& text) {
  write_text_file(path, text, Durability::process);
}

// A folder for files that are only planned, gone when it is.
class ScratchFolder {
 public:
  ScratchFolder() : path_((fs::temp_directory_path() / "ballast-init-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) fail_io(path_, "make a temporary folder", errno);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The plan of the files that would be written; nullopt: it does not fit.
std::optional<Init::Planned> Init::plan(InitChoice c) {
  const ScratchFolder folder;
  c.output = folder.path();
  const std::string config = c.output + "/" + kInitConfig;
  write_file(config, init_config_text(c, "planned"));
  write_file(c.output + "/" + kInitDataset, init_dataset_text(c));
  train::TrainConfig read = train::read_config(std::vector<std::string>{config});
  const train::RunTarget target = find_target("this", read.memory);
  const train::PreparedRun run = train::prepare_run(std::move(read), target, train::Purpose::plan);
  const auto outcome = fit::find_plan(run.request);
  const auto* planned = std::get_if<fit::PlannedRun>(&outcome);
  if (!planned) {
    refusal_ = fit::refusal_verdict(std::get<Refusal>(outcome), train::title_of(run));
    return std::nullopt;
  }
  Planned p;
  for (std::size_t k = 0; k < planned->steps.size(); ++k) {
    p.seconds = std::max(p.seconds, planned->seconds_of_step(k));
  }
  p.streams = fit::streamed_blocks(*planned->job, planned->policy) > 0;
  const Bytes device = planned->needed(Tier::device), host = planned->needed(Tier::host);
  const bool gpu = target.backend.device == Device::cuda;
  p.about = fmt::format("{}, {}\nplanned: {}, about {:.1f} s for each step", run.title,
                        machine_text(target.profile),
                        gpu ? fmt::format("{} of GPU memory, {} of RAM", device, host)
                            : fmt::format("{} of RAM", device + host),
                        p.seconds);
  return p;
}

// In bfloat16, or in 8 bits where that is what fits or is much faster.
std::optional<Init::Planned> Init::plan_weights(InitChoice& c) {
  c.fp8 = false;
  const std::optional<Planned> exact = plan(c);
  if (exact && !exact->streams) return exact;
  c.fp8 = true;
  std::optional<Planned> small = plan(c);
  if (small && (!exact || small->seconds < 0.8 * exact->seconds)) return small;
  c.fp8 = false;
  return exact;
}

void Init::run() {
  c_.output = fs::absolute(c_.output).lexically_normal().string();
  while (c_.output.size() > 1 && c_.output.ends_with('/')) c_.output.pop_back();
  const std::string config = c_.output + "/" + kInitConfig,
                    dataset = c_.output + "/" + kInitDataset;
  for (const std::string& path : {config, dataset}) {
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error))) continue;
    fail(ErrorCode::input, fmt::format("{} is there already", printable(path, 400)),
         {{"--output FOLDER", "writes to another folder"},
          {"remove it", "files that exist are not written over"}});
  }
  find_model();
  find_other_files();
  if (!is_folder(c_.data)) {
    log::warn("{} is not there yet: planned for the largest clips of the file",
              printable(c_.data, 400));
  }
  c_.data = fs::absolute(c_.data).lexically_normal().string();
  std::optional<std::pair<InitChoice, Planned>> chosen;
  {
    const PlanningHeap heap;
    Progress progress("planning", 0);
    for (InitChoice& c : candidates()) {
      const std::optional<Planned> planned = plan_weights(c);
      progress.add();
      if (!planned) continue;
      const bool sooner = !chosen || planned->seconds < chosen->second.seconds;
      if (sooner) chosen.emplace(c, *planned);
      if (planned->seconds <= kPatientSeconds) break;
    }
  }
  if (!chosen) {
    fail(ErrorCode::refused,
         fmt::format("no training of {} fits this machine: {}", model_.name, refusal_),
         {{"--model wan2.1-t2v-1.3b", "the smallest released model"},
          {"ballast doctor", "says what this machine has"}});
  }
  const auto& [c, planned] = *chosen;
  create_folders(c.output);
  const std::string about = fmt::format(
      "Written by ballast init. {}\n\n"
      "ballast plan {}     what the run will use\n"
      "ballast cache {}    encodes images, videos and captions\n"
      "ballast train {}    trains",
      planned.about, kInitConfig, kInitConfig, kInitConfig);
  write_file(dataset, init_dataset_text(c));
  write_file(config, init_config_text(c, about));
  print(
      fmt::format("wrote {}\nwrote {}\n{}\nnext: ballast plan, ballast cache and ballast train "
                  "with {}\n",
                  config, dataset, planned.about, config));
}

}  // namespace
}  // namespace ballast
