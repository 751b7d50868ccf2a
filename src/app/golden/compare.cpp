#include "app/golden/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"

namespace ballast {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool counts(const GoldenTensor& t, std::size_t element, std::size_t elements) {
  return t.counts.empty() || t.counts[element / (elements / t.counts.size())];
}

std::string position(const Shape& shape, std::size_t element) {
  Shape at = shape;
  auto rest = static_cast<std::int64_t>(element);
  for (int i = shape.rank(); i-- > 0; rest /= shape[i]) at[i] = rest % shape[i];
  return to_string(at);
}

std::string where(const GoldenTensor& ours, std::size_t element, double computed, double stored) {
  return fmt::format("at {} computed {:.9g}, stored {:.9g}", position(ours.shape, element),
                     computed, stored);
}

// Sizes of the differences over the elements that count. A NaN anywhere is infinitely far off.
struct Distance {
  double max_abs = 0, max_relative = 0, l2 = 0;
  double largest = 0;  // magnitude of what is stored
  std::size_t furthest = 0;
  double computed = 0, stored = 0;  // there
};

Distance distance(const GoldenTensor& ours, const std::vector<double>& a,
                  const std::vector<double>& b) {
  Distance d;
  double squares = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!counts(ours, i, a.size())) continue;
    const double off =
        std::isfinite(a[i]) && std::isfinite(b[i]) ? std::abs(a[i] - b[i]) : kInfinity;
    if (off > d.max_abs || i == 0) {
      d.furthest = i;
      d.computed = a[i];
      d.stored = b[i];
    }
    d.max_abs = std::max(d.max_abs, off);
    if (off > 0) d.max_relative = std::max(d.max_relative, off / std::abs(b[i]));
    d.largest = std::max(d.largest, std::abs(b[i]));
    squares += off * off;
    norm += b[i] * b[i];
  }
  d.l2 = squares == 0                         ? 0
         : norm > 0 && std::isfinite(squares) ? std::sqrt(squares / norm)
                                              : kInfinity;
  return d;
}

Comparison judged(const GoldenTensor& ours, std::string_view measure, double error, double limit,
                  const Distance& d) {
  Comparison c = {.tensor = ours.name,
                  .measure = measure,
                  .error = error,
                  .limit = limit,
                  .pass = error <= limit};
  if (!c.pass) c.detail = where(ours, d.furthest, d.computed, d.stored);
  return c;
}

double badness(const Comparison& c) {
  if (std::isinf(c.limit)) return c.pass ? c.error : kInfinity;
  if (c.limit > 0) return c.error / c.limit;
  return c.pass ? 0 : kInfinity;
}

const Comparison& worse(const Comparison& a, const Comparison& b) {
  return badness(b) > badness(a) ? b : a;
}

Comparison compare_bits(const GoldenTensor& ours, const GoldenTensor& stored) {
  Comparison c = {.tensor = ours.name, .measure = "bits", .pass = true};
  const std::size_t size = size_of(ours.dtype);
  const std::size_t elements = ours.data.size() / size;
  const bool floating = info(ours.dtype).floating;
  for (std::size_t i = 0; i < elements; ++i) {
    const std::byte* a = ours.data.data() + i * size;
    const std::byte* b = stored.data.data() + i * size;
    if (!counts(ours, i, elements) || std::memcmp(a, b, size) == 0) continue;
    double x = 0, y = 0;
    if (convertible(ours.dtype, DType::f64)) {
      convert(a, ours.dtype, &x, DType::f64, 1);
      convert(b, ours.dtype, &y, DType::f64, 1);
    }
    if (floating && std::isnan(x) && std::isnan(y)) continue;
    if (c.pass) c.detail = where(ours, i, x, y);
    c.pass = false;
    ++c.error;
  }
  return c;
}

bool is_table(std::string_view name) {
  return name == "mid.sinusoid" || name == "mid.rope_cos" || name == "mid.rope_sin";
}

// Schedules and what follows from them without rounding.
bool is_exact(std::string_view name) {
  return name.ends_with(".sigmas") || name.ends_with(".timesteps") || name == "out.t_tokens" ||
         name == "out.y";  // a mask, and what the VAE gave
}

// What the VAE is given: one step of 8 bits where pixels were resized as such (a single frame),
// else the rounding of a cubic filter in f32.
double image_limit(const Shape& shape) {
  return shape.rank() == 4 && shape[1] == 1 ? 2.0 / 255 + 1e-6 : 2e-5;
}

// Tokens that were chosen one after another: another rounding may choose another one.
bool is_chosen(std::string_view name) { return name == "out.greedy" || name == "out.beam3"; }

bool is_lookup(std::string_view name) { return name.starts_with("mid.block0.pos_bias"); }

bool is_text_model(const GoldenFile& file) {
  return file.case_name().starts_with("t5_") || file.case_name().starts_with("umt5_");
}

// Made by transformers: without stats.
bool of_transformers(const GoldenFile& file) { return file.case_name().ends_with("_hf"); }

bool is_loss(std::string_view name) { return name == "out.loss" || name == "out.adamw.losses"; }

// The reference's numbers for a tensor; those of out.0 for out.base.0.
const GoldenStats* find_stats(const GoldenFile& file, const std::string& name) {
  constexpr std::string_view kBase = "out.base.";
  if (const GoldenStats* s = file.stats(name)) return s;
  if (!name.starts_with(kBase)) return nullptr;
  return file.stats("out." + name.substr(kBase.size()));
}

Comparison compare_f32(const GoldenFile& file, const GoldenTensor& ours,
                       const GoldenTensor& stored) {
  const std::vector<double> a = ours.doubles(), b = stored.doubles();
  const Distance d = distance(ours, a, b);
  if (is_table(ours.name)) {
    const bool f32_table = std::all_of(a.begin(), a.end(), [](double x) {
      return x == static_cast<double>(static_cast<float>(x));
    });
    return judged(ours, "abs", d.max_abs, f32_table ? 1e-6 : 1e-9, d);
  }
  if (ours.name == "out.adamw.losses") {
    return judged(ours, "relative", d.max_relative, of_transformers(file) ? 1e-3 : 1e-5, d);
  }
  if (ours.name.starts_with("out.adamw.")) {
    return worse(judged(ours, "rel L2", d.l2, 1e-4, d), judged(ours, "abs", d.max_abs, 1e-3, d));
  }
  if (ours.name == "out.vae_input") {
    return judged(ours, "abs", d.max_abs, image_limit(ours.shape), d);
  }
  if (of_transformers(file)) {
    if (is_loss(ours.name)) return judged(ours, "relative", d.max_relative, 1e-4, d);
    return judged(ours, "abs", d.max_abs, 2e-4 * d.largest, d);
  }
  const GoldenStats* s = find_stats(file, ours.name);
  if (!s) {
    fail(ErrorCode::input,
         "{}: golden.stats: {} has no entry, so there is no limit to compare it by", file.path(),
         ours.name);
  }
  return judged(ours, "abs", d.max_abs, 20 * std::max(s->err, 6e-8 * s->max), d);
}

Comparison compare_bf16(const GoldenFile& file, const GoldenTensor& ours,
                        const GoldenTensor& stored) {
  const Distance d = distance(ours, ours.doubles(), stored.doubles());
  if (is_loss(ours.name)) return judged(ours, "abs", d.max_abs, 0.01, d);
  if (ours.name.starts_with("grad.") || ours.name.starts_with("out.adamw.")) {
    return judged(ours, "rel L2", d.l2, 0.06, d);
  }
  if (is_text_model(file)) return judged(ours, "rel L2", d.l2, 0.06, d);
  return worse(judged(ours, "rel L2", d.l2, 0.015, d), judged(ours, "abs", d.max_abs, 0.06, d));
}

Comparison measured(const GoldenTensor& ours, const GoldenTensor& stored) {
  const Distance d = distance(ours, ours.doubles(), stored.doubles());
  Comparison c = judged(ours, "rel L2", d.l2, kInfinity, d);
  c.pass = std::isfinite(c.error);
  return c;
}

// Pixels from -1 to 1: 40 dB are an error of 2 / 100 in the root mean square.
Comparison compare_bf16_video(const GoldenTensor& ours, const GoldenTensor& stored) {
  const std::vector<double> a = ours.doubles(), b = stored.doubles();
  const Distance d = distance(ours, a, b);
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  const double rms = a.empty() ? 0 : std::sqrt(squares / static_cast<double>(a.size()));
  return judged(ours, "rms", std::isfinite(rms) ? rms : kInfinity, 0.02, d);
}

bool is_vae(const GoldenFile& file) { return file.case_name() == "vae"; }
bool is_video(std::string_view name) {
  return name.ends_with(".decoded") || name.ends_with(".roundtrip");
}

std::optional<Comparison> median_gradient(std::span<const Comparison> all) {
  std::vector<double> errors;
  for (const Comparison& c : all) {
    if (c.tensor.starts_with("grad.") && c.measure == "rel L2") errors.push_back(c.error);
  }
  if (errors.empty()) return std::nullopt;
  std::sort(errors.begin(), errors.end());
  const std::size_t half = errors.size() / 2;
  const double median =
      errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2;
  return Comparison{.tensor = "grad.*",
                    .measure = "median rel L2",
                    .error = median,
                    .limit = 0.02,
                    .pass = median <= 0.02};
}

Comparison compare_one(const GoldenFile& file, const GoldenTensor& ours,
                       std::optional<DType> dtype) {
  const GoldenTensor stored = file.expected(ours.name);
  if (ours.dtype != stored.dtype || ours.shape != stored.shape) {
    return {.tensor = ours.name,
            .measure = "missing",
            .error = kInfinity,
            .detail = fmt::format("computed {} {}, stored {} {}", ours.dtype, ours.shape,
                                  stored.dtype, stored.shape)};
  }
  const auto elements = to_size(ours.shape.elements());
  check(ours.data.size() == stored.data.size() &&
            (ours.counts.empty() || elements % ours.counts.size() == 0),
        "{}: {} bytes and {} pieces for {}", ours.name, ours.data.size(), ours.counts.size(),
        ours.shape);
  const bool formats = file.case_name() == "half_formats" || file.case_name() == "dtypes";
  if (formats || is_lookup(ours.name) || is_exact(ours.name) || !info(ours.dtype).floating) {
    return compare_bits(ours, stored);
  }
  if (!dtype || (dtype == DType::bf16 && ours.name == "out.guided")) return measured(ours, stored);
  if (is_vae(file) && dtype == DType::bf16) {
    return is_video(ours.name) ? compare_bf16_video(ours, stored) : measured(ours, stored);
  }
  return dtype == DType::bf16 ? compare_bf16(file, ours, stored) : compare_f32(file, ours, stored);
}

}  // namespace

std::vector<Comparison> compare_results(const GoldenFile& file,
                                        std::span<const GoldenTensor> computed,
                                        std::optional<DType> dtype) {
  // Rounding nothing but the weights of t5_hf_gated to bf16 moves its gradients by up to a third.
  if (dtype == DType::bf16 && file.case_name() == "t5_hf") dtype.reset();
  std::vector<const GoldenTensor*> by_name;
  for (const GoldenTensor& t : computed) by_name.push_back(&t);
  std::sort(by_name.begin(), by_name.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  std::vector<Comparison> all;
  for (const SafetensorsEntry& stored : file.entries()) {
    if (!GoldenFile::is_result(stored.name)) continue;
    if (dtype != DType::f32 && (stored.name.starts_with("mid.") || is_chosen(stored.name))) {
      continue;
    }
    const auto ours =
        std::lower_bound(by_name.begin(), by_name.end(), stored.name,
                         [](const auto* t, std::string_view name) { return t->name < name; });
    if (ours == by_name.end() || (*ours)->name != stored.name) {
      all.push_back({.tensor = std::string(stored.name),
                     .measure = "missing",
                     .error = kInfinity,
                     .detail = "it was not recomputed"});
      continue;
    }
    all.push_back(compare_one(file, **ours, dtype));
  }
  if (dtype == DType::bf16 && !is_vae(file)) {
    if (auto median = median_gradient(all)) all.push_back(std::move(*median));
  }
  return all;
}

const Comparison* worst(std::span<const Comparison> comparisons) {
  const auto found = std::max_element(
      comparisons.begin(), comparisons.end(),
      [](const Comparison& a, const Comparison& b) { return badness(a) < badness(b); });
  return found == comparisons.end() ? nullptr : &*found;
}

bool same_bits(const GoldenTensor& a, const GoldenTensor& b) {
  if (a.name != b.name || a.dtype != b.dtype || a.shape != b.shape || a.counts != b.counts) {
    return false;
  }
  const std::size_t pieces = a.counts.empty() ? 1 : a.counts.size();
  const std::size_t bytes = a.data.size() / pieces;
  for (std::size_t i = 0; i < pieces && bytes > 0; ++i) {
    const bool counted = a.counts.empty() || a.counts[i];
    if (counted && std::memcmp(a.data.data() + i * bytes, b.data.data() + i * bytes, bytes) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace ballast
