#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype_kind.h"
#include "memory/disk_file.h"
#include "plan/program.h"

namespace ballast {

// Checks reads of model files, so that no bit that a disk, a cable or another program changes gets
// into a result. The first read of a range decides: it is searched for NaN and infinity, and its
// checksum is kept. Later reads of the range are compared with that, all of them or a sample.
//
// Ranges are added while programs are recorded. check() is called by several threads, and allocates
// nothing unless it fails.
class CheckedReads {
 public:
  static constexpr std::uint32_t kSampled = 16;
  // For the plan: what one range takes, with the name of its tensor.
  static constexpr std::uint64_t kBytesPerRange = 160;

  // A piece of a tensor, of whole elements.
  struct Range {
    const DiskFile* file = nullptr;
    std::uint64_t offset = 0, bytes = 0;
    std::string_view tensor;
    DType dtype{};
  };

  // What is known of one.
  class Read {
   public:
    Read(std::uint32_t tensor, std::uint32_t number) : tensor_(tensor), number_(number) {}

   private:
    friend class CheckedReads;
    std::atomic<std::uint64_t> sum_{0};  // 0: not read yet
    std::atomic<std::uint32_t> visits_{0};
    std::uint32_t tensor_, number_;
  };

  // The same range is the same read in whichever program.
  Read& add(const Range& range);

  // `got`: the range as it was read just now. Fails with ErrorCode::input where it holds NaN or
  // infinity, and where it is not what the first read gave; then it is read once more, into `got`,
  // to tell a file whose contents have changed from a read that went wrong once.
  void check(Read& read, const DiskFile& file, std::uint64_t offset, std::span<std::byte> got,
             VerifyWeights verify);

  // Fails with ErrorCode::input where one of the files is not as it was when it was opened.
  void check_files() const;

  // Since the last call: bytes whose checksums were taken, and the time that took the threads that
  // read.
  struct Cost {
    double bytes = 0, seconds = 0;
  };
  Cost take_cost();

 private:
  struct Key {
    const DiskFile* file;
    std::uint64_t offset, bytes;

    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& k) const;
  };
  struct Tensor {
    std::string name;
    DType dtype;
  };
  void check_values(const Read& read, const DiskFile& file, std::uint64_t offset,
                    std::span<const std::byte> got) const;
  [[noreturn]] void fail_different(const Read& read, const DiskFile& file, std::uint64_t offset,
                                   std::span<std::byte> got, std::uint64_t expected) const;

  std::vector<Tensor> tensors_;
  std::vector<const DiskFile*> files_;
  std::unordered_map<Key, Read, Hash> reads_;
  std::atomic<std::uint64_t> cost_bytes_{0}, cost_nanoseconds_{0};
};

}  // namespace ballast
