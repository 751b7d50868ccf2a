#include "plan/program_builder.h"

#include "core/error.h"

namespace ballast {
namespace {

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

std::string ProgramBuilder::scoped(std::string_view name) const {
  std::string s;
  s.reserve(scope_.size() + name.size());
  return s.append(scope_).append(name);
}

Buffer ProgramBuilder::add_buffer(BufferSpec spec) {
  const Buffer b{static_cast<std::uint32_t>(set_.buffers.size())};
  if (!spec.root) {
    spec.root = b;
    spec.strides = row_major(spec.shape);
    spec.bytes = span_bytes(spec.shape, spec.strides, spec.dtype);
  }
  set_.buffers.push_back(std::move(spec));
  return b;
}

Buffer ProgramBuilder::persistent(std::string_view name, const Shape& shape, DType dtype, Role role,
                                  Tier tier, std::uint64_t alignment) {
  return add_buffer({.name = scoped(name),
                     .shape = shape,
                     .strides = {},
                     .dtype = dtype,
                     .tier = tier,
                     .role = role,
                     .program = kPersistent,
                     .root = {},
                     .alignment = alignment});
}

Buffer ProgramBuilder::temp(std::string_view name, const Shape& shape, DType dtype, Role role,
                            Tier tier, std::uint64_t alignment) {
  return add_buffer({.name = scoped(name),
                     .shape = shape,
                     .strides = {},
                     .dtype = dtype,
                     .tier = tier,
                     .role = role,
                     .program = program_,
                     .root = {},
                     .alignment = alignment});
}

Buffer ProgramBuilder::workspace(std::int64_t bytes) {
  if (bytes == 0) return {};
  return temp("workspace", {bytes}, DType::u8, Role::workspace);
}

Buffer ProgramBuilder::add_view(Buffer of, std::uint64_t offset, DType dtype, const Shape& shape,
                                const Shape& strides) {
  const BufferSpec& base = set_.spec(of);
  const BufferSpec& root = set_.spec(base.root);
  BufferSpec v = {.name = {},  // ProgramSet::name() answers with the root's
                  .shape = shape,
                  .strides = strides,
                  .dtype = dtype,
                  .tier = base.tier,
                  .role = base.role,
                  .program = base.program,
                  .root = base.root,
                  .offset = base.offset + offset,
                  .bytes = span_bytes(shape, strides, dtype),
                  .alignment = 1};
  check(v.offset + v.bytes <= root.bytes, "view {} of {} ends at byte {} of {}", shape, root.name,
        v.offset + v.bytes, root.bytes);
  return add_buffer(std::move(v));
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
                  shape, s.strides);
}

Buffer ProgramBuilder::reshape(Buffer b, const Shape& shape) {
  const BufferSpec& s = set_.spec(b);
  if (s.strides != row_major(s.shape) || shape.elements() != s.shape.elements()) [[unlikely]] {
    check(false, "{} {} cannot be seen as {}", set_.name(b), s.shape, shape);
  }
  return add_view(b, 0, s.dtype, shape, row_major(shape));
}

Buffer ProgramBuilder::view(Buffer b, std::uint64_t byte_offset, DType dtype, const Shape& shape) {
  return add_view(b, byte_offset, dtype, shape, row_major(shape));
}

void ProgramBuilder::set_role(Buffer b, Role role) {
  set_.buffers[set_.spec(b).root.id].role = role;
}

void ProgramBuilder::add(std::string_view name, Access access, Kernel run, Kernel prepare) {
  std::erase(access.reads, Buffer());  // optional operands that are absent
  std::erase(access.writes, Buffer());
  set_.programs[static_cast<std::size_t>(program_)].instructions.push_back(
      {.name = scoped(name),
       .lane = access.lane,
       .reads = std::move(access.reads),
       .writes = std::move(access.writes),
       .cost = access.cost,
       .run = std::move(run),
       .prepare = std::move(prepare)});
}

}  // namespace ballast
