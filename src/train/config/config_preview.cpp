#include "train/config/config_preview.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "io/limits.h"
#include "memory/text_file.h"
#include "train/config/config_dialects.h"
#include "train/config/toml_checks.h"

namespace ballast::train {
namespace {

constexpr std::size_t kMaxClips = 100;
constexpr std::int64_t kMaxPixels = 1 << 15;

std::string_view trimmed_text(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// One option of a line: "w 832".
struct ClipOption {
  std::string_view name, value;
  const std::string& where;

  [[noreturn]] void refuse(std::string_view expected) const {
    fail(ErrorCode::input, "{}: --{}: expected {}, found \"{}\"", where, printable(name, 40),
         expected, printable(value, 40));
  }
  template <class Number>
  Number number(Number least, Number most, std::string_view expected) const {
    Number n{};
    const auto end = std::from_chars(value.data(), value.data() + value.size(), n);
    const bool whole = end.ec == std::errc() && end.ptr == value.data() + value.size();
    if (!whole || !(n >= least && n <= most)) refuse(expected);
    return n;
  }
  std::int64_t pixels() const { return number<std::int64_t>(1, kMaxPixels, "pixels"); }
};

void take_option(const ClipOption& o, PreviewClip& clip) {
  if (o.name == "w") {
    clip.width = o.pixels();
    clip.own_size = true;
  } else if (o.name == "h") {
    clip.height = o.pixels();
    clip.own_size = true;
  } else if (o.name == "f") {
    clip.own_frames = true;
    clip.frames = o.number<std::int64_t>(1, kMaxPixels, "frames of the clip, 4n + 1");
  } else if (o.name == "d") {
    clip.seed = o.number<std::uint64_t>(0, ~0ull, "a seed");
  } else if (o.name == "s") {
    clip.steps = o.number<std::int64_t>(1, 1000, "1 to 1000 steps");
  } else if (o.name == "fs") {
    clip.shift = o.number<double>(0.001, 1000, "a shift above 0");
  } else if (o.name == "l" || o.name == "g") {
    clip.guidance = o.number<double>(0, 1000, "a scale of guidance");
  } else if (o.name == "n") {
    clip.negative = o.value;
  } else if (o.name == "i") {
    if (o.value.empty()) o.refuse("the path of an image");
    clip.image = o.value;
    clip.image_named = fmt::format("{}: --i", o.where);
  } else if (o.name == "ei" || o.name == "cn" || o.name == "ci") {
    o.refuse("a clip of its prompt and first image: previews take no other ones");
  } else {
    o.refuse("one of --w --h --f --d --s --fs --l --g --n --i");
  }
}

}  // namespace

PreviewClip preview_clip(std::string_view line, const PreviewClip& usual,
                         const std::string& where) {
  PreviewClip clip = usual;
  constexpr std::string_view kMark = " --";
  std::size_t at = std::min(line.find(kMark), line.size());
  clip.prompt = trimmed_text(line.substr(0, at));
  while (at < line.size()) {
    const std::size_t from = at + kMark.size();
    at = std::min(line.find(kMark, from), line.size());
    const std::string_view option = trimmed_text(line.substr(from, at - from));
    const std::size_t space = std::min(option.find(' '), option.size());
    take_option({option.substr(0, space), trimmed_text(option.substr(space)), where}, clip);
  }
  if (clip.prompt.empty()) fail(ErrorCode::input, "{}: there is no prompt", where);
  return clip;
}

std::vector<PreviewClip> preview_clips(const std::string& path, const PreviewClip& usual) {
  LineReader reader = LineReader::open(path, {.line_bytes = limits::kPromptBytes});
  std::vector<PreviewClip> clips;
  for (FileLine line; reader.next(line);) {
    const std::string_view text = trimmed_text(line.text);
    if (text.empty() || text.front() == '#') continue;
    clips.push_back(preview_clip(text, usual, fmt::format("{} line {}", path, line.number)));
    if (clips.size() > kMaxClips) {
      fail(ErrorCode::input, "{}: more than {} prompts", path, kMaxClips);
    }
  }
  if (clips.empty()) fail(ErrorCode::input, "{} holds no prompt", path);
  return clips;
}

void find_images(std::vector<PreviewClip>& clips, std::string_view key,
                 const PathFinder& find_path) {
  for (PreviewClip& c : clips) {
    if (!c.image.empty()) c.image = find_path.find(key, c.image);
  }
}

// [preview] of ours.
void read_preview(const TomlTable& t, const PathFinder& find_path, TrainConfig& c) {
  PreviewConfig& p = c.preview;
  p.every.steps = integer_from(t, "every_n_steps", 1);
  p.every.epochs = integer_from(t, "every_n_epochs", 1);
  p.at_first = t.boolean("at_first", false);
  PreviewClip usual;
  const auto most = [&](std::string_view key, std::int64_t largest) {
    const auto value = integer_from(t, key, 1);
    if (value && *value > largest) t.fail_at(key, fmt::format("expected at most {}", largest));
    return value;
  };
  usual.width = most("width", kMaxPixels);
  usual.height = most("height", kMaxPixels);
  usual.frames = most("frames", kMaxPixels);
  usual.steps = most("steps", 1000).value_or(usual.steps);
  usual.guidance = number_from(t, "guidance", 0, 1000);
  usual.shift = number_from(t, "shift", 0.001, 1000);
  usual.negative = t.string("negative_prompt", "");
  usual.image = t.string("image", "");
  if (!usual.image.empty()) {
    usual.image_named = fmt::format("{} line {}: preview.image", t.path(), t.line_of("image"));
  }
  if (const auto seed = integer_from(t, "seed", 0)) usual.seed = static_cast<std::uint64_t>(*seed);
  if (const TomlValue* prompts = t.find("prompts")) {
    if (prompts->kind == TomlValue::Kind::string) {
      p.clips = preview_clips(find_path.find("preview.prompts", prompts->string), usual);
    } else {
      const std::vector<std::string> lines = t.strings("prompts");
      if (lines.size() > kMaxClips) t.fail_at("prompts", fmt::format("more than {}", kMaxClips));
      for (const std::string& line : lines) {
        p.clips.push_back(preview_clip(
            line, usual,
            fmt::format("{} line {}: preview.prompts", t.path(), t.line_of("prompts"))));
      }
    }
  }
  find_images(p.clips, "preview.image", find_path);
  if (p.clips.empty()) {
    fail(ErrorCode::input, fmt::format("{}: [preview] names no prompts", t.path()),
         {{"prompts = ['a red circle moves right']", "a clip for each of them"},
          {"prompts = 'prompts.txt'", "or the lines of a file"}});
  }
  if (!p.wanted()) {
    c.notes.push_back(
        "[preview]: nothing is drawn without every_n_steps, every_n_epochs or at_first");
  }
  t.finish();
}

}  // namespace ballast::train
