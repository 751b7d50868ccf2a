#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "io/weight_files.h"
#include "models/wan_vae/layers.h"
#include "models/wan_vae/recognise.h"
#include "nn/staging_ring.h"
#include "plan/program_builder.h"

namespace ballast::wan_vae {

// Where the tensors of a network are, unit by unit in order of tensors_of(). Fails with
// ErrorCode::input where one is missing or has another shape.
using StoredUnit = std::vector<StoredBytes>;
std::vector<StoredUnit> stored_units(const Network& net, const WeightFiles& checkpoint,
                                     Dialect dialect);
// The same without a file, to plan with.
std::vector<StoredUnit> planned_units(const Network& net, DType dtype);

// Buffers of a unit by TensorSlots; convolutions' weights as ops/conv3d/conv3d.h wants them.
using UnitBuffers = std::array<Buffer, TensorSlots::count>;

struct WeightOptions {
  DType dtype = DType::f32;  // of matrices; vectors are f32
  std::size_t streamed = 0;  // of so many units, the first ones, matrices wait in host memory
  int ahead = 1;             // units that are brought before they are used
};

// The weights of one network. Vectors stay on the device, matrices there or on the host.
class Weights {
 public:
  Weights(ProgramBuilder& load, const Network& net, std::vector<StoredUnit> stored,
          const WeightOptions& options);

  void load(ProgramBuilder& pb, StagingRing& ring);
  // A program starts with nothing brought.
  void begin_program();
  // Unit i of the network, counted through all stages.
  const UnitBuffers& use(ProgramBuilder& pb, std::size_t unit);

  std::size_t units() const { return persistent_.size(); }
  const Unit& unit(std::size_t i) const { return units_[i]; }
  const UnitBuffers& persistent(std::size_t unit) const { return persistent_[unit]; }
  static std::uint64_t largest(const std::vector<StoredUnit>& stored);

 private:
  void upload(ProgramBuilder& pb, std::size_t unit);
  bool streams(std::size_t unit) const { return unit < options_.streamed; }

  std::vector<Unit> units_;
  std::vector<StoredUnit> stored_;
  WeightOptions options_;
  std::vector<UnitBuffers> persistent_, here_;
  std::vector<bool> brought_;
};

}  // namespace ballast::wan_vae
