#include "models/wan_vae/fit_job.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::wan_vae {
namespace {

// Of more the halos would be most of the work.
constexpr std::int64_t kMaxBands = 8;
// A unit's matrices come while those before it are used.
constexpr int kSlots = 2;

std::vector<Band> bands_of(const Job& job, std::int64_t count) {
  const std::int64_t halo = job.decode ? kDecoderHalo : kEncoderHalo;
  return cut_bands(kGridPerLatent * job.height, count, halo);
}

// Those of a decoder that are used once for a chunk: before frames go one by one, or in bands.
std::size_t units_used_once(const Job& job, bool bands) {
  std::size_t units = 0, used_once = 0;
  for (const Stage& s : decoder(job.config)) {
    for (const Unit& u : s.units) {
      ++units;
      if (u.kind == UnitKind::up_3d && (bands || used_once == 0)) used_once = units;
    }
  }
  return used_once;
}

}  // namespace

FitJob::FitJob(wan_vae::Job job, std::vector<StoredUnit> encoder_units,
               std::vector<StoredUnit> decoder_units)
    : vae(std::move(job)), encoder(std::move(encoder_units)), decoder(std::move(decoder_units)) {
  for (const auto* units : {&encoder, &decoder}) {
    for (const StoredUnit& u : *units) {
      WeightGroup& g = groups_.emplace_back();
      for (const StoredBytes& data : u)
        g.tensors.push_back({.name = "", .data = data, .scale = {}});
    }
  }
}

WeightFormat FitJob::format() const {
  return vae.dtype == DType::bf16 ? WeightFormat::bf16 : WeightFormat::stored;
}

Streaming FitJob::through_slots(std::size_t units) const {
  return {.slots = kSlots,
          .resident_groups = static_cast<int>(groups_.size() - units),
          .stream_from = StreamSource::host};
}

MemoryPolicy FitJob::choose(const Policy& policy) {
  if (policy.bands > 1 && std::ssize(bands_of(vae, policy.bands)) < policy.bands) {
    fail(ErrorCode::usage, "{} rows of latents cannot be cut into {} bands", vae.height,
         policy.bands);
  }
  variant_ = Variant::chosen;
  vae.policy = policy;
  const auto histories = static_cast<int>(max_kept_blocks());
  MemoryPolicy p;
  if (policy.streamed_units > 0) {
    p.streaming = through_slots(std::min(policy.streamed_units, groups_.size()));
  }
  p.offload = policy.hosted_histories > 0;
  if (p.offload) p.kept_blocks = histories - std::min(policy.hosted_histories, histories);
  p.name = text_of(p);
  return p;
}

std::int64_t FitJob::max_bands() const {
  std::int64_t bands = 1;
  while (bands < kMaxBands && std::ssize(bands_of(vae, bands + 1)) > bands) ++bands;
  return bands;
}

Policy FitJob::variant_policy() const {
  if (variant_ == Variant::chosen || variant_ == Variant::whole) return vae.policy;
  return {.slices = in_slices(), .bands = max_bands()};
}

Policy FitJob::under(const MemoryPolicy& policy) const {
  Policy p = variant_policy();
  p.streamed_units = !policy.streams() ? 0
                     : policy.streaming->resident_groups == 0
                         ? ~std::size_t{}
                         : groups_.size() - to_size(policy.streaming->resident_groups);
  p.hosted_histories =
      policy.offload ? static_cast<int>(max_kept_blocks()) - policy.kept_blocks : 0;
  return p;
}

fit::Recording FitJob::record(const MemoryPolicy& policy, const Backend& backend) const {
  fit::Recording r(policy, backend);
  wan_vae::Job job = vae;
  job.policy = under(policy);
  const Vae model(r.set, std::move(job), encoder, decoder);
  // That of a following chunk, if there are any.
  r.steps = {{{.name = r.set.programs.back().name}}};
  return r;
}

std::string FitJob::text_of(const MemoryPolicy& policy) const {
  const Policy p = under(policy);
  std::string text;
  const auto add = [&](bool yes, const std::string& what) {
    if (yes) text += (text.empty() ? "" : ", ") + what;
  };
  const double twice = computed_twice(bands_of(vae, p.bands));
  add(p.slices, "frames one by one");
  add(twice > 0, fmt::format("{} bands ({:.0f} % computed twice)", p.bands, 100 * twice));
  add(p.streamed_units > 0, "weights streamed from RAM");
  add(p.hosted_histories > 0, fmt::format("{} histories in RAM", p.hosted_histories));
  return text.empty() ? "resident" : text;
}

std::vector<std::vector<MemoryPolicy>> FitJob::candidates(const fit::Switches&) const {
  const Policy variant = variant_policy();
  std::vector<MemoryPolicy> weights = {{.name = "auto"}};
  const auto stream = [&](std::size_t units) {
    if (units == 0 || units > groups_.size()) return;
    weights.push_back({.name = "auto", .streaming = through_slots(units)});
  };
  if (variant_ != Variant::whole) {
    if (vae.decode) stream(units_used_once(vae, variant.bands > 1));
    stream(groups_.size());
  }
  const bool offload = max_kept_blocks() > 0 && (variant_ != Variant::whole || in_slices());
  std::vector<MemoryPolicy> all;
  for (MemoryPolicy p : weights) {
    all.push_back(p);
    p.offload = true;
    if (offload) all.push_back(p);
  }
  return {all};
}

std::vector<MemoryPolicy> FitJob::leanest() const {
  const std::vector<MemoryPolicy> all = candidates({}).front();
  if (!shares_ram) return {all.back()};
  return {all.front(), all.back()};
}

bool FitJob::may_keep_blocks(const MemoryPolicy& policy, const fit::Switches&) const {
  return policy.offload;
}

std::int64_t FitJob::max_kept_blocks() const {
  return !vae.long_clips ? 0 : vae.encode ? FrameCaches::kEncoder : FrameCaches::kDecoder;
}

std::vector<std::unique_ptr<fit::Job>> FitJob::variants() const {
  std::vector<std::unique_ptr<fit::Job>> all;
  const auto add = [&](Variant variant, const Policy& policy) {
    auto job = std::make_unique<FitJob>(*this);
    job->variant_ = variant;
    job->vae.policy = policy;
    all.push_back(std::move(job));
  };
  if (variant_ == Variant::open) {
    add(Variant::whole, {});
    add(Variant::sliced, {});
  } else if (variant_ == Variant::sliced) {
    for (std::int64_t bands = 1; bands <= max_bands(); ++bands) {
      add(Variant::chosen, {.slices = in_slices(), .bands = bands});
    }
  }
  return all;
}

std::vector<Policy> decoding_policies(const Job& job) {
  Policy p;
  std::vector<Policy> all = {p};
  p.slices = job.long_clips;
  if (p.slices) all.push_back(p);
  p.streamed_units = units_used_once(job, false);
  all.push_back(p);
  p.streamed_units = ~std::size_t{};
  if (job.long_clips) p.hosted_histories = FrameCaches::kDecoder;
  all.push_back(p);
  return all;
}

}  // namespace ballast::wan_vae
