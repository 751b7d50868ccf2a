#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/to_size.h"
#include "memory/disk_file.h"
#include "nn/memory_policy.h"
#include "nn/prefetch_order.h"
#include "nn/staging_ring.h"
#include "nn/weight_format.h"
#include "ops/linear/linear.h"
#include "plan/program_builder.h"

namespace ballast {

struct StoredTensor {
  std::string name;
  StoredBytes data;
  std::optional<StoredBytes> scale;  // of an 8-bit weight
};

// Parameters that are used together: a block, the embeddings, the head.
struct WeightGroup {
  std::string name;
  std::vector<StoredTensor> tensors;
  bool keep_precision = false;  // never narrowed: embeddings, head
};

// Elements of all tensors, without the scales of 8-bit ones.
std::int64_t parameter_count(std::span<const WeightGroup> groups);

// What all tensors take at least in a format: one that is made on the way may have a byte for each
// element.
Bytes min_bytes(std::span<const WeightGroup> groups, WeightFormat format);

// Of a model that is not there yet, for planning.
StoredTensor planned_tensor(const std::string& name, const Shape& shape, DType dtype);

struct WeightBuffers {
  Buffer data, scale;
  Buffer wide = {};  // data with its row padding; invalid: it has none
};

// Memory behind each row of a matrix and behind its last row that belongs to it wherever it stands,
// for whoever multiplies more than the matrix. Nothing is read into it.
struct RowPadding {
  std::int64_t rows = 0, columns = 0;

  explicit operator bool() const { return rows > 0 || columns > 0; }
};
// Of tensor `tensor` of a group that stands on the device in this type and without a scale.
using RowPaddings = std::function<RowPadding(int group, std::size_t tensor, DType dtype)>;
// Records on the compute lane what fills the row padding of a matrix that has come. On the lane
// that brings, a kernel would wait for a place on a GPU that is busy, and all that comes behind it,
// too.
using FillPadding = std::function<void(ProgramBuilder& pb, int group, std::size_t tensor,
                                       const WeightBuffers& weight)>;

// Decides where weights live and brings them there. Vectors are read once and stay. Matrices stay
// too, or pass through slots: use() hands out the group's buffers and, where they are not in a slot
// yet, records the reads and copies that bring them. Those run on the disk and upload lanes, so
// they go ahead of compute as far as free slots allow.
class BlockWeights {
 public:
  // Declares the buffers. Several sources (experts) have tensors of the same names, shapes and
  // dtypes and take turns in them.
  BlockWeights(ProgramBuilder& load, std::vector<std::vector<WeightGroup>> sources,
               const MemoryPolicy& policy, WeightFormat format, const RowPaddings& paddings = {});

  // Before load(), for weights that do not change between programs: the first groups that stream
  // are in the slots whenever a program begins and ends. load() brings them there, and a step that
  // ends with the groups it began with brings them once less.
  void keep_first_in_slots();

  // Records what is read once, or when the source changes: all that stays, and the host copy of
  // what streams from there.
  void load(ProgramBuilder& pb, int source);
  // What is recorded from here on streams from this source.
  void select(int source) { source_ = source; }

  // A program starts with empty slots, or with the first groups in them; it is the newest of its
  // set. Its end puts what brings weights to where it serves best. Margins of streamed matrices are
  // filled before their first use in the program and whenever they are brought; those of resident
  // ones are left to the caller.
  void begin_program(ProgramBuilder& pb, FillPadding fill = {});
  void end_program(ProgramBuilder& pb);

  // In the order of the group's tensors; valid until the next use() of a group that needs the slot.
  // In parts every use() brings what is used of the group until the next one.
  std::span<const WeightBuffers> use(ProgramBuilder& pb, int group);

  // Where the group's tensors are between programs, for whoever changes them: resident buffers, or
  // the host copy of what streams (from host memory only).
  std::vector<WeightBuffers> persistent(ProgramBuilder& pb, int group) const;

  // What the matrices of a group take where they wait to be streamed.
  static Bytes streamed_bytes(const WeightGroup& group, WeightFormat format);

  StagingRing& ring() { return *ring_; }  // for what else comes from disk

  int groups() const { return static_cast<int>(sources_[0].size()); }
  const WeightGroup& group(int g) const { return sources_[to_size(source_)][to_size(g)]; }
  bool resident(int group) const { return states_[to_size(group)].resident; }

 private:
  // How a tensor looks on the device.
  struct Form {
    DType dtype = DType::f32;
    bool streams = false;  // a matrix of a group that passes through slots
    bool has_scale = false;
    bool quantised = false;  // the scale is made on the way
    Shape scale_shape;
    Shape shape;        // in memory, row padding included
    bool wide = false;  // it has one
    std::uint64_t slot_offset = 0;
    std::uint64_t slot_scale_offset = 0;  // scales made on the way travel with their matrix
    std::uint64_t slot_bytes = 0;         // of both
  };
  struct GroupState {
    bool resident = true;
    std::vector<Form> forms;
    std::vector<WeightBuffers> buffers;  // resident tensors; streamed ones while in a slot
    std::uint64_t slot_bytes = 0;
    Buffer
        host;  // the streamed matrices that come from there, as in a slot but without row padding
    int slot = -1;
  };

  static Form form_of(const WeightGroup& group, const StoredTensor& t, WeightFormat format,
                      bool group_streams);
  void check_sources() const;
  void lay_out_slots();
  void declare(ProgramBuilder& load);
  WeightBuffers without_padding(ProgramBuilder& pb, Buffer memory, const StoredTensor& t,
                                const Form& f) const;
  // Where a matrix stands in memory whose byte 0 is the slot's byte `base`.
  WeightBuffers place_in(ProgramBuilder& pb, Buffer memory, std::uint64_t base,
                         const StoredTensor& t, const Form& f) const;
  void deliver(ProgramBuilder& pb, int group, std::size_t tensor, const WeightBuffers& placed,
               Buffer bytes);
  // keeps: it is in that memory already.
  void prefetch(ProgramBuilder& pb, int group, std::size_t tensor, Buffer memory,
                std::uint64_t base, bool keeps = false);
  void put(ProgramBuilder& pb, int group, std::size_t slot, bool keeps);
  void read_group(ProgramBuilder& pb, int group, std::span<const WeightBuffers> to,
                  bool streamed_part, Lane lane);

  std::vector<std::vector<WeightGroup>> sources_;
  int source_ = 0;
  MemoryPolicy policy_;
  WeightFormat format_;
  std::vector<GroupState> states_;
  std::vector<Buffer> slots_;
  std::vector<int> slot_group_;          // which group a slot holds, -1: none
  std::vector<std::uint64_t> last_use_;  // by slot
  std::vector<int> first_groups_;        // by slot: what it holds between programs
  std::uint64_t uses_ = 0;
  std::size_t program_ = 0;           // that is being recorded
  std::vector<Prefetch> prefetches_;  // of it
  FillPadding fill_;                  // of it
  std::optional<StagingRing> ring_;
};

}  // namespace ballast
