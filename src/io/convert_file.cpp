#include "io/convert_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/convert.h"
#include "core/error.h"
#include "core/non_finite.h"
#include "core/path_kind.h"
#include "io/gguf_file.h"
#include "io/safetensors_writer.h"
#include "io/torch_file.h"
#include "io/weight_files.h"

namespace ballast {
namespace {

constexpr std::uint64_t kPieceElements = 1 << 20;  // a multiple of every block

// Numbers of 8 bits stay: what they mean may depend on a scale beside them.
bool converts(FileDType t) {
  const auto dtype = memory_dtype(t);
  return dtype && info(*dtype).floating && size_of(*dtype) > 1;
}

// Collects tensors from any kind of file and writes them.
class Conversion {
 public:
  explicit Conversion(const ConvertOptions& options)
      : options_(options), writer_({.metadata = {{"format", "pt"}}}) {}

  ConvertedFile write(const std::string& path) {
    if (options_.begin) options_.begin(done_.bytes);
    writer_.write(path);
    return std::move(done_);
  }

  // read(first, to): the bytes of elements from `first` on, as the file has them.
  template <class Read>
  void add(const std::string& name, FileDType dtype, const Shape& shape, Read read) {
    const auto from = memory_dtype(dtype);
    const bool changes = options_.dtype && converts(dtype) && *from != *options_.dtype;
    const FileDType to = changes ? file_dtype(*options_.dtype) : dtype;
    const std::uint64_t size = info(dtype).bits / 8;
    start(name, to, shape, [=, this, read = std::move(read)](const ByteSink& sink) {
      std::vector<std::byte> raw, out;
      each_piece(shape, [&](std::uint64_t first, std::uint64_t count) {
        raw.resize(count * size);
        read(first, std::span(raw));
        if (from) note_not_finite(raw, *from, name);
        if (!changes) return give(sink, raw);
        convert_piece(raw, *from, out, name);
        give(sink, out);
      });
    });
  }

  // read(first, floats): elements of a quantised tensor.
  template <class Read>
  void add_quantised(const std::string& name, const Shape& shape, Read read) {
    const DType dtype = options_.dtype.value_or(DType::bf16);
    start(name, file_dtype(dtype), shape, [=, this, read = std::move(read)](const ByteSink& sink) {
      std::vector<std::byte> out;
      each_piece(shape, [&](std::uint64_t first, std::uint64_t count) {
        values_.resize(count);
        read(first, std::span(values_));
        note_not_finite(std::as_bytes(std::span(values_)), DType::f32, name);
        if (dtype == DType::f16) check_range(values_, name);
        out.resize(count * size_of(dtype));
        convert(values_.data(), DType::f32, out.data(), dtype, static_cast<std::int64_t>(count));
        give(sink, out);
      });
    });
  }

  void note(std::span<const std::string> notes) {
    done_.notes.insert(done_.notes.end(), notes.begin(), notes.end());
  }
  void container(std::string_view name) { done_.container = name; }

 private:
  void start(const std::string& name, FileDType dtype, const Shape& shape, ByteSource source) {
    ++done_.tensors;
    done_.bytes += static_cast<std::uint64_t>(shape.elements()) * info(dtype).bits / 8;
    writer_.add(name, dtype, shape, std::move(source));
  }

  template <class Visit>
  static void each_piece(const Shape& shape, Visit&& visit) {
    const auto elements = static_cast<std::uint64_t>(shape.elements());
    for (std::uint64_t first = 0; first < elements; first += kPieceElements) {
      visit(first, std::min(kPieceElements, elements - first));
    }
  }

  void give(const ByteSink& sink, std::span<const std::byte> bytes) const {
    sink(bytes);
    if (options_.progress) options_.progress(bytes.size());
  }

  // With one rounding, also from f64.
  void convert_piece(std::span<const std::byte> raw, DType from, std::vector<std::byte>& out,
                     const std::string& name) {
    const std::size_t count = raw.size() / size_of(from);
    const DType dtype = *options_.dtype;
    if (dtype == DType::f16) {
      values_.resize(count);
      convert(raw.data(), from, values_.data(), DType::f32, static_cast<std::int64_t>(count));
      check_range(values_, name);
    }
    out.resize(count * size_of(dtype));
    convert(raw.data(), from, out.data(), dtype, static_cast<std::int64_t>(count));
  }

  // They are copied: whether the tensor is used is not known here.
  void note_not_finite(std::span<const std::byte> values, DType dtype, const std::string& name) {
    if (last_named_ == name || !first_non_finite(values, dtype)) return;
    last_named_ = name;
    done_.notes.push_back(fmt::format("tensor \"{}\" holds NaN or infinity", printable(name)));
  }

  static void check_range(std::span<const float> values, const std::string& name) {
    constexpr float kRoundsUp = 65520;  // to infinity, from here on
    const auto bad = std::find_if(values.begin(), values.end(), [](float v) {
      return std::isfinite(v) && std::abs(v) >= kRoundsUp;
    });
    if (bad == values.end()) return;
    fail(ErrorCode::input,
         fmt::format("tensor \"{}\" has {} in it, f16 ends at 65504", printable(name), *bad),
         {{"--dtype bf16", "has the range of f32"}});
  }

  const ConvertOptions& options_;
  SafetensorsWriter writer_;
  std::vector<float> values_;  // tensors are written one after another
  ConvertedFile done_;
  std::string last_named_;  // of the tensors that hold NaN
};

ConvertedFile convert_torch(const std::string& from, const std::string& to,
                            const ConvertOptions& options) {
  const TorchFile file = TorchFile::open(from, DiskMode::buffered);
  Conversion conversion(options);
  conversion.container("PyTorch");
  conversion.note(file.notes());
  for (const TorchTensor& t : file.tensors()) {
    conversion.add(t.name, t.dtype, t.shape, [&](std::uint64_t first, std::span<std::byte> out) {
      file.read(t, first, out);
    });
  }
  return conversion.write(to);
}

ConvertedFile convert_gguf(const std::string& from, const std::string& to,
                           const ConvertOptions& options) {
  const GgufFile file = GgufFile::open(from, DiskMode::buffered);
  const auto architecture = file.metadata().find("general.architecture");
  const bool t5 = architecture != file.metadata().end() && architecture->second.starts_with("t5");
  Conversion conversion(options);
  conversion.container("GGUF");
  conversion.note(file.notes());
  for (const GgufTensor& t : file.tensors()) {
    const std::string name = t5 ? hugging_face_t5_name(t.name) : t.name;
    if (!t.type->plain) {
      conversion.add_quantised(name, t.shape, [&](std::uint64_t first, std::span<float> out) {
        file.read(t, first, out);
      });
      continue;
    }
    const std::uint64_t size = t.type->bytes;
    conversion.add(name, *t.type->plain, t.shape,
                   [&, size](std::uint64_t first, std::span<std::byte> out) {
                     file.file().read(t.offset + first * size, out);
                   });
  }
  return conversion.write(to);
}

ConvertedFile convert_checkpoint(const std::string& from, const std::string& to,
                                 const ConvertOptions& options) {
  const WeightFiles model = WeightFiles::open(from, DiskMode::buffered);
  Conversion conversion(options);
  conversion.container(model.files()[0].header().container());
  conversion.note(model.warnings());
  for (const WeightTensor& t : model.tensors()) {
    const Extent extent = model.extent(t);
    const std::uint64_t size = info(t.entry->dtype).bits / 8;
    if (size == 0) {
      fail(ErrorCode::input, "{}: tensor \"{}\" of {} is not copied", from,
           printable(t.entry->name), t.entry->dtype);
    }
    conversion.add(std::string(t.entry->name), t.entry->dtype, t.entry->shape,
                   [extent, size](std::uint64_t first, std::span<std::byte> out) {
                     extent.file->read(extent.offset + first * size, out);
                   });
  }
  return conversion.write(to);
}

}  // namespace

std::string hugging_face_t5_name(std::string name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kParts = {{
      {"enc.", "encoder."},
      {".blk.", ".block."},
      {"token_embd", "shared"},
      {"output_norm", "final_layer_norm"},
      {"attn_q", "layer.0.SelfAttention.q"},
      {"attn_k", "layer.0.SelfAttention.k"},
      {"attn_v", "layer.0.SelfAttention.v"},
      {"attn_o", "layer.0.SelfAttention.o"},
      {"attn_norm", "layer.0.layer_norm"},
      {"attn_rel_b", "layer.0.SelfAttention.relative_attention_bias"},
      {"ffn_up", "layer.1.DenseReluDense.wi_1"},
      {"ffn_down", "layer.1.DenseReluDense.wo"},
      {"ffn_gate", "layer.1.DenseReluDense.wi_0"},
      {"ffn_norm", "layer.1.layer_norm"},
  }};
  for (const auto& [from, to] : kParts) {
    if (const std::size_t at = name.find(from); at != std::string::npos) {
      name.replace(at, from.size(), to);
    }
  }
  return name;
}

ConvertedFile convert_to_safetensors(const std::string& from, const std::string& to,
                                     const ConvertOptions& options) {
  check(!options.dtype || info(*options.dtype).floating, "converted to a floating dtype");
  if (is_file(from)) {
    const DiskFile file = DiskFile::open(from, DiskMode::buffered);
    std::array<std::byte, 16> first{};
    file.read(0, std::span(first).first(std::min<std::uint64_t>(first.size(), file.size())));
    if (GgufFile::is_one(first)) return convert_gguf(from, to, options);
    if (TorchFile::is_one(first)) return convert_torch(from, to, options);
  }
  return convert_checkpoint(from, to, options);
}

}  // namespace ballast
