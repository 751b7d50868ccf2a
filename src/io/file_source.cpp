#include "io/file_source.h"

#include "core/error.h"

namespace ballast {

void SourceFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  check(offset <= size_ && to.size() <= size_ - offset,
        "read of {} bytes at {} past the end of a source of {}", to.size(), offset, size_);
  file_.read(start_ + offset, to);
}

SourceFile FileSource::open() const {
  SourceFile source(DiskFile::open(is_member() ? archive : path, DiskMode::buffered));
  const std::uint64_t all = source.file_.size();
  if (is_member() && (offset > all || bytes > all - offset)) {
    fail(ErrorCode::input,
         "{}: the archive has become shorter: {} bytes at {} are "
         "not there, it has {}",
         printable(path), bytes, offset, all);
  }
  source.path_ = path;
  source.start_ = offset;
  source.size_ = is_member() ? bytes : all;
  return source;
}

}  // namespace ballast
