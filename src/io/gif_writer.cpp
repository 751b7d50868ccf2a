#include "io/gif_writer.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "io/atomic_file.h"

namespace ballast {
namespace {

constexpr std::size_t kCells = 1 << 15;  // colours of 5 bits a channel

std::size_t cell_of(const std::uint8_t* p) {
  return to_size((p[0] >> 3) << 10 | (p[1] >> 3) << 5 | p[2] >> 3);
}

struct Cell {
  std::uint64_t count = 0;
  std::array<std::uint64_t, 3> sum{};
  std::uint16_t id = 0;
  int channel(int c) const { return id >> (10 - 5 * c) & 31; }
};

// A range of the used cells, and how far they reach along their longest channel.
struct ColorBox {
  std::size_t first = 0, end = 0;
  std::uint64_t count = 0;
  int axis = 0, extent = 0;
};

ColorBox measured(const std::vector<Cell>& cells, std::size_t first, std::size_t end) {
  ColorBox box{first, end};
  std::array<int, 3> low{31, 31, 31}, high{};
  for (std::size_t i = first; i < end; ++i) {
    box.count += cells[i].count;
    for (int c = 0; c < 3; ++c) {
      const auto at = to_size(c);
      low[at] = std::min(low[at], cells[i].channel(c));
      high[at] = std::max(high[at], cells[i].channel(c));
    }
  }
  for (int c = 0; c < 3; ++c) {
    const int extent = high[to_size(c)] - low[to_size(c)];
    if (extent > box.extent) {
      box.axis = c;
      box.extent = extent;
    }
  }
  return box;
}

// Cuts where half of the pixels are on either side; both sides have a cell at least.
std::pair<ColorBox, ColorBox> cut(std::vector<Cell>& cells, const ColorBox& box) {
  const auto at = [&](std::size_t i) { return cells.begin() + static_cast<std::ptrdiff_t>(i); };
  std::sort(at(box.first), at(box.end), [&](const Cell& a, const Cell& b) {
    return std::pair(a.channel(box.axis), a.id) < std::pair(b.channel(box.axis), b.id);
  });
  std::size_t middle = box.first + 1;
  std::uint64_t below = cells[box.first].count;
  while (middle + 1 < box.end && below + cells[middle].count <= box.count / 2) {
    below += cells[middle++].count;
  }
  return {measured(cells, box.first, middle), measured(cells, middle, box.end)};
}

class GifWriter : public MediaWriter {
 public:
  GifWriter(const std::string& path, const MediaOptions& o) : options_(o), file_(path) {
    MediaBytes head;
    head += "GIF89a";
    append_u16_le(head, static_cast<std::uint64_t>(o.width));
    append_u16_le(head, static_cast<std::uint64_t>(o.height));
    head += std::string_view("\x70\0\0", 3);  // no palette of the whole
    head += std::string_view("\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0", 19);
    file_.write(head);
    if (!o.comment.empty()) file_.write(gif_comment(o.comment));
  }

  void add(std::span<const std::uint8_t> frame) override {
    check(frame.size() == to_size(options_.width * options_.height * 3),
          "a frame of {} bytes for a GIF of {} x {}", frame.size(), options_.width,
          options_.height);
    const Paletted paletted = reduce_colors(frame);
    MediaBytes out;
    out += std::string_view("\x21\xf9\x04\x04", 4);  // stays until the next covers it
    append_u16_le(out, static_cast<std::uint64_t>(hundredths(frames_ + 1) - hundredths(frames_)));
    out += std::string_view("\0\0\x2c\0\0\0\0", 7);
    append_u16_le(out, static_cast<std::uint64_t>(options_.width));
    append_u16_le(out, static_cast<std::uint64_t>(options_.height));
    out += '\x87';  // with 256 colours of its own
    out.append(paletted.colors.begin(), paletted.colors.end());
    file_.write(out);
    file_.write(gif_lzw(paletted.indices));
    ++frames_;
  }

  void finish() override {
    check(frames_ > 0, "{}: a GIF without frames", file_.path());
    file_.write(";");
    file_.commit();
  }

 private:
  // Frame i begins here: delays are whole, their average is exact.
  std::int64_t hundredths(std::int64_t i) const {
    return i * 100 * options_.rate.seconds / options_.rate.frames;
  }

  MediaOptions options_;
  AtomicFile file_;
  std::int64_t frames_ = 0;
};

// Codes of growing length, low bits first, in blocks of at most 255 bytes.
class CodeWriter {
 public:
  void put(std::uint32_t code, int bits) {
    held_ |= code << count_;
    count_ += bits;
    for (; count_ >= 8; count_ -= 8, held_ >>= 8) bytes_ += static_cast<char>(held_ & 0xff);
  }
  void finish(MediaBytes& out) {
    if (count_ > 0) bytes_ += static_cast<char>(held_ & 0xff);
    for (std::size_t at = 0; at < bytes_.size(); at += 255) {
      const std::size_t n = std::min<std::size_t>(255, bytes_.size() - at);
      out += static_cast<char>(n);
      out.append(bytes_, at, n);
    }
    out += '\0';
  }

 private:
  MediaBytes bytes_;
  std::uint32_t held_ = 0;
  int count_ = 0;
};

}  // namespace

Paletted reduce_colors(std::span<const std::uint8_t> pixels) {
  std::vector<Cell> all(kCells);
  for (std::size_t i = 0; i + 2 < pixels.size(); i += 3) {
    Cell& cell = all[cell_of(&pixels[i])];
    ++cell.count;
    for (std::size_t c = 0; c < 3; ++c) cell.sum[c] += pixels[i + c];
  }
  std::vector<Cell> used;
  for (std::size_t i = 0; i < kCells; ++i) {
    if (all[i].count == 0) continue;
    used.push_back(all[i]);
    used.back().id = static_cast<std::uint16_t>(i);
  }
  std::vector<ColorBox> boxes;
  if (!used.empty()) boxes.push_back(measured(used, 0, used.size()));
  while (boxes.size() < 256) {
    // The one that matters most: many pixels, far apart.
    const auto widest = std::max_element(boxes.begin(), boxes.end(), [](auto& a, auto& b) {
      return a.count * static_cast<std::uint64_t>(a.extent) <
             b.count * static_cast<std::uint64_t>(b.extent);
    });
    if (widest == boxes.end() || widest->extent == 0) break;
    const auto [low, high] = cut(used, *widest);
    *widest = low;
    boxes.push_back(high);
  }
  Paletted out;
  std::vector<std::uint8_t> index(kCells);
  for (std::size_t b = 0; b < boxes.size(); ++b) {
    std::array<std::uint64_t, 3> sum{};
    for (std::size_t i = boxes[b].first; i < boxes[b].end; ++i) {
      index[used[i].id] = static_cast<std::uint8_t>(b);
      for (std::size_t c = 0; c < 3; ++c) sum[c] += used[i].sum[c];
    }
    for (std::size_t c = 0; c < 3; ++c) {
      out.colors[b * 3 + c] =
          static_cast<std::uint8_t>((sum[c] + boxes[b].count / 2) / boxes[b].count);
    }
  }
  out.indices.reserve(pixels.size() / 3);
  for (std::size_t i = 0; i + 2 < pixels.size(); i += 3) {
    out.indices.push_back(index[cell_of(&pixels[i])]);
  }
  return out;
}

MediaBytes gif_lzw(std::span<const std::uint8_t> indices) {
  constexpr std::uint32_t kClear = 256, kEnd = 257, kFirst = 258, kMax = 4096;
  MediaBytes out = "\x08";
  CodeWriter codes;
  // Code of (prefix code, next index); 0 is none: no entry has that code.
  std::vector<std::uint16_t> table(std::size_t{kMax} * 256);
  std::uint32_t next = kFirst;
  int bits = 9;
  codes.put(kClear, bits);
  std::uint32_t prefix = indices.empty() ? kEnd : indices[0];
  for (std::size_t i = 1; i < indices.size(); ++i) {
    std::uint16_t& entry = table[std::size_t{prefix} * 256 + indices[i]];
    if (entry != 0) {
      prefix = entry;
      continue;
    }
    codes.put(prefix, bits);
    prefix = indices[i];
    if (next == kMax) {
      codes.put(kClear, bits);
      std::fill(table.begin(), table.end(), std::uint16_t{0});
      next = kFirst;
      bits = 9;
      continue;
    }
    entry = static_cast<std::uint16_t>(next);
    if (next++ == 1u << bits) ++bits;
  }
  if (!indices.empty()) codes.put(prefix, bits);
  // The reader made an entry of that code too, and may have gone to longer ones.
  if (next == 1u << bits && bits < 12) ++bits;
  codes.put(kEnd, bits);
  codes.finish(out);
  return out;
}

std::unique_ptr<MediaWriter> open_gif(const std::string& path, const MediaOptions& options) {
  return std::make_unique<GifWriter>(path, options);
}

}  // namespace ballast
