#include "models/wan_vae/weights.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "ops/conv3d/conv3d.h"
#include "ops/copy.h"

namespace ballast::wan_vae {
namespace {

std::vector<Unit> units_of(const Network& net) {
  std::vector<Unit> all;
  for (const Stage& s : net) all.insert(all.end(), s.units.begin(), s.units.end());
  return all;
}

std::int64_t packed_row(const UnitTensor& t) {
  const std::int64_t channels = t.shape[1];
  return t.taps == 1 ? channels : (t.taps * channels + 7) / 8 * 8;
}

}  // namespace

std::vector<StoredUnit> stored_units(const Network& net, const WeightFiles& checkpoint,
                                     Dialect dialect) {
  std::vector<StoredUnit> all;
  for (const Unit& u : units_of(net)) {
    StoredUnit& unit = all.emplace_back();
    for (const UnitTensor& t : tensors_of(u)) {
      const WeightTensor& found = checkpoint.get(dialect == Dialect::official ? t.name : t.other);
      if (found.entry->shape != t.shape) {
        fail(ErrorCode::input, "{}: {} is {}, this VAE has {}", checkpoint.path(),
             found.entry->name, found.entry->shape, t.shape);
      }
      unit.push_back(
          {.shape = t.shape, .dtype = checkpoint.dtype(found), .extent = checkpoint.extent(found)});
    }
  }
  return all;
}

std::vector<StoredUnit> planned_units(const Network& net, DType dtype) {
  std::vector<StoredUnit> all;
  for (const Unit& u : units_of(net)) {
    StoredUnit& unit = all.emplace_back();
    for (const UnitTensor& t : tensors_of(u)) {
      unit.push_back({.shape = t.shape, .dtype = dtype, .extent = {}});
      unit.back().extent.bytes = static_cast<std::uint64_t>(t.shape.elements()) * size_of(dtype);
    }
  }
  return all;
}

std::uint64_t Weights::largest(const std::vector<StoredUnit>& stored) {
  std::uint64_t most = 0;
  for (const StoredUnit& u : stored) {
    for (const StoredBytes& t : u) most = std::max(most, t.extent.bytes);
  }
  return most;
}

Weights::Weights(ProgramBuilder& load, const Network& net, std::vector<StoredUnit> stored,
                 const WeightOptions& options)
    : units_(units_of(net)), stored_(std::move(stored)), options_(options) {
  check(stored_.size() == units_.size(), "{} units, {} stored", units_.size(), stored_.size());
  for (const Unit& u : units_) {
    UnitBuffers& persistent = persistent_.emplace_back();
    for (const UnitTensor& t : tensors_of(u)) {
      const auto slot = to_size(t.slot);
      if (t.taps == 0) {
        persistent[slot] = load.persistent(t.name, {t.shape[0]}, DType::f32, Role::weights);
      } else {
        persistent[slot] =
            load.persistent(t.name, {t.shape[0], packed_row(t)}, options_.dtype, Role::weights,
                            streams(persistent_.size() - 1) ? Tier::host : Tier::device);
      }
    }
  }
  begin_program();
}

void Weights::load(ProgramBuilder& pb, StagingRing& ring) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto scope = pb.scope(units_[i].name);
    const std::vector<UnitTensor> tensors = tensors_of(units_[i]);
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const UnitTensor& t = tensors[k];
      const Buffer persistent = persistent_[i][to_size(t.slot)];
      if (t.taps == 0) {
        ring.deliver(pb,
                     {{.name = t.name, .from = stored_[i][k], .to = persistent, .to_scale = {}}},
                     Lane::upload);
        continue;
      }
      // As the file has it first; the order of a convolution's rows is made from that.
      const bool host = streams(i);
      const Buffer raw = pb.temp("raw", {t.shape[0], t.shape.elements() / t.shape[0]},
                                 options_.dtype, Role::staging, host ? Tier::host : Tier::device);
      ring.deliver(pb, {{.name = t.name, .from = stored_[i][k], .to = raw, .to_scale = {}}},
                   host ? Lane::host : Lane::upload);
      ops::pack_conv_weight(pb, raw, persistent, t.taps, host ? Lane::host : Lane::compute);
    }
  }
}

void Weights::begin_program() {
  here_ = persistent_;
  brought_.assign(units_.size(), false);
}

void Weights::upload(ProgramBuilder& pb, std::size_t unit) {
  if (unit >= units_.size() || !streams(unit) || brought_[unit]) return;
  brought_[unit] = true;
  const auto scope = pb.scope(units_[unit].name);
  for (const UnitTensor& t : tensors_of(units_[unit])) {
    if (t.taps == 0) continue;
    const Buffer persistent = persistent_[unit][to_size(t.slot)];
    const Buffer to = pb.temp("weight", pb.shape(persistent), options_.dtype, Role::weight_slots);
    ops::copy(pb, persistent, to, Lane::upload);
    here_[unit][to_size(t.slot)] = to;
  }
}

const UnitBuffers& Weights::use(ProgramBuilder& pb, std::size_t unit) {
  for (std::size_t i = unit; i <= unit + to_size(options_.ahead); ++i) upload(pb, i);
  return here_[unit];
}

}  // namespace ballast::wan_vae
