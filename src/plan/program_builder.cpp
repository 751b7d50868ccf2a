#include "plan/program_builder.h"

#include <atomic>

#include "core/error.h"
#include "core/to_size.h"
#include "plan/recording_cost.h"

namespace ballast {
namespace {

std::atomic<std::uint64_t> instruction_count = 0;

// Bytes from the first to one past the last element.
std::uint64_t span_bytes(const Shape& shape, const Shape& strides, DType dtype) {
  std::int64_t last = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 0) return 0;
    last += (shape[i] - 1) * strides[i];
  }
  return static_cast<std::uint64_t>(last + 1) * size_of(dtype);
}

}  // namespace

ProgramBuilder::ProgramBuilder(ProgramSet& set, std::string_view program_name)
    : set_(set), program_(static_cast<int>(set.programs.size())) {
  set_.programs.push_back({.name = std::string(program_name), .instructions = {}});
}

ProgramBuilder::Scope::Scope(ProgramBuilder& pb, std::string_view name)
    : pb_(pb), old_size_(pb.scope_.size()) {
  pb_.scope_.append(name).push_back('.');
}

ProgramBuilder::Scope::~Scope() { pb_.scope_.resize(old_size_); }

Buffer ProgramBuilder::add_buffer(const BufferSpec& spec) {
  set_.buffers.push_back(spec);
  return {static_cast<std::uint32_t>(set_.buffers.size() - 1)};
}

Buffer ProgramBuilder::add_root(std::string_view name, const Shape& shape, DType dtype, Role role,
                                Tier tier, std::uint64_t alignment, int program) {
  const Shape strides = row_major(shape);
  return add_buffer({.name = set_.names.add(scope_, name),
                     .shape = set_.shapes.of(shape),
                     .strides = set_.shapes.of(strides),
                     .bytes = span_bytes(shape, strides, dtype),
                     .root = {static_cast<std::uint32_t>(set_.buffers.size())},
                     .program = program,
                     .alignment = static_cast<std::uint32_t>(alignment),
                     .dtype = dtype,
                     .tier = tier,
                     .role = role});
}

Buffer ProgramBuilder::persistent(std::string_view name, const Shape& shape, DType dtype, Role role,
                                  Tier tier, std::uint64_t alignment) {
  return add_root(name, shape, dtype, role, tier, alignment, kPersistent);
}

Buffer ProgramBuilder::temp(std::string_view name, const Shape& shape, DType dtype, Role role,
                            Tier tier, std::uint64_t alignment) {
  return add_root(name, shape, dtype, role, tier, alignment, program_);
}

Buffer ProgramBuilder::workspace(std::int64_t bytes) {
  if (bytes == 0) return {};
  return temp("workspace", {bytes}, DType::u8, Role::workspace);
}

Buffer ProgramBuilder::shared_workspace(std::int64_t bytes) {
  if (bytes == 0) return {};
  if (!shared_workspace_) shared_workspace_ = workspace(bytes);
  BufferSpec& s = set_.buffers[shared_workspace_.id];
  if (s.bytes < static_cast<std::uint64_t>(bytes)) {
    s.shape = set_.shapes.of({bytes});
    s.bytes = static_cast<std::uint64_t>(bytes);
  }
  return shared_workspace_;
}

Buffer ProgramBuilder::add_view(Buffer of, std::uint64_t offset, DType dtype, SharedShape shape,
                                SharedShape strides) {
  BufferSpec v = set_.spec(of);
  const BufferSpec& root = set_.spec(v.root);
  v.name = {};  // ProgramSet::name() answers with the root's
  v.shape = shape;
  v.strides = strides;
  v.dtype = dtype;
  v.offset += offset;
  v.bytes = span_bytes(shape, strides, dtype);
  v.alignment = 1;
  if (v.offset + v.bytes > root.bytes) [[unlikely]] {
    check(false, "view {} of {} ends at byte {} of {}", shape, root.name, v.offset + v.bytes,
          root.bytes);
  }
  return add_buffer(v);
}

Buffer ProgramBuilder::slice(Buffer b, int dim, std::int64_t begin, std::int64_t count) {
  const BufferSpec& s = set_.spec(b);
  const int rank = s.shape.rank();
  if (dim < -rank || dim >= rank) [[unlikely]] {  // names are looked up for a message only
    check(false, "{} {} has no dimension {}", set_.name(b), s.shape, dim);
  }
  if (begin < 0 || count < 0 || begin + count > s.shape[dim]) [[unlikely]] {
    check(false, "{}+{} of dimension {} of {} {}", begin, count, dim, set_.name(b), s.shape);
  }
  if (begin == 0 && count == s.shape[dim]) return b;
  Shape shape = s.shape;
  shape[dim] = count;
  return add_view(b, static_cast<std::uint64_t>(begin * s.strides[dim]) * size_of(s.dtype), s.dtype,
                  set_.shapes.of(shape), s.strides);
}

Buffer ProgramBuilder::reshape(Buffer b, const Shape& shape) {
  const BufferSpec& s = set_.spec(b);
  if (s.strides != row_major(s.shape) || shape.elements() != s.shape.elements()) [[unlikely]] {
    check(false, "{} {} cannot be seen as {}", set_.name(b), s.shape, shape);
  }
  return view(b, 0, s.dtype, shape);
}

Buffer ProgramBuilder::split_columns(Buffer b, std::int64_t parts) {
  const BufferSpec& s = set_.spec(b);
  const int rank = s.shape.rank();
  check(rank > 0 && parts > 0 && s.shape[-1] % parts == 0 && s.strides[-1] == 1,
        "{} {} has no {} parts in a row", set_.name(b), s.shape, parts);
  const std::int64_t size = s.shape[-1] / parts;
  Shape shape = s.shape, strides = s.strides;
  shape[-1] = parts;
  shape.push_back(size);
  strides[-1] = size;
  strides.push_back(1);
  return add_view(b, 0, s.dtype, set_.shapes.of(shape), set_.shapes.of(strides));
}

Buffer ProgramBuilder::row_columns(Buffer b, std::int64_t begin, std::int64_t count) {
  const BufferSpec& s = set_.spec(b);
  check(s.shape.rank() == 2 && s.strides[1] == 1, "{} {} is no matrix of rows", set_.name(b),
        s.shape);
  check(begin >= 0 && count >= 0 && begin + count <= s.strides[0],
        "{}+{} of rows of {} elements in {} {}", begin, count, s.strides[0], set_.name(b), s.shape);
  return add_view(b, static_cast<std::uint64_t>(begin) * size_of(s.dtype), s.dtype,
                  set_.shapes.of({s.shape[0], count}), s.strides);
}

Buffer ProgramBuilder::view(Buffer b, std::uint64_t byte_offset, DType dtype, const Shape& shape) {
  return add_view(b, byte_offset, dtype, set_.shapes.of(shape), set_.shapes.of(row_major(shape)));
}

void ProgramBuilder::set_role(Buffer b, Role role) {
  set_.buffers[set_.spec(b).root.id].role = role;
}

double ProgramBuilder::sizes_of(const BufferList& buffers) const {
  double bytes = 0;
  for (const Buffer b : buffers) bytes += static_cast<double>(set_.spec(b).bytes);
  return bytes;
}

void ProgramBuilder::add(std::string_view name, Access access, Kernel run, Kernel prepare) {
  access.reads.drop_absent();
  access.writes.drop_absent();
  const Cost& cost = access.cost;
  if (cost.work == Work::network || cost.group >= 0) [[unlikely]] {
    check(cost.work == Work::network && access.lane == Lane::network && cost.group >= 0 &&
              to_size(cost.group) < set_.groups.size(),
          "{}{} exchanges with group {} of {} on the {} lane", scope_, name, cost.group,
          set_.groups.size(), name_of(access.lane));
  }
  if (access.scratch) {
    if (access.cost.bytes < 0) access.cost.bytes = sizes_of(access.reads) + sizes_of(access.writes);
    access.writes.push_back(access.scratch);
  }
  set_.programs[to_size(program_)].instructions.push_back({.name = set_.names.add(scope_, name),
                                                           .lane = access.lane,
                                                           .copies_bytes = access.copies_bytes,
                                                           .splits = access.splits,
                                                           .reads = std::move(access.reads),
                                                           .writes = std::move(access.writes),
                                                           .cost = access.cost,
                                                           .run = std::move(run),
                                                           .prepare = std::move(prepare)});
  instruction_count.fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t recorded_instructions() { return instruction_count; }

}  // namespace ballast
