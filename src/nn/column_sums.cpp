#include "nn/column_sums.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/to_size.h"
#include "nn/update.h"
#include "ops/add.h"
#include "ops/collective.h"
#include "ops/copy.h"
#include "ops/fill.h"

namespace ballast {
namespace {

constexpr int kGroup = 0;  // of ProgramSet::groups: all ranks of a data parallel run

// Elements that are exchanged at once, so that their temporaries stay small: a block's adapters are
// less in most runs.
constexpr std::int64_t kBucket = 4 << 20;

Lane lane_between(Tier from, Tier to) {
  if (from == to) return from == Tier::host ? Lane::host : Lane::compute;
  return to == Tier::device ? Lane::upload : Lane::download;
}

void copy_between(ProgramBuilder& pb, Buffer from, Buffer to) {
  ops::copy(pb, from, to, lane_between(pb.tier(from), pb.tier(to)));
}

// On the device, where sums are made: the same memory, or a copy.
Buffer on_device(ProgramBuilder& pb, Buffer b) {
  if (pb.tier(b) == Tier::device) return b;
  const Buffer there = pb.temp("sum", pb.shape(b), pb.dtype(b), Role::gradient);
  copy_between(pb, b, there);
  return there;
}

// act(first element, count) for pieces of a bucket's size.
template <class Act>
void each_bucket(std::int64_t elements, const Act& act) {
  for (std::int64_t first = 0; first < elements; first += kBucket) {
    act(first, std::min(kBucket, elements - first));
  }
}

}  // namespace

std::vector<std::int64_t> DataParallel::columns_of(int of_rank, std::int64_t samples) const {
  const ColumnRange own = columns.of_rank(of_rank, ranks);
  std::vector<std::int64_t> all;
  for (std::int64_t c = own.first; c < own.end(); ++c) {
    if (columns.samples_of({c, 1}, samples).count > 0) all.push_back(c);
  }
  return all;
}

int DataParallel::busiest(std::int64_t samples) const {
  int most = 0;
  const auto samples_of = [&](int r) {
    return columns.samples_of(columns.of_rank(r, ranks), samples).count;
  };
  for (int r = 1; r < ranks; ++r) {
    if (samples_of(r) > samples_of(most)) most = r;
  }
  return most;
}

ColumnSums::ColumnSums(ProgramBuilder& pb, DataParallel how, Sets sets,
                       std::span<const std::int64_t> samples)
    : how_(how), sets_(std::move(sets)) {
  check(how_.has_columns() && how_.ranks >= 1 && how_.ranks <= how_.columns.columns,
        "{} columns for {} ranks", how_.columns.columns, how_.ranks);
  std::set<End> ends;
  for (const std::int64_t m : samples) {
    for (int r = 0; r < how_.ranks; ++r) {
      for (const End& end : ends_of(r, m)) ends.insert(end);
    }
    const Exchange exchange = exchange_of(m);
    if (std::ranges::find(exchanges_, exchange) == exchanges_.end()) {
      exchanges_.push_back(exchange);
    }
  }
  std::size_t places = 0;
  for (const End& end : ends) {
    places = std::max(places, end.aside - end.joins + (end.stays ? 1 : 0));
    if (!end.does_nothing()) ends_.push_back(end);
  }
  aside_.resize(sets_.together ? sets_.gradients.size() : 1);
  for (std::size_t set = 0; set < aside_.size(); ++set) {
    for (std::size_t place = 0; place < places; ++place) {
      std::vector<Buffer>& like = aside_[set].emplace_back();
      for (const Buffer g : sets_.gradients[set]) {
        like.push_back(pb.persistent(fmt::format("{}.aside{}", pb.set().name(g), place),
                                     pb.shape(g), pb.dtype(g), Role::gradient, pb.tier(g)));
      }
    }
  }
  if (how_.ranks == 1) return;
  check(pb.set().groups.size() == 1, "{} groups of ranks", pb.set().groups.size());
  for (int r = 0; r < how_.ranks; ++r) {
    most_columns_ = std::max(most_columns_, how_.columns.of_rank(r, how_.ranks).count);
  }
  const auto on_host = [&](const char* name, const Shape& shape, DType dtype) {
    return pb.persistent(name, shape, dtype, Role::output, Tier::host);
  };
  my_losses_ = on_host("column_losses", {most_columns_}, DType::f64);
  losses_ = on_host("all_column_losses", {how_.ranks, most_columns_}, DType::f64);
  my_wish_ = on_host("wish", {1}, DType::i32);
  wishes_ = on_host("wishes", {how_.ranks, 1}, DType::i32);
}

std::vector<ColumnSums::End> ColumnSums::ends_of(int rank, std::int64_t samples) const {
  std::vector<End> ends;
  std::size_t aside = 0;
  for (const ColumnRange& subtree :
       how_.columns.subtrees(how_.columns.of_rank(rank, how_.ranks), samples)) {
    std::vector<ColumnRange> columns;
    for (const std::int64_t c : how_.columns_of(rank, samples)) {
      if (c >= subtree.first && c < subtree.end()) columns.push_back({c, 1});
    }
    const auto joins = how_.columns.joins(columns);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const auto now =
          to_size(std::ranges::count(joins, c, [](const auto& join) { return join.after; }));
      ends.push_back({.aside = aside, .joins = now, .stays = true});
      aside += 1 - now;
    }
  }
  if (!ends.empty()) ends.back().stays = false;
  return ends;
}

ColumnSums::Exchange ColumnSums::exchange_of(std::int64_t samples) const {
  Exchange exchange;
  for (int r = 0; r < how_.ranks; ++r) {
    exchange.push_back(how_.columns.subtrees(how_.columns.of_rank(r, how_.ranks), samples));
  }
  return exchange;
}

std::string ColumnSums::name_of(const End& end, int set) const {
  if (end.does_nothing()) return "";
  return sets_.name(
      fmt::format("end_column.{}.{}{}", end.aside, end.joins, end.stays ? ".aside" : ""), set);
}

std::vector<std::string> ColumnSums::column_ends(int rank, std::int64_t samples, int set) const {
  std::vector<std::string> names;
  for (const End& end : ends_of(rank, samples)) names.push_back(name_of(end, set));
  return names;
}

std::vector<std::string> ColumnSums::all_column_ends(int set) const {
  std::vector<std::string> names;
  for (const End& end : ends_) names.push_back(name_of(end, set));
  return names;
}

std::string ColumnSums::exchange(std::int64_t samples, int set) const {
  if (how_.ranks == 1) return "";
  const auto found = std::ranges::find(exchanges_, exchange_of(samples));
  check(found != exchanges_.end(), "no exchange for {} samples", samples);
  return sets_.name(fmt::format("exchange_gradients.{}", found - exchanges_.begin()), set);
}

void ColumnSums::record(ProgramSet& set) const {
  for (int s = 0; s < static_cast<int>(sets_.gradients.size()); ++s) {
    for (const End& end : ends_) {
      ProgramBuilder pb(set, name_of(end, s));
      record_end(pb, end, s);
    }
    if (how_.ranks == 1) continue;
    for (std::size_t e = 0; e < exchanges_.size(); ++e) {
      ProgramBuilder pb(set, sets_.name(fmt::format("exchange_gradients.{}", e), s));
      record_exchange(pb, exchanges_[e], s);
    }
  }
  if (how_.ranks == 1) return;
  ProgramBuilder pb(set, kAgree);
  ops::all_gather(pb, kGroup, my_wish_, wishes_);
}

// A sum of two is the same in either order: what joins adds to the column in progress.
void ColumnSums::record_end(ProgramBuilder& pb, const End& end, int set) const {
  const std::vector<Buffer>& gradients = sets_.gradients[to_size(set)];
  for (std::size_t g = 0; g < gradients.size(); ++g) {
    each_bucket(pb.shape(gradients[g]).elements(), [&](std::int64_t first, std::int64_t count) {
      const Buffer column = flat_cut(pb, gradients[g], first, count);
      const Buffer sum = end.joins > 0 ? on_device(pb, column) : column;
      for (std::size_t j = 1; j <= end.joins; ++j) {
        const Buffer before = flat_cut(pb, aside(set)[end.aside - j][g], first, count);
        ops::add_into(pb, on_device(pb, before), sum);
      }
      if (end.stays) {
        copy_between(pb, sum, flat_cut(pb, aside(set)[end.aside - end.joins][g], first, count));
      } else if (!(sum == column)) {
        copy_between(pb, sum, column);
      }
    });
  }
}

void ColumnSums::record_exchange(ProgramBuilder& pb, const Exchange& exchange, int set) const {
  ops::all_gather(pb, kGroup, my_losses_, losses_);
  const std::vector<Buffer>& gradients = sets_.gradients[to_size(set)];
  const std::size_t own = exchange[to_size(how_.rank)].size();
  for (std::size_t g = 0; g < gradients.size(); ++g) {
    each_bucket(pb.shape(gradients[g]).elements(), [&](std::int64_t first, std::int64_t count) {
      // Those of the rank, in order, and the gradient last, where the result goes as well.
      std::vector<Buffer> sums;
      for (std::size_t place = 0; place + 1 < own; ++place) {
        sums.push_back(flat_cut(pb, aside(set)[place][g], first, count));
      }
      sums.push_back(flat_cut(pb, gradients[g], first, count));
      exchange_bucket(pb, exchange, sums);
    });
  }
}

void ColumnSums::exchange_bucket(ProgramBuilder& pb, const Exchange& exchange,
                                 std::span<const Buffer> sums) const {
  const Buffer result = sums.back();
  const std::int64_t count = pb.shape(result).elements();
  const std::int64_t ranks = how_.ranks, part = (count + ranks - 1) / ranks;
  std::size_t most = 1;  // subtrees of a rank
  for (const auto& subtrees : exchange) most = std::max(most, subtrees.size());
  const std::size_t own = exchange[to_size(how_.rank)].size();
  const DType dtype = pb.dtype(result);
  // Row r: a part of each sum, for rank r.
  const auto places = static_cast<std::int64_t>(most);
  const Buffer to = pb.temp("sums_sent", {ranks, places * part}, dtype, Role::gradient);
  const Buffer from = pb.temp("sums_received", {ranks, places * part}, dtype, Role::gradient);
  if (own < most || part * ranks != count) ops::fill(pb, to, 0);
  for (std::size_t s = 0; s < own; ++s) {
    if (most == 1) {  // parts lie behind each other
      copy_between(pb, sums[s], flat_cut(pb, to, 0, count));
      continue;
    }
    for (std::int64_t r = 0; r * part < count; ++r) {
      const std::int64_t elements = std::min(part, count - r * part);
      const std::int64_t place = (r * places + static_cast<std::int64_t>(s)) * part;
      copy_between(pb, flat_cut(pb, sums[s], r * part, elements),
                   flat_cut(pb, to, place, elements));
    }
  }
  ops::all_to_all(pb, kGroup, to, from);
  std::vector<ColumnRange> subtrees;
  std::vector<Buffer> pieces;
  for (std::size_t r = 0; r < exchange.size(); ++r) {
    for (std::size_t s = 0; s < exchange[r].size(); ++s) {
      subtrees.push_back(exchange[r][s]);
      const auto place = static_cast<std::int64_t>(r) * places + static_cast<std::int64_t>(s);
      pieces.push_back(flat_cut(pb, from, place * part, part));
    }
  }
  ops::tree_sum(pb, how_.columns, subtrees, pieces);
  const Buffer all = pb.temp("sums", {ranks, part}, dtype, Role::gradient);
  ops::all_gather(pb, kGroup, pieces.front(), all);
  copy_between(pb, flat_cut(pb, all, 0, count), result);
}

void ColumnSums::write_losses(Runner& runner, std::span<const double> losses) const {
  if (how_.ranks == 1) return;
  std::ranges::copy(losses, runner.view(my_losses_).as<double>());
}

double ColumnSums::step_loss(Runner& runner, std::span<const double> losses,
                             std::int64_t samples) const {
  std::vector<ColumnRange> columns;
  std::vector<double> sums;
  for (int r = 0; r < how_.ranks; ++r) {
    const std::vector<std::int64_t> own = how_.columns_of(r, samples);
    for (std::size_t i = 0; i < own.size(); ++i) {
      columns.push_back({own[i], 1});
      const std::size_t place = to_size(r) * to_size(most_columns_) + i;
      sums.push_back(how_.ranks == 1 ? losses[i] : runner.view(losses_).as<double>()[place]);
    }
  }
  check(!sums.empty(), "a step without samples");
  for (const auto& join : how_.columns.joins(columns)) sums[join.into] += sums[join.from];
  return sums.front();
}

void ColumnSums::write_wish(Runner& runner, std::uint32_t bits) const {
  runner.view(my_wish_).as<std::int32_t>()[0] = static_cast<std::int32_t>(bits);
}

std::uint32_t ColumnSums::agreed(Runner& runner) const {
  std::uint32_t all = 0;
  for (int r = 0; r < how_.ranks; ++r) {
    all |= static_cast<std::uint32_t>(runner.view(wishes_).as<std::int32_t>()[r]);
  }
  return all;
}

}  // namespace ballast
