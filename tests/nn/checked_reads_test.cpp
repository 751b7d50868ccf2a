// Weights that are read again and are not what they were (plan/checked_reads.h), by the way they
// really take: through a staging ring, in a program that runs several times.

#include "plan/checked_reads.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "nn/staging_ring.h"
#include "plan/memory_plan.h"
#include "plan/runner.h"
#include "tests/support/errors.h"
#include "tests/support/raw_tensor_file.h"

namespace ballast {
namespace {

using test::error_of;
using test::RawTensorFile;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kStoredRows = 1024, kStoredColumns = 1024;  // f32: eight requests

class CheckedWeights : public ::testing::Test {
 protected:
  void record(VerifyWeights verify) {
    file.open(DiskMode::buffered);
    set.backend.verify_weights = verify;
    ProgramBuilder pb(set, "step");
    const StoredBytes from = file.stored(1);
    const Buffer to = pb.persistent("to", from.shape, from.dtype, Role::weights);
    StagingRing ring(pb, from.extent.bytes);
    ring.deliver(pb, {{.name = "blocks.0.q", .from = from, .to = to, .to_scale = {}}},
                 Lane::upload);
    plan = plan_memory(set);
    runner.emplace(set, plan);
  }
  // Changes bytes without a trace in the file's times: what a disk does.
  void overwrite(std::uint64_t at, std::string_view bytes, bool keep_time = true) {
    struct stat before {};
    ASSERT_EQ(::stat(file.path().c_str(), &before), 0);
    {
      std::fstream f(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      f.seekp(static_cast<std::streamoff>(at));
      f << bytes;
      ASSERT_TRUE(f.flush());
    }
    const timespec times[] = {before.st_atim, before.st_mtim};
    if (keep_time) {
      ASSERT_EQ(::utimensat(AT_FDCWD, file.path().c_str(), times, 0), 0);
    }
  }
  std::uint64_t offset(std::uint64_t element) const {
    return file.stored(1).extent.offset + 4 * element;
  }

  RawTensorFile file;
  std::size_t first = file.add({5}, DType::bf16, 1),
              second = file.add({kStoredRows, kStoredColumns}, DType::f32, 1);
  ProgramSet set;
  MemoryPlan plan;
  std::optional<Runner> runner;
};

TEST_F(CheckedWeights, AFlippedBitIsNamedByTheNextRead) {
  record(VerifyWeights::all);
  for (int i = 0; i < 3; ++i) runner->run("step");
  const std::uint64_t at = offset(700'000);
  const char old = file.data(1)[4 * 700'000];
  overwrite(at, std::string(1, static_cast<char>(old ^ 4)));
  const auto error = error_of([&] { runner->run("step"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), AllOf(HasSubstr(file.path()), HasSubstr("\"blocks.0.q\""),
                                   HasSubstr("a second read differs too")));
}

TEST_F(CheckedWeights, ASampleFindsItWithinItsNumberOfReads) {
  record(VerifyWeights::sampled);
  for (int i = 0; i < 3; ++i) runner->run("step");
  overwrite(offset(5), "x");
  std::uint32_t reads = 0;
  while (reads < CheckedReads::kSampled && !error_of([&] { runner->run("step"); })) ++reads;
  EXPECT_LT(reads, CheckedReads::kSampled);
}

TEST_F(CheckedWeights, NothingIsComparedWhereThatIsOff) {
  record(VerifyWeights::off);
  runner->run("step");
  overwrite(offset(5), "x");
  for (std::uint32_t i = 0; i <= CheckedReads::kSampled; ++i) runner->run("step");
  EXPECT_EQ(set.checked_reads->take_cost().bytes, 0);
}

TEST_F(CheckedWeights, EveryByteIsComparedOnceInSoManyReads) {
  record(VerifyWeights::sampled);
  runner->run("step");
  EXPECT_EQ(set.checked_reads->take_cost().bytes, 4 * kStoredRows * kStoredColumns);
  for (std::uint32_t i = 0; i < CheckedReads::kSampled; ++i) runner->run("step");
  EXPECT_EQ(set.checked_reads->take_cost().bytes, 4 * kStoredRows * kStoredColumns);
}

TEST_F(CheckedWeights, AReadThatWasWrongOnceIsToldFromAChangedFile) {
  file.open(DiskMode::buffered);
  const StoredBytes stored = file.stored(1);
  const Extent& e = stored.extent;
  CheckedReads reads;
  CheckedReads::Read& read = reads.add(
      {.file = e.file, .offset = e.offset, .bytes = 4096, .tensor = "w", .dtype = DType::f32});
  std::vector<std::byte> got(4096);
  e.file->read(e.offset, got);
  reads.check(read, *e.file, e.offset, got, VerifyWeights::all);
  got[17] ^= std::byte{1};
  EXPECT_FAILS(reads.check(read, *e.file, e.offset, got, VerifyWeights::all), ErrorCode::input,
               "a second read gives the first bytes again");
}

TEST_F(CheckedWeights, NanIsNamedByTheFirstRead) {
  record(VerifyWeights::off);
  const float nan = std::nanf("");
  overwrite(offset(900'001), std::string_view(reinterpret_cast<const char*>(&nan), 4));
  EXPECT_FAILS(runner->run("step"), ErrorCode::input,
               fmt::format("tensor \"blocks.0.q\" holds NaN or infinity, first at byte {}",
                           offset(900'001)));
}

TEST_F(CheckedWeights, ScalesAreReadInTheirOwnTypeNotInThatOfTheirMatrix) {
  file.open(DiskMode::buffered);
  const StoredBytes stored = file.stored(1);
  const Extent& e = stored.extent;
  CheckedReads reads;
  const auto add = [&](std::uint64_t at, DType dtype) -> CheckedReads::Read& {
    return reads.add({.file = e.file, .offset = at, .bytes = 4, .tensor = "w", .dtype = dtype});
  };
  add(e.offset, DType::f8_e4m3);
  CheckedReads::Read& scale = add(e.offset + 4, DType::f32);
  const float value = std::bit_cast<float>(0x3f7f'7f7fu);  // four bytes that are NaN in f8_e4m3
  std::vector<std::byte> got(4);
  std::memcpy(got.data(), &value, 4);
  EXPECT_NO_THROW(reads.check(scale, *e.file, e.offset + 4, got, VerifyWeights::all));
}

TEST_F(CheckedWeights, AFileThatIsWrittenToEndsTheRun) {
  record(VerifyWeights::off);
  runner->run("step");
  overwrite(0, "x", false);  // no byte of the tensor
  EXPECT_FAILS(runner->run("step"), ErrorCode::input,
               file.path() + ": changed while it was in use");
}

TEST_F(CheckedWeights, AFileThatIsReplacedEndsTheRun) {
  record(VerifyWeights::off);
  runner->run("step");
  const std::string other = file.path() + ".new";
  std::filesystem::copy_file(file.path(), other);
  std::filesystem::rename(other, file.path());
  EXPECT_FAILS(runner->run("step"), ErrorCode::input, "another file has its name");
}

TEST_F(CheckedWeights, AFileWhoseNameIsGoneIsReadOn) {
  record(VerifyWeights::all);
  runner->run("step");
  std::filesystem::remove(file.path());
  EXPECT_NO_THROW(runner->run("step"));
}

}  // namespace
}  // namespace ballast
