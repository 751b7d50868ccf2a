#include "plan/rank_agreement.h"

#include <string_view>
#include <type_traits>
#include <vector>

#include "core/checksum.h"
#include "core/error.h"
#include "core/to_size.h"

namespace ballast {
namespace {

class FieldHash {
 public:
  template <class T>
  void add(T number) {
    static_assert(std::is_integral_v<T> || std::is_floating_point_v<T> || std::is_enum_v<T>);
    sum_.add(std::as_bytes(std::span(&number, 1)));
  }
  void add_text(std::string_view text) {
    add(text.size());
    sum_.add(std::as_bytes(std::span(text)));
  }
  std::uint64_t value() const { return sum_.value(); }

 private:
  Checksum sum_;
};

// Row r: the numbers of rank r.
std::vector<std::uint64_t> gather(Communicator& group, const std::vector<std::uint64_t>& mine) {
  std::vector<std::uint64_t> all(mine.size() * to_size(group.size()));
  const auto bytes = static_cast<std::int64_t>(mine.size() * sizeof(std::uint64_t));
  group.all_gather(
      ConstTensorView(std::as_bytes(std::span(mine)).data(), DType::u8, Shape{1, bytes}),
      TensorView(std::as_writable_bytes(std::span(all)).data(), DType::u8,
                 Shape{group.size(), bytes}),
      {});
  return all;
}

// The first rank whose number in this column is not rank 0's; 0: they are equal.
std::size_t first_other(const std::vector<std::uint64_t>& all, std::size_t columns,
                        std::size_t column) {
  for (std::size_t row = 1; row < all.size() / columns; ++row) {
    if (all[row * columns + column] != all[column]) return row;
  }
  return 0;
}

[[noreturn]] void fail_differing(const RankGroup& group, std::size_t rank, std::string_view what) {
  fail(ErrorCode::input, fmt::format("rank {} of group {} {} than rank 0", rank, group.name, what),
       {{"start all ranks with the same version, configuration and files", "makes them agree"}});
}

}  // namespace

std::uint64_t network_hash(const ProgramSet& set, int program) {
  FieldHash hash;
  for (const Instruction& i : set.programs[to_size(program)].instructions) {
    if (i.cost.work != Work::network) continue;
    const RankGroup& group = set.groups[to_size(i.cost.group)];
    hash.add_text(i.name);
    hash.add_text(group.name);
    hash.add(group.size);
    hash.add(i.cost.bytes);
  }
  return hash.value();
}

std::uint64_t plan_hash(const ProgramSet& set, const MemoryPlan& plan, int program) {
  FieldHash hash;
  const Program& p = set.programs[to_size(program)];
  hash.add_text(p.name);
  for (const Bytes peak : plan.peak) hash.add(peak.count);
  for (const Instruction& i : p.instructions) {
    hash.add_text(i.name);
    hash.add(i.lane);
    hash.add(i.cost.group);
    for (const BufferList* touched : {&i.reads, &i.writes}) {
      hash.add(touched->size());
      for (const Buffer b : *touched) {
        const BufferSpec& root = set.spec(set.spec(b).root);
        hash.add(root.tier);
        hash.add(root.bytes);
        hash.add(plan.offset[root.root.id]);
      }
    }
  }
  return hash.value();
}

void check_ranks_agree(const ProgramSet& set, const MemoryPlan& plan,
                       std::span<Communicator* const> communicators) {
  check(communicators.size() == set.groups.size(), "{} communicators for {} groups of ranks",
        communicators.size(), set.groups.size());
  if (communicators.empty()) return;
  const std::size_t programs = set.programs.size();
  std::vector<std::uint64_t> hashes;  // of each program two
  for (std::size_t p = 0; p < programs; ++p) {
    hashes.push_back(network_hash(set, static_cast<int>(p)));
    hashes.push_back(plan_hash(set, plan, static_cast<int>(p)));
  }
  for (std::size_t g = 0; g < communicators.size(); ++g) {
    const RankGroup& group = set.groups[g];
    Communicator& communicator = *communicators[g];
    check(communicator.size() == group.size && communicator.rank() == group.mine,
          "rank {} of {} for group {}, recorded for rank {} of {}", communicator.rank(),
          communicator.size(), group.name, group.mine, group.size);
    // How many there are comes first: then all ranks know how many hashes follow.
    const std::size_t fewer = first_other(gather(communicator, {programs}), 1, 0);
    if (fewer) fail_differing(group, fewer, "records more or fewer programs");
    const auto all = gather(communicator, hashes);
    for (std::size_t h = 0; h < hashes.size(); ++h) {
      const std::size_t other = first_other(all, hashes.size(), h);
      if (!other || (h % 2 == 1 && !communicator.by_offset())) continue;
      const std::string_view what = h % 2 == 0 ? "exchanges other data" : "has another plan";
      fail_differing(group, other, fmt::format("{} in program {}", what, set.programs[h / 2].name));
    }
  }
}

}  // namespace ballast
