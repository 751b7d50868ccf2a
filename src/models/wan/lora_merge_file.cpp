// The merged model as a file.

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "models/wan/lora_merge.h"

namespace ballast::wan {
namespace {

constexpr std::int64_t kPieceElements = 2 << 20;  // of f32: 8 MiB
constexpr std::uint64_t kCopyBytes = 4 << 20;

bool is_fp8(DType t) { return t == DType::f8_e4m3 || t == DType::f8_e5m2; }

// Decides for every tensor of the files how it is written, and does so.
class MergedFile {
 public:
  MergedFile(const WeightFiles& model, const TensorMap& names, LoraMerge* merge,
             const MergeOptions& options)
      : model_(model), merge_(merge), options_(options), writer_({.metadata = metadata()}) {
    std::map<const SafetensorsEntry*, const WanTensor*> weights, scales, inputs;
    for (const WanTensor& t : names.tensors()) {
      weights.emplace(t.source.tensor.entry, &t);
      if (t.source.scale) scales.emplace(t.source.scale->entry, &t);
      if (t.source.input_scale) inputs.emplace(t.source.input_scale->entry, &t);
    }
    const auto in = [](const auto& map, const SafetensorsEntry* e) {
      const auto found = map.find(e);
      return found == map.end() ? nullptr : found->second;
    };
    for (const WeightTensor& raw : model.tensors()) {
      const SafetensorsEntry* e = raw.entry;
      const WanTensor* weight = in(weights, e);
      const WanTensor* scaled = in(scales, e);
      if (weight && (merge_changes(*weight) || converts(*weight))) {
        add_weight(*weight);
      } else if (options_.dtype && (scaled || in(inputs, e) || is_note(e->name, names))) {
        continue;  // weights are written without scales
      } else if (scaled && merge_changes(*scaled)) {
        add_scale(*scaled);
      } else {
        add_copy(raw);
      }
    }
  }

  const SafetensorsWriter& writer() const { return writer_; }
  std::uint64_t data_bytes() const { return data_bytes_; }

 private:
  bool merge_changes(const WanTensor& t) const { return merge_ && merge_->changes(t.name); }

  bool converts(const WanTensor& t) const {
    const auto dtype = memory_dtype(t.source.tensor.entry->dtype);
    return options_.dtype && dtype && info(*dtype).floating && *dtype != *options_.dtype;
  }

  bool is_note(std::string_view name, const TensorMap& names) const {
    return name.ends_with(".comfy_quant") || name == names.prefix() + "scaled_fp8";
  }

  Metadata metadata() const {
    Metadata all;
    for (const SafetensorsFile& f : model_.files()) {
      all.insert(f.metadata().begin(), f.metadata().end());
    }
    all.emplace("format", "pt");
    if (options_.dtype) all.erase("_quantization_metadata");
    return all;
  }

  void progress(std::uint64_t bytes) const {
    if (options_.progress) options_.progress(bytes);
  }

  void add_copy(const WeightTensor& raw) {
    const SafetensorsEntry& e = *raw.entry;
    const Extent extent = model_.extent(raw);
    data_bytes_ += e.bytes;
    writer_.add(std::string(e.name), e.dtype, e.shape, [this, extent](const ByteSink& sink) {
      std::vector<std::byte> bytes(std::min(kCopyBytes, extent.bytes));
      for (std::uint64_t at = 0; at < extent.bytes; at += bytes.size()) {
        const auto piece =
            std::span(bytes).first(std::min<std::size_t>(bytes.size(), to_size(extent.bytes - at)));
        extent.file->read(extent.offset + at, piece, PageCache::drop);
        sink(piece);
        progress(piece.size());
      }
    });
  }

  // visit(values) for the merged tensor, in pieces.
  template <class Visit>
  void each_piece(const WanTensor& t, Visit&& visit) const {
    const Shape& shape = t.source.tensor.entry->shape;
    const std::int64_t rows = LoraMerge::rows_of(shape), columns = LoraMerge::columns_of(shape);
    if (rows == 0 || columns == 0) return;
    const std::int64_t tiles =
        std::max<std::int64_t>(1, kPieceElements / columns / LoraMerge::kRows);
    const std::int64_t most = std::min(rows, tiles * LoraMerge::kRows);
    std::vector<float> values(to_size(most * columns));
    for (std::int64_t first = 0; first < rows; first += most) {
      const std::int64_t count = std::min(most, rows - first);
      const auto piece = std::span(values).first(to_size(count * columns));
      merge_->rows(t, first, count, piece);
      visit(piece);
    }
  }

  void add_weight(const WanTensor& t) {
    const SafetensorsEntry& e = *t.source.tensor.entry;
    const DType dtype = options_.dtype.value_or(model_.dtype(t.source.tensor));
    data_bytes_ += static_cast<std::uint64_t>(e.shape.elements()) * size_of(dtype);
    writer_.add(std::string(e.name), dtype, e.shape, [this, &t, &e, dtype](const ByteSink& sink) {
      std::vector<std::byte> bytes;
      each_piece(t, [&](std::span<float> values) {
        bytes.resize(values.size() * size_of(dtype));
        refuse_nan(t, values);
        if (is_fp8(dtype)) {
          if (t.source.scale) divide_by_scale(t, values);
          convert(values.data(), DType::f32, bytes.data(), dtype, std::ssize(values),
                  Rounding::saturating);
        } else if (dtype == DType::f64) {
          convert(values.data(), DType::f32, bytes.data(), dtype, std::ssize(values));
        } else {
          store_numbers(values, dtype, bytes.data(), e.name);
        }
        sink(bytes);
        progress(bytes.size());
      });
    });
  }

  void refuse_nan(const WanTensor& t, std::span<const float> values) const {
    const auto bad =
        std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    if (bad == values.end()) return;
    fail(ErrorCode::input,
         fmt::format("{}: merged with the LoRAs the tensor {} holds {}: nothing is written",
                     model_.path(), printable(t.source.tensor.entry->name), *bad),
         {{"ballast inspect of the model and of each LoRA",
           "one of them holds such a number; or a lower strength, where the sum grew too large"}});
  }

  // --- fp8: scale = max|w| / MAX, at least 1e-8, per tensor, row or group as the file has it.

  // As stored: rounded to the scale's own type.
  float scale_for(const WanTensor& t, float largest_weight) const {
    const DType weight = model_.dtype(t.source.tensor), scale = model_.dtype(*t.source.scale);
    const float exact = std::max(largest_weight / largest(weight), 1e-8f);
    return scale == DType::f32 ? exact : to_f32(from_f32(exact, scale), scale);
  }

  static float largest_of(std::span<const float> values) {
    float most = 0;
    for (const float v : values) most = std::max(most, std::abs(v));
    return most;
  }

  std::int64_t group_width(const WanTensor& t) const {
    const Shape& shape = t.source.tensor.entry->shape;
    const std::int64_t groups = t.source.scale->entry->shape.elements() / LoraMerge::rows_of(shape);
    return LoraMerge::columns_of(shape) / groups;
  }

  // The scales of these values, in order; one for the whole tensor takes a pass over all of it.
  template <class Visit>
  void each_scale(const WanTensor& t, std::span<const float> values, Visit&& visit) const {
    const auto width = to_size(group_width(t));
    for (std::size_t at = 0; at < values.size(); at += width) {
      visit(at, width, scale_for(t, largest_of(values.subspan(at, width))));
    }
  }

  float tensor_scale(const WanTensor& t) const {
    const auto known = tensor_scales_.find(&t);
    if (known != tensor_scales_.end()) return known->second;
    float most = 0;
    each_piece(t, [&](std::span<float> values) {
      refuse_nan(t, values);
      most = std::max(most, largest_of(values));
    });
    return tensor_scales_[&t] = scale_for(t, most);
  }

  void divide_by_scale(const WanTensor& t, std::span<float> values) const {
    if (t.source.layout == ScaleLayout::tensor) {
      const float scale = tensor_scale(t);
      for (float& v : values) v /= scale;
      return;
    }
    each_scale(t, values, [&](std::size_t at, std::size_t width, float scale) {
      for (float& v : values.subspan(at, width)) v /= scale;
    });
  }

  void add_scale(const WanTensor& t) {
    const SafetensorsEntry& e = *t.source.scale->entry;
    const DType dtype = model_.dtype(*t.source.scale);
    data_bytes_ += e.bytes;
    writer_.add(std::string(e.name), dtype, e.shape, [this, &t, dtype](const ByteSink& sink) {
      const auto put = [&](std::span<const float> scales) {
        std::vector<std::byte> bytes(scales.size() * size_of(dtype));
        convert(scales.data(), DType::f32, bytes.data(), dtype, std::ssize(scales));
        sink(bytes);
        progress(bytes.size());
      };
      if (t.source.layout == ScaleLayout::tensor) {
        const float scale = tensor_scale(t);
        return put(std::span(&scale, 1));
      }
      std::vector<float> scales;
      each_piece(t, [&](std::span<float> values) {
        scales.clear();
        each_scale(t, values, [&](std::size_t, std::size_t, float s) { scales.push_back(s); });
        put(scales);
      });
    });
  }

  const WeightFiles& model_;
  LoraMerge* merge_;  // nullptr: only sizes are wanted
  const MergeOptions& options_;
  SafetensorsWriter writer_;
  std::uint64_t data_bytes_ = 0;
  mutable std::map<const WanTensor*, float> tensor_scales_;
};

void refuse_full_disk(const std::string& path, std::uint64_t bytes) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) fail_io(folder, "look at the folder", errno);
  const std::uint64_t room = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (room >= bytes) return;
  fail(ErrorCode::io, "{} takes {} bytes, the disk has room for {}", path, bytes, room);
}

}  // namespace

std::uint64_t merged_bytes(const WeightFiles& model, const TensorMap& names,
                           const MergeOptions& options) {
  return MergedFile(model, names, nullptr, options).writer().file_bytes();
}

void write_merged(const std::string& path, const WeightFiles& model, const TensorMap& names,
                  LoraMerge& merge, const MergeOptions& options) {
  const MergedFile file(model, names, &merge, options);
  const std::uint64_t bytes = file.writer().file_bytes();
  refuse_full_disk(path, bytes);
  if (options.progress) options.progress(bytes - file.data_bytes());  // the header
  file.writer().write(path);
}

}  // namespace ballast::wan
