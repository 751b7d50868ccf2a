#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "io/safetensors.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/hostile_safetensors.h"

namespace ballast {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

std::uint64_t status_kib(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::stoull(line.substr(field.size()));
  }
  return 0;
}

// How far the resident memory rises above where it stands while `f` runs; 0 when the kernel does
// not let the mark be reset.
template <class F>
std::uint64_t memory_rise(F&& f) {
  {
    std::ofstream reset("/proc/self/clear_refs");
    reset << "5";
    if (!reset.flush()) return 0;
  }
  const std::uint64_t before = status_kib("VmRSS:");
  f();
  return (status_kib("VmHWM:") - before) << 10;
}

std::string header_of(std::uint64_t bytes, std::string_view lead, std::string_view piece,
                      std::string_view tail) {
  std::string text(lead);
  const std::string thousand = test::repeat(piece, 1000);
  while (text.size() + thousand.size() + tail.size() <= bytes) text += thousand;
  text += tail;
  text.resize(bytes, ' ');
  return test::safetensors(text, "x");
}

// Tensors with distinct names of `name` bytes and of `bytes` bytes each, the last ones first; one
// byte too many behind them.
std::string many_tensors(std::uint64_t count, std::size_t name, std::uint64_t bytes) {
  std::string text = "{";
  for (std::uint64_t i = count; i-- > 0;) {
    std::string number = std::to_string(i);
    number.insert(0, name - number.size(), 'n');
    text += test::tensor(number, "U8", fmt::format("[{}]", bytes),
                         fmt::format("[{},{}]", i * bytes, (i + 1) * bytes));
    text += i > 0 ? "," : "}";
  }
  return test::safetensors(text, std::string(count * bytes + 1, 'x'));
}

void expect_refused(const std::string& file, std::string_view rule, std::uint64_t allowed) {
  const std::clock_t start = std::clock();
  const std::uint64_t rise = memory_rise([&] {
    EXPECT_FAILS(parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "f"),
                 ErrorCode::input, std::string(rule));
  });
  EXPECT_LE(rise, allowed) << rise / kMiB << " MiB";
  fmt::print("header of {} MB: {} after {:.0f} ms of CPU time, {} MiB\n", file.size() / 1'000'000,
             rule, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, rise / kMiB);
}

constexpr std::uint64_t kCap = 100'000'000;
constexpr std::uint64_t kAllowed = 300'000'000;  // the text and twice as much

TEST(SafetensorsMemory, HeadersAtTheCapStayInTheirBounds) {
  SKIP_WITHOUT_ALLOCATION_HOOK();  // a sanitizer's shadow memory would count, too
  expect_refused(header_of(kCap, "{\"a\":", "[", ""), "st.header_json", kAllowed);
  expect_refused(header_of(kCap, "{\"a\":{\"x\":[0", ",0", "]}}"), "st.header_json", kAllowed);
  expect_refused(header_of(kCap, "{\"__metadata__\":{\"k\":\"", "\\u00e9", "\"}} "), "st.trailing",
                 kAllowed);
  expect_refused(header_of(kCap, "{\"", "\\n", "\":{}}"), "st.limit", kAllowed);
}

TEST(SafetensorsMemory, AMillionTensorsStayInTheirBounds) {
  SKIP_WITHOUT_ALLOCATION_HOOK();  // a sanitizer's shadow memory would count, too
  expect_refused(many_tensors(1'000'000, 30, 1), "st.trailing", kAllowed);
  expect_refused(many_tensors(1'000'001, 7, 0), "st.limit", kAllowed);
}

TEST(SafetensorsMemory, AThousandTensorsTakeUnder16MiB) {
  std::string text = "{";
  for (int i = 0; i < 1000; ++i) {
    text += test::tensor(fmt::format("blocks.{}.self_attn.norm_k.weight", i), "BF16", "[1]",
                         fmt::format("[{},{}]", 2 * i, 2 * i + 2));
    text += i < 999 ? "," : "}";
  }
  const std::string file = test::safetensors(text, std::string(2000, 'x'));
  SKIP_WITHOUT_ALLOCATION_HOOK();
  allocation_hook::arm();
  const SafetensorsHeader header =
      parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "f");
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(header.entries().size(), 1000u);
  EXPECT_LT(seen.bytes(), static_cast<std::int64_t>(1 * kMiB));  // all requests, freed ones too
}

}  // namespace
}  // namespace ballast
