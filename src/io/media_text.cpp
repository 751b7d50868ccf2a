#include "io/media_text.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "core/crc32.h"
#include "core/error.h"
#include "core/to_size.h"
#include "io/limits.h"
#include "io/utf8.h"

namespace ballast {
namespace {

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kPngKeyword = "parameters";
constexpr std::uint64_t kPngHeader = 8 + 12 + 13;  // signature and IHDR
constexpr std::uint64_t kMaxChunks = 1 << 22;
constexpr std::string_view kXmpStart =
    R"(<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF )"
    R"(xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="" )"
    R"(xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:description><rdf:Alt>)"
    R"(<rdf:li xml:lang="x-default">)";
constexpr std::string_view kXmpEnd =
    "</rdf:li></rdf:Alt></dc:description></rdf:Description></rdf:RDF></x:xmpmeta>";
constexpr std::array<std::pair<char, std::string_view>, 3> kXmlEscapes = {
    {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}}};

void append_u32_be(MediaBytes& out, std::uint64_t v) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>(v >> shift & 0xff);
  }
}

// The bytes of a file with bounds: what is not there is nothing.
class Window {
 public:
  explicit Window(const SourceFile& file) : file_(file) {}
  std::uint64_t size() const { return file_.size(); }

  std::optional<std::string> text(std::uint64_t at, std::uint64_t bytes) const {
    if (at > size() || bytes > size() - at || bytes > limits::kMediaTextBytes) return std::nullopt;
    std::string out(bytes, '\0');
    file_.read(at, std::as_writable_bytes(std::span(out)));
    return out;
  }
  std::optional<std::uint64_t> number(std::uint64_t at, int bytes, bool big) const {
    const auto raw = text(at, static_cast<std::uint64_t>(bytes));
    if (!raw) return std::nullopt;
    std::uint64_t v = 0;
    for (int i = 0; i < bytes; ++i) {
      const auto at_byte = to_size(big ? i : bytes - 1 - i);
      v = v << 8 | static_cast<std::uint8_t>((*raw)[at_byte]);
    }
    return v;
  }

 private:
  const SourceFile& file_;
};

// "parameters\0text", or of iTXt "parameters\0\0\0language\0keyword\0text" where nothing is
// compressed.
std::string png_text(const std::string& type, std::string_view data) {
  const std::size_t key = data.find('\0');
  if (key == std::string_view::npos || data.substr(0, key) != kPngKeyword) return {};
  data.remove_prefix(key + 1);
  if (type == "tEXt") return std::string(data);
  if (!data.starts_with(std::string_view("\0\0", 2))) return {};
  data.remove_prefix(2);
  for (int i = 0; i < 2; ++i) {
    const std::size_t end = data.find('\0');
    if (end == std::string_view::npos) return {};
    data.remove_prefix(end + 1);
  }
  return std::string(data);
}

std::string read_png(const Window& in) {
  std::uint64_t at = kPngSignature.size();
  for (std::uint64_t i = 0; i < kMaxChunks; ++i) {
    const auto bytes = in.number(at, 4, true);
    const auto type = in.text(at + 4, 4);
    if (!bytes || !type || *type == "IEND") return {};
    if (*type == "tEXt" || *type == "iTXt") {
      const auto data = in.text(at + 8, *bytes);
      if (!data) return {};
      if (std::string found = png_text(*type, *data); !found.empty()) return found;
    }
    at += 12 + *bytes;
  }
  return {};
}

// Sub-blocks from `at` on, each with its length before it; returns where they end. No text is kept
// where `text` is nullptr.
std::optional<std::uint64_t> gif_blocks(const Window& in, std::uint64_t at, std::string* text) {
  for (;;) {
    const auto bytes = in.number(at, 1, false);
    if (!bytes) return std::nullopt;
    ++at;
    if (*bytes == 0) return at;
    if (text != nullptr) {
      const auto part = in.text(at, *bytes);
      if (!part || text->size() > limits::kMediaTextBytes) return std::nullopt;
      *text += *part;
    }
    at += *bytes;
  }
}

// A palette's bytes, by the flags in front of it.
std::uint64_t gif_palette_bytes(std::uint64_t flags) {
  return (flags & 0x80) != 0 ? 3ull << ((flags & 7) + 1) : 0;
}

// A comment stands before the first image where a writer means it to be found.
std::string read_gif(const Window& in) {
  const auto flags = in.number(10, 1, false);
  if (!flags) return {};
  std::uint64_t at = 13 + gif_palette_bytes(*flags);
  for (;;) {
    const auto kind = in.number(at, 2, true);
    if (!kind || *kind >> 8 != 0x21) return {};
    std::string text;
    const bool comment = *kind == 0x21fe;
    const auto end = gif_blocks(in, at + 2, comment ? &text : nullptr);
    if (!end) return {};
    if (comment) return text;
    at = *end;
  }
}

// Calls `visit` with type, offset and length of every chunk; false where one reaches past the end.
bool visit_riff(
    const Window& in,
    const std::function<void(const std::string&, std::uint64_t, std::uint64_t)>& visit) {
  const auto whole = in.number(4, 4, false);
  if (!whole || *whole + 8 > in.size()) return false;
  std::uint64_t at = 12;
  for (std::uint64_t i = 0; i < kMaxChunks && at < *whole + 8; ++i) {
    const auto type = in.text(at, 4);
    const auto bytes = in.number(at + 4, 4, false);
    if (!type || !bytes || *bytes > in.size() - at - 8) return false;
    visit(*type, at + 8, *bytes);
    at += 8 + *bytes + (*bytes & 1);
  }
  return true;
}

std::string read_webp(const Window& in) {
  std::string text;
  visit_riff(in, [&](const std::string& type, std::uint64_t at, std::uint64_t bytes) {
    const auto xmp = type == "XMP " ? in.text(at, bytes) : std::nullopt;
    if (!xmp) return;
    const std::size_t start = xmp->find(kXmpStart), end = xmp->rfind(kXmpEnd);
    if (start == std::string::npos || end == std::string::npos) return;
    const std::size_t from = start + kXmpStart.size();
    if (end < from) return;
    text = xmp->substr(from, end - from);
    // Backwards: &amp; last, so that what it makes is not taken for an escape.
    for (auto e = kXmlEscapes.rbegin(); e != kXmlEscapes.rend(); ++e) {
      for (std::size_t i = 0; (i = text.find(e->second, i)) != std::string::npos; ++i) {
        text.replace(i, e->second.size(), 1, e->first);
      }
    }
  });
  return text;
}

}  // namespace

void append_u16_le(MediaBytes& out, std::uint64_t v) {
  for (int i = 0; i < 2; ++i) out += static_cast<char>(v >> 8 * i & 0xff);
}

void append_u24_le(MediaBytes& out, std::uint64_t v) {
  for (int i = 0; i < 3; ++i) out += static_cast<char>(v >> 8 * i & 0xff);
}

void append_u32_le(MediaBytes& out, std::uint64_t v) {
  for (int i = 0; i < 4; ++i) out += static_cast<char>(v >> 8 * i & 0xff);
}

MediaBytes png_text_chunk(std::string_view text) {
  const bool ascii = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  MediaBytes body;
  body += ascii ? "tEXt" : "iTXt";
  body += kPngKeyword;
  // iTXt: the keyword's end, not compressed, method 0, no language, no translated keyword.
  body += ascii ? std::string_view("\0", 1) : std::string_view("\0\0\0\0\0", 5);
  body += text;
  MediaBytes chunk;
  append_u32_be(chunk, body.size() - 4);
  chunk += body;
  append_u32_be(chunk, crc32(body));
  return chunk;
}

MediaBytes gif_comment(std::string_view text) {
  MediaBytes out;
  out += "\x21\xfe";
  for (; !text.empty(); text.remove_prefix(std::min<std::size_t>(text.size(), 255))) {
    const std::string_view part = text.substr(0, 255);
    out += static_cast<char>(part.size());
    out += part;
  }
  out += '\0';
  return out;
}

MediaBytes webp_text_chunk(std::string_view text) {
  std::string xmp(kXmpStart);
  for (const char c : text) {
    const auto escape = std::find_if(kXmlEscapes.begin(), kXmlEscapes.end(),
                                     [&](const auto& e) { return e.first == c; });
    if (escape == kXmlEscapes.end()) {
      xmp += c;
    } else {
      xmp += escape->second;
    }
  }
  xmp += kXmpEnd;
  MediaBytes chunk;
  chunk += "XMP ";
  append_u32_le(chunk, xmp.size());
  chunk += xmp;
  if (xmp.size() % 2 == 1) chunk += '\0';
  return chunk;
}

void add_png_text(MediaBytes& png, std::string_view text) {
  check(png.size() >= kPngHeader, "a PNG of {} bytes", png.size());
  png.insert(kPngHeader, png_text_chunk(text));
}

std::string read_media_text(const SourceFile& file) {
  const Window in(file);
  const std::string start = in.text(0, std::min<std::uint64_t>(in.size(), 12)).value_or("");
  std::string text;
  if (start.starts_with(kPngSignature)) text = read_png(in);
  if (start.starts_with("GIF8")) text = read_gif(in);
  if (start.starts_with("RIFF") && start.ends_with("WEBP")) text = read_webp(in);
  if (first_invalid_utf8(text)) text.clear();  // of another program, in another encoding
  return text;
}

bool gif_is_whole(const SourceFile& file) {
  const Window in(file);
  if (in.text(0, 4) != "GIF8") return true;
  const auto flags = in.number(10, 1, false);
  if (!flags) return false;
  std::uint64_t at = 13 + gif_palette_bytes(*flags);
  for (;;) {
    const auto kind = in.number(at, 1, false);
    if (!kind) return false;
    if (*kind == 0x3b) return true;
    if (*kind == 0x2c) {
      const auto local = in.number(at + 9, 1, false);
      if (!local) return false;
      at += 11 + gif_palette_bytes(*local);  // the code size too
    } else if (*kind == 0x21) {
      at += 2;
    } else {
      return false;
    }
    const auto end = gif_blocks(in, at, nullptr);
    if (!end) return false;
    at = *end;
  }
}

WebpAnimation read_webp_animation(const SourceFile& file) {
  const Window in(file);
  const std::string start = in.text(0, std::min<std::uint64_t>(in.size(), 12)).value_or("");
  if (!start.starts_with("RIFF") || !start.ends_with("WEBP")) return {};
  WebpAnimation found;
  const bool whole =
      visit_riff(in, [&](const std::string& type, std::uint64_t at, std::uint64_t bytes) {
        if (type == "VP8X" && bytes >= 10) {
          found.width = static_cast<std::int64_t>(*in.number(at + 4, 3, false)) + 1;
          found.height = static_cast<std::int64_t>(*in.number(at + 7, 3, false)) + 1;
        }
        if (type == "ANMF" && bytes >= 16) {
          found.durations_ms.push_back(static_cast<std::int64_t>(*in.number(at + 12, 3, false)));
        }
      });
  if (!found.durations_ms.empty() && !whole) {
    fail(ErrorCode::input, "{}: it is cut short: its chunks reach past its end",
         printable(file.path()));
  }
  return found;
}

}  // namespace ballast
