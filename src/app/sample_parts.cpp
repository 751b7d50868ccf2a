#include "app/sample_parts.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "data/clean_text.h"
#include "io/frame_values.h"

namespace ballast {
namespace {

// 16, 24, 23.976: as a fraction with a denominator that every container can have.
FrameRate rate_of(double fps) {
  if (std::floor(fps) == fps) return {.frames = static_cast<int>(fps), .seconds = 1};
  return {.frames = static_cast<int>(std::lround(fps * 1001)), .seconds = 1001};
}

constexpr std::int64_t kSheetPictures = 8, kSheetColumns = 4;

}  // namespace

PromptPart::PromptPart(const std::string& encoder, const std::string& tokenizer,
                       std::vector<std::string> texts, const wan::Config& model,
                       infer::TextEncoderOptions options)
    : encoder_(encoder, std::move(options)) {
  if (encoder_.config().d_model != model.text_dim) {
    fail(ErrorCode::input, fmt::format("{} gives rows of {} numbers, {} reads rows of {}", encoder,
                                       encoder_.config().d_model, model.name, model.text_dim));
  }
  const data::Tokenizer tokens = data::Tokenizer::open(tokenizer);
  if (tokens.vocab_size() > encoder_.config().vocabulary) {
    fail(ErrorCode::input, fmt::format("{} has {} tokens, {} knows {}", tokenizer,
                                       tokens.vocab_size(), encoder, encoder_.config().vocabulary));
  }
  for (const std::string& text : texts) {
    const std::string clean = data::clean_text(text);
    const auto most = static_cast<std::size_t>(model.text_len);
    if (tokens.encode(clean).size() >= most) {
      log::warn("a prompt has more than {} tokens, the rest is not seen: {}", most - 1,
                printable(clean.substr(0, 60)));
    }
    ids_.push_back(tokens.encode(clean, most));
  }
}

infer::TextEncoderPlan PromptPart::plan() const {
  std::vector<std::int64_t> lengths;
  for (const auto& ids : ids_) lengths.push_back(std::ssize(ids));
  auto outcome = encoder_.plan(lengths);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    infer::fail_refused(fmt::format("encoding {} prompts", ids_.size()), *refusal);
  }
  return std::get<infer::TextEncoderPlan>(std::move(outcome));
}

std::vector<std::vector<float>> PromptPart::run() const {
  std::vector<std::vector<float>> rows;
  for (infer::TextStates& s : encoder_.encode(ids_)) rows.push_back(std::move(s.values));
  return rows;
}

infer::PictureView Picture::view() const {
  return {.size = {image.width, image.height}, .rgb = image.pixels};
}

infer::PixelSize clip_size(const Picture& picture, const wan::Config& model, std::int64_t area) {
  const infer::PixelSize size = picture.view().size;
  const std::int64_t multiple = 2 * model.spatial_stride;
  return model.conditioning() > 0 ? infer::i2v_size(size, area, multiple)
                                  : infer::ti2v_size(size, area, multiple);
}

std::vector<float> encode_picture(infer::VideoEncoder& encoder, const Picture& picture,
                                  const wan::Config& model, infer::PixelSize size,
                                  std::int64_t frames) {
  const bool whole = model.conditioning() > 0;
  const std::vector<float> planes =
      whole ? infer::i2v_frame(picture.view(), size) : infer::ti2v_frame(picture.view(), size);
  const auto pixels = static_cast<std::size_t>(size.width * size.height);
  Progress progress("encoding the image", whole ? frames : 1);
  return encoder.encode(whole ? frames : 1, size.height, size.width,
                        [&](std::int64_t first, std::int64_t count, std::span<float> to) {
                          std::fill(to.begin(), to.end(), 0.0f);  // grey
                          if (first == 0) {
                            for (std::size_t i = 0; i < pixels; ++i) {
                              for (std::size_t c = 0; c < 3; ++c)
                                to[3 * i + c] = planes[c * pixels + i];
                            }
                          }
                          progress.add(count);
                        });
}

void decode_clip(infer::VideoDecoder& decoder, std::span<const float> latent,
                 const wan::LatentSize& size, const ClipFile& file) {
  const std::int64_t frames = 4 * (size.frames - 1) + 1;
  const std::vector<std::int64_t> shown = evenly_spaced(frames, kSheetPictures);
  std::unique_ptr<MediaWriter> writer;
  std::optional<ContactSheet> sheet;
  std::vector<std::uint8_t> bytes;
  Progress progress("decoding", frames);
  decoder.decode(latent, size.frames, size.height, size.width,
                 [&](const infer::VideoDecoder::Frames& f) {
                   if (!writer) {
                     writer = open_media_writer(file.path, {.width = f.width,
                                                            .height = f.height,
                                                            .rate = rate_of(file.fps),
                                                            .crf = file.crf,
                                                            .comment = file.comment});
                     sheet.emplace(f.width, f.height, kSheetColumns);
                   }
                   const auto one = static_cast<std::size_t>(f.width * f.height * 3);
                   bytes.resize(one);
                   for (std::int64_t i = 0; i < f.count; ++i) {
                     to_bytes(f.pixels.subspan(static_cast<std::size_t>(i) * one, one),
                              FrameRounding::truncate, bytes);
                     writer->add(bytes);
                     if (std::ranges::binary_search(shown, f.first + i)) sheet->add(bytes);
                   }
                   progress.add(f.count);
                 });
  writer->finish();
  if (!file.sheet.empty()) write_png(file.sheet, sheet->image(), file.comment);
}

bool names_pictures(const std::string& path) { return !path.ends_with(".safetensors"); }

}  // namespace ballast
