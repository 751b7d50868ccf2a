// Golden files of text encoders: umt5_encoder (Wan), umt5_hf (transformers).

#include "app/golden/t5.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "app/golden/config.h"
#include "core/error.h"
#include "core/to_size.h"
#include "models/t5/encoder.h"
#include "models/t5/recognise.h"
#include "models/t5/weights.h"
#include "ops/copy.h"
#include "ops/linear/sgemm.h"
#include "plan/runner.h"

namespace ballast {

t5::Config golden_t5_config(const GoldenFile& file, const t5::TensorMap& names) {
  auto c = t5::recognise(file.checkpoint(), names);
  if (!c) fail(ErrorCode::input, "{} holds no T5 or UMT5 model", file.path());
  c->name = file.name();
  std::optional<bool> scaled;
  JsonReader json = file.config();
  json.object({
      {"eps", [&] { c->eps = static_cast<float>(read_number(json, 1e-12, 1)); }},
      {"layer_norm_epsilon", [&] { c->eps = static_cast<float>(read_number(json, 1e-12, 1)); }},
      {"max_dist", [&] { c->max_distance = json.i64(1, 1 << 20); }},
      {"relative_attention_max_distance", [&] { c->max_distance = json.i64(1, 1 << 20); }},
      {"scale_decoder_outputs", [&] { scaled = json.boolean(); }},
  });
  json.finish();
  if (scaled) c->scaled_head = *scaled;
  validate(*c);
  return *c;
}

std::vector<std::vector<std::int32_t>> golden_tokens(const GoldenFile& file, std::string_view ids,
                                                     std::string_view mask) {
  const GoldenTensor i = file.load(ids);
  if (i.dtype != DType::i64 || i.shape.rank() != 2) {
    fail(ErrorCode::input, "{}: {} is {} {}, expected a matrix of i64", file.path(), ids, i.dtype,
         i.shape);
  }
  const GoldenTensor m = file.load(mask, DType::i64, i.shape);
  std::vector<std::vector<std::int32_t>> all;
  const auto *id = i.view().as<std::int64_t>(), *real = m.view().as<std::int64_t>();
  for (std::int64_t b = 0; b < i.shape[0]; ++b) {
    auto& tokens = all.emplace_back();
    for (std::int64_t t = 0; t < i.shape[1]; ++t) {
      const std::int64_t at = b * i.shape[1] + t;
      if (real[at] == 0) continue;
      if (id[at] < 0 || id[at] > INT32_MAX) {
        fail(ErrorCode::input, "{}: {} has the token {}", file.path(), ids, id[at]);
      }
      tokens.push_back(static_cast<std::int32_t>(id[at]));
    }
    if (tokens.empty()) {
      fail(ErrorCode::input, "{}: sample {} of {} is empty", file.path(), b, ids);
    }
  }
  return all;
}

GoldenTensor padded_rows(std::string name, std::int64_t rows, std::int64_t width,
                         std::span<const std::vector<float>> samples) {
  GoldenTensor t = golden_tensor(std::move(name), DType::f32,
                                 {static_cast<std::int64_t>(samples.size()), rows, width});
  auto* to = t.view().as<float>();
  for (const std::vector<float>& s : samples) {
    const auto real = static_cast<std::int64_t>(s.size()) / width;
    check(real <= rows, "{} rows in a place for {}", real, rows);
    std::ranges::copy(s, to);
    to += rows * width;
    for (std::int64_t r = 0; r < rows; ++r) t.counts.push_back(r < real);
  }
  return t;
}

Precision golden_t5_precision(const VerifyOptions& options) {
  return {.activation = options.dtype, .residual = options.dtype};
}

namespace {

// Values of taps, copied to buffers that outlive their program.
class T5Taps : public Taps {
 public:
  void tap(ProgramBuilder& pb, const std::string& name, int sample, Buffer rows,
           std::int64_t) override {
    const Buffer kept = pb.persistent(name, pb.shape(rows), DType::f32, Role::output);
    ops::copy(pb, rows, kept);
    kept_[{name, sample}] = kept;
  }
  Buffer at(const std::string& name, int sample) const { return kept_.at({name, sample}); }

 private:
  std::map<std::pair<std::string, int>, Buffer> kept_;
};

struct EncoderRun {
  std::vector<std::vector<float>> states;               // by prompt
  std::vector<std::vector<std::vector<float>>> blocks;  // by block, by prompt
  std::vector<float> bias;                              // of block 0 and prompt 0, [H, 2 L - 1]
};

EncoderRun run_encoder(const GoldenFile& file, const VerifyOptions& options, const t5::Config& c,
                       const t5::TensorMap& names,
                       const std::vector<std::vector<std::int32_t>>& prompts) {
  const StoredBytes table = t5::embedding_table(c, file.checkpoint(), names);
  t5::EncoderJob job;
  job.config = c;
  job.policy = options.policy;
  job.precision = golden_t5_precision(options);
  job.rows = table.dtype;
  job.passes.emplace_back();
  for (const auto& p : prompts) job.passes[0].push_back(std::ssize(p));
  ProgramSet set;
  set.backend = verify_backend(options);
  T5Taps taps;
  const t5::Encoder encoder(set, std::move(job), weight_groups(c, file.checkpoint(), names), &taps);
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  if (options.device == Device::cpu) ops::warm_up_blas(runner.compute_threads());
  runner.run("load");
  const t5::PassIo& pass = encoder.passes()[0];
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    t5::read_rows(table, prompts[i], runner.view(pass.prompts[i].rows));
  }
  runner.run(pass.program);
  const auto values = [&](Buffer b) {
    std::vector<float> v(to_size(set.spec(b).shape.elements()));
    runner.read(b, std::as_writable_bytes(std::span(v)));
    return v;
  };
  EncoderRun r;
  for (const t5::PromptIo& io : pass.prompts) {
    const TensorView v = runner.view(io.states);
    r.states.emplace_back(v.as<float>(), v.as<float>() + v.elements());
  }
  for (std::int64_t b = 0; b < c.layers; ++b) {
    auto& block = r.blocks.emplace_back();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      block.push_back(values(taps.at(fmt::format("mid.block{}", b), static_cast<int>(i))));
    }
  }
  r.bias = values(taps.at("mid.block0.bias", 0));
  return r;
}

// [H, n, n] of a bias by distance over L tokens.
GoldenTensor corner_of(const std::vector<float>& bias, std::int64_t heads, std::int64_t tokens,
                       std::int64_t n) {
  GoldenTensor t = golden_tensor("mid.block0.pos_bias_12x12", DType::f32, {heads, n, n});
  auto* to = t.view().as<float>();
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t q = 0; q < n; ++q) {
      for (std::int64_t k = 0; k < n; ++k) {
        *to++ = bias[to_size(h * (2 * tokens - 1) + k - q + tokens - 1)];
      }
    }
  }
  return t;
}

void add_buckets(const GoldenFile& file, const t5::Config& c, std::vector<GoldenTensor>& results) {
  const GoldenTensor distances = file.load("in.rel_pos");
  if (distances.dtype != DType::i64) {
    fail(ErrorCode::input, "{}: in.rel_pos is {}", file.path(), distances.dtype);
  }
  for (const bool bidirectional : {true, false}) {
    GoldenTensor t = golden_tensor(bidirectional ? "out.bucket.bidirectional" : "out.bucket.causal",
                                   DType::i64, distances.shape);
    const ops::RelativeBuckets buckets = c.relative(bidirectional);
    const auto* d = distances.view().as<std::int64_t>();
    for (std::int64_t i = 0; i < distances.shape.elements(); ++i) {
      t.view().as<std::int64_t>()[i] = ops::bucket_of(buckets, d[i]);
    }
    results.push_back(std::move(t));
  }
}

}  // namespace

std::vector<GoldenTensor> recompute_umt5_encoder(const GoldenFile& file,
                                                 const VerifyOptions& options) {
  const t5::TensorMap names(file.checkpoint());
  const t5::Config c = golden_t5_config(file, names);
  constexpr std::int64_t kCorner = 12;
  std::vector<GoldenTensor> results;
  for (std::size_t k = 0; k == 0 || file.has(fmt::format("in.{}.ids", k)); ++k) {
    const std::string ids = fmt::format("in.{}.ids", k);
    const auto prompts = golden_tokens(file, ids, fmt::format("in.{}.mask", k));
    const std::int64_t rows = file.load(ids).shape[1];
    const EncoderRun run = run_encoder(file, options, c, names, prompts);
    results.push_back(padded_rows(fmt::format("out.{}.encoder", k), rows, c.d_model, run.states));
    for (std::int64_t b = 0; k == 0 && b < c.layers; ++b) {
      results.push_back(
          padded_rows(fmt::format("mid.0.block{}", b), rows, c.d_model, run.blocks[to_size(b)]));
    }
    const std::int64_t tokens = std::ssize(prompts[0]);
    if (k == 0 && tokens >= kCorner) {
      results.push_back(corner_of(run.bias, c.heads, tokens, kCorner));
    }
  }
  add_buckets(file, c, results);
  return results;
}

std::vector<GoldenTensor> recompute_umt5_hf(const GoldenFile& file, const VerifyOptions& options) {
  const t5::TensorMap names(file.checkpoint());
  const t5::Config c = golden_t5_config(file, names);
  const auto prompts = golden_tokens(file, "in.input_ids", "in.attention_mask");
  const std::int64_t rows = file.load("in.input_ids").shape[1];
  const EncoderRun run = run_encoder(file, options, c, names, prompts);
  return {padded_rows("out.encoder", rows, c.d_model, run.states)};
}

}  // namespace ballast
