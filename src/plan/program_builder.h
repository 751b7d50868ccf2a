#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/program.h"

namespace ballast {

// Everything an instruction touches: emit("add", {.reads = {a, b}, .writes = {c}}, ...).
struct Access {
  BufferList reads = {};
  BufferList writes = {};
  Buffer scratch = {};  // a workspace of which little is touched: does not count as bytes moved
  Lane lane = Lane::compute;
  Cost cost = {};
  std::uint32_t splits = 1;
  bool copies_bytes = false;
};

// Records one program of a set.
class ProgramBuilder {
 public:
  ProgramBuilder(ProgramSet& set, std::string_view program_name);
  ProgramBuilder(const ProgramBuilder&) = delete;
  ProgramBuilder& operator=(const ProgramBuilder&) = delete;

  // Lives from before the first program to after the last, at one place.
  Buffer persistent(std::string_view name, const Shape& shape, DType dtype, Role role,
                    Tier tier = Tier::device, std::uint64_t alignment = 256);
  // Persistent buffers of one size, with Role::staging: see ProgramSet::rings.
  void add_ring(std::vector<Buffer> buffers) { set_.rings.push_back(std::move(buffers)); }
  // Lives from the first instruction of this program that writes it to the last that touches it.
  Buffer temp(std::string_view name, const Shape& shape, DType dtype, Role role = Role::activation,
              Tier tier = Tier::device, std::uint64_t alignment = 256);
  // Scratch of one operation, in bytes; an invalid Buffer when bytes is 0.
  Buffer workspace(std::int64_t bytes);
  // One for all operations of the program that ask for it, as large as the largest of them needs:
  // transfers wait for no memory that changes its owner.
  Buffer shared_workspace(std::int64_t bytes);

  // The same memory seen differently; nothing is copied, lifetimes belong to the root.
  Buffer slice(Buffer b, int dim, std::int64_t begin, std::int64_t count);  // dim < 0: from the end
  Buffer rows(Buffer b, std::int64_t begin, std::int64_t count) {
    return slice(b, 0, begin, count);
  }
  Buffer columns(Buffer b, std::int64_t begin, std::int64_t count) {
    return slice(b, -1, begin, count);
  }
  Buffer reshape(Buffer b, const Shape& shape);  // b must be contiguous
  // [..., H * D] as [..., H, D], for rows with gaps between them too.
  Buffer split_columns(Buffer b, std::int64_t parts);
  // Columns of the longer rows that the rows of the matrix b are the beginning of, counted from
  // b's first: columns(b, ...) that may lie behind its last.
  Buffer row_columns(Buffer b, std::int64_t begin, std::int64_t count);
  Buffer view(Buffer b, std::uint64_t byte_offset, DType dtype, const Shape& shape);

  // What a temporary turned out to be for, once the recording code knows.
  void set_role(Buffer b, Role role);

  const Shape& shape(Buffer b) const { return set_.spec(b).shape; }
  DType dtype(Buffer b) const { return set_.spec(b).dtype; }
  Tier tier(Buffer b) const { return set_.spec(b).tier; }
  const Backend& backend() const { return set_.backend; }
  ProgramSet& set() { return set_; }

  template <class F>
  void emit(std::string_view name, Access access, F&& run) {
    add(name, std::move(access), set_.executable ? Kernel(std::forward<F>(run)) : Kernel(), {});
  }
  // With something to prepare on the GPU.
  template <class F, class Prepare>
  void emit(std::string_view name, Access access, F&& run, Prepare&& prepare) {
    const bool gpu = set_.executable && backend().device == Device::cuda;
    add(name, std::move(access), set_.executable ? Kernel(std::forward<F>(run)) : Kernel(),
        gpu ? Kernel(std::forward<Prepare>(prepare)) : Kernel());
  }

  class Scope {
   public:
    Scope(ProgramBuilder& pb, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ProgramBuilder& pb_;
    std::size_t old_size_;
  };
  [[nodiscard]] Scope scope(std::string_view name) { return {*this, name}; }

 private:
  Buffer add_root(std::string_view name, const Shape& shape, DType dtype, Role role, Tier tier,
                  std::uint64_t alignment, int program);
  Buffer add_view(Buffer of, std::uint64_t offset, DType dtype, SharedShape shape,
                  SharedShape strides);
  Buffer add_buffer(const BufferSpec& spec);
  void add(std::string_view name, Access access, Kernel run, Kernel prepare);
  double sizes_of(const BufferList& buffers) const;

  ProgramSet& set_;
  int program_;
  Buffer shared_workspace_ = {};
  std::string scope_;  // "blocks.3.ffn."
};

}  // namespace ballast
