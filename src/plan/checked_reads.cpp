#include "plan/checked_reads.h"

#include <algorithm>
#include <chrono>

#include "core/checksum.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/non_finite.h"

namespace ballast {
namespace {

// 0 stands for none.
std::uint64_t sum_of(std::span<const std::byte> bytes) {
  return std::max<std::uint64_t>(1, checksum_of(bytes));
}

}  // namespace

std::size_t CheckedReads::Hash::operator()(const Key& k) const {
  const std::uint64_t h =
      (reinterpret_cast<std::uintptr_t>(k.file) ^ k.bytes ^ k.offset << 16 ^ k.offset >> 19) *
      0x9e37'79b9'7f4a'7c15;
  return h ^ h >> 32;
}

CheckedReads::Read& CheckedReads::add(const Range& range) {
  static_assert(sizeof(Key) + sizeof(Read) + 3 * sizeof(void*) + sizeof(Tensor) <= kBytesPerRange);
  const Key key = {range.file, range.offset, range.bytes};
  if (const auto known = reads_.find(key); known != reads_.end()) return known->second;
  // The scales of an 8-bit matrix have its name and another dtype.
  if (tensors_.empty() || tensors_.back().name != range.tensor ||
      tensors_.back().dtype != range.dtype) {
    tensors_.push_back({std::string(range.tensor), range.dtype});
  }
  if (std::ranges::find(files_, range.file) == files_.end()) files_.push_back(range.file);
  return reads_
      .try_emplace(key, static_cast<std::uint32_t>(tensors_.size() - 1),
                   static_cast<std::uint32_t>(reads_.size()))
      .first->second;
}

void CheckedReads::check(Read& read, const DiskFile& file, std::uint64_t offset,
                         std::span<std::byte> got, VerifyWeights verify) {
  const std::uint32_t visit = read.visits_.fetch_add(1, std::memory_order_relaxed);
  if (visit == 0) check_values(read, file, offset, got);
  if (verify == VerifyWeights::off) return;
  std::uint64_t expected = read.sum_.load(std::memory_order_relaxed);
  if (expected != 0 && verify == VerifyWeights::sampled && (visit + read.number_) % kSampled != 0) {
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t found = sum_of(got);
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
  cost_bytes_.fetch_add(got.size(), std::memory_order_relaxed);
  cost_nanoseconds_.fetch_add(static_cast<std::uint64_t>(took.count()), std::memory_order_relaxed);
  if (expected == 0 && read.sum_.compare_exchange_strong(expected, found)) return;
  if (found != expected) fail_different(read, file, offset, got, expected);
}

void CheckedReads::check_values(const Read& read, const DiskFile& file, std::uint64_t offset,
                                std::span<const std::byte> got) const {
  const Tensor& t = tensors_[read.tensor_];
  const auto bad = first_non_finite(got, t.dtype);
  if (!bad) return;
  fail(
      ErrorCode::input,
      fmt::format("{}: tensor \"{}\" holds NaN or infinity, first at byte {}; with it every result "
                  "would be NaN",
                  file.path(), printable(t.name),
                  offset + static_cast<std::uint64_t>(*bad) * size_of(t.dtype)),
      {{"another copy of the file", "this one was damaged or comes from a run that diverged"}});
}

void CheckedReads::fail_different(const Read& read, const DiskFile& file, std::uint64_t offset,
                                  std::span<std::byte> got, std::uint64_t expected) const {
  check_files();  // a file that somebody wrote to says more than its checksums
  std::string again;
  try {
    file.read(offset, got, PageCache::drop);
    file.read(offset, got, PageCache::drop);  // from the disk, whatever was cached before
    again = sum_of(got) == expected
                ? "a second read gives the first bytes again: the disk, its cable or memory erred "
                  "once"
                : "a second read differs too: the file has changed on the disk";
  } catch (const Error& e) {
    again = fmt::format("a second read failed: {}", e.what());
  }
  fail(ErrorCode::input,
       fmt::format("{}: tensor \"{}\", {} bytes at byte {}: they are not those that this run read "
                   "before (checksum {:016x}); {}",
                   file.path(), printable(tensors_[read.tensor_].name), got.size(), offset,
                   expected, again),
       {{"resume from the last checkpoint", "nothing of this step was kept"},
        {"check the disk and the memory", "smartctl, dmesg, memtest"}});
}

void CheckedReads::check_files() const {
  for (const DiskFile* file : files_) file->check_unchanged();
}

CheckedReads::Cost CheckedReads::take_cost() {
  return {.bytes = static_cast<double>(cost_bytes_.exchange(0)),
          .seconds = static_cast<double>(cost_nanoseconds_.exchange(0)) * 1e-9};
}

}  // namespace ballast
