#include "fit/search.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/to_size.h"
#include "fit/bounds.h"
#include "fit/fill.h"
#include "fit/fit.h"
#include "fit/neighbours.h"
#include "fit/tuning.h"

namespace ballast::fit {
namespace {

// The share of a found plan's time that another has to promise.
double worthwhile(const Job& job) {
  return job.recordings_are_short() || job.depth() == 0 ? 1 : tuning::kWorthLookingFor;
}

class Search {
 public:
  Search(const Request& request, NeedsCache& known)
      : request_(request),
        search_(heaviest(request)),
        known_(known),
        all_kinds_(request.job->kinds() > search_.job->kinds()) {}

  std::optional<PlannedRun> run() {
    if (auto fastest = look_at_fastest()) return fastest;
    if (!all_kinds_) return look();
    // Where the heaviest step fits the others do in all but odd cases, so that all kinds are
    // planned for the best policy only; in odd cases for every one that would be it.
    if (auto best = look()) {
      if (auto all = with_all_kinds(best->policy)) return all;
      best_.reset();
      tried_.clear();
      found_.clear();
      plans_all_kinds_ = true;
      return look();
    }
    return std::nullopt;
  }

 private:
  // The first candidate alone, where asking whether it may fit takes as long.
  std::optional<PlannedRun> look_at_fastest() {
    if (!request_.job->recordings_are_short() || request_.streamed_blocks) return std::nullopt;
    const auto lists = request_.job->candidates(request_.switches);
    if (lists.front().empty() || lists.front().front().streams()) return std::nullopt;
    begin_with(0);
    const MemoryPolicy& first = lists.front().front();
    if (too_heavy(first)) return std::nullopt;
    if (request_.job->depth() == 0 &&
        excess(request_, known_.needs_for(request_, first)).count > 0) {
      return std::nullopt;
    }
    return complete_if_fits(request_, known_.recording(request_, first));
  }

  struct Candidate {
    MemoryPolicy policy;
    double lower_bound_seconds = 0;  // no step takes less
    std::optional<NeedsLowerBound> needs;
    bool doubtful = false;  // it will hardly fit
  };

  // The optimizer's state goes to disk only where nothing else fits: reading and writing it takes
  // longer than all that the other policies trade.
  std::optional<PlannedRun> look() {
    begin_with(0);
    if (auto run = look_once()) return run;
    const int groups = max_disk_state_groups(search_, known_);
    if (groups > 0) {
      begin_with(groups);
      if (auto run = look_once()) return with_less_on_disk(std::move(*run));
    }
    return look_everywhere();
  }

  // Where there is any chance and the model is so small that every policy can be tried.
  std::optional<PlannedRun> look_everywhere() {
    const int groups = search_.job->group_count();
    if (!any_odds_ || groups > tuning::kMaxTinyModelGroups || request_.streamed_blocks)
      return std::nullopt;
    if (request_.switches.any()) return std::nullopt;
    if (!nearly_fits()) return std::nullopt;
    const bool disk = search_.job->may_keep_state_on_disk() && request_.budget.disk.count > 0;
    for (const MemoryPolicy& p : search_.job->every_policy(disk ? groups : 0)) {
      if (known_.exceeds_bound(search_, p) ||
          excess(search_, known_.needs_for(search_, p)).count > 0) {
        continue;
      }
      if (auto run = complete_if_fits(request_, record(request_, p))) return run;
    }
    return std::nullopt;
  }

  // What the lists leave out needs a little less than what they have, not half: thousands of
  // policies take seconds, and a refusal asks for them again with each change that it advises.
  bool nearly_fits() {
    const auto nearly = [](Bytes needed, Bytes allowed) {
      return needed.count <= allowed.count + allowed.count / 4;
    };
    const NeedsLowerBound needs = known_.needs_for(search_, closest_policy(search_, known_));
    return nearly(needs.device, search_.budget.gpu) && nearly(needs.host, search_.budget.host);
  }

  void begin_with(int disk_state_groups) {
    disk_state_groups_ = disk_state_groups;
    group_bytes_ = min_group_bytes(request_, disk_state_groups > 0);
    state_ = std::accumulate(group_bytes_.begin(), group_bytes_.end(), Bytes{});
    block_bytes_.reset();
    streams_.clear();
  }

  // The state of as few groups on disk as fits: memory that is left takes the others'.
  PlannedRun with_less_on_disk(PlannedRun run) {
    MemoryPolicy policy = run.policy;
    int low = 0, high = policy.disk_state_groups;  // fits with high, not with low
    while (high - low > 1) {
      policy.disk_state_groups = (low + high) / 2;
      if (!request_.streamed_blocks) policy.keep_groups(0);
      auto less = plan_of(policy, std::numeric_limits<double>::infinity());
      if (less && plans_all_kinds_) less = with_all_kinds(less->policy);
      if (less && less->seconds_per_step() < run.seconds_per_step()) {
        high = policy.disk_state_groups;
        run = std::move(*less);
      } else {
        low = policy.disk_state_groups;
      }
    }
    return run;
  }

  std::optional<PlannedRun> look_once() {
    const FitOdds c = fit_odds(search_, known_, disk_state_groups_);
    any_odds_ = any_odds_ || c != FitOdds::none;
    if (c == FitOdds::good) {
      for (const std::vector<MemoryPolicy>& list : search_.job->candidates(request_.switches)) {
        look_at(list);
        if (best_) break;
      }
      widen();
      keep_fewer_groups();
    }
    // Switches leave what was looked at.
    if (best_ || c == FitOdds::none || request_.switches.any()) return std::move(best_);
    const bool length_decides = c != FitOdds::slight;
    for (const MemoryPolicy& p : search_.job->last_resort(length_decides)) {
      look_at({p});
      if (best_) return std::move(best_);
    }
    return std::nullopt;
  }

  // The one that may be fastest comes first, so that few of the list are recorded whole, and those
  // that will hardly fit come last. What its step takes at least is known from others that compute
  // no more, then from a few blocks of it.
  void look_at(const std::vector<MemoryPolicy>& list) {
    std::vector<Candidate> open;
    for (MemoryPolicy candidate : list) {
      candidate.disk_state_groups = disk_state_groups_;
      auto policy = with_streamed_blocks(request_, std::move(candidate));
      if (!policy || too_heavy(*policy)) continue;
      if (std::ranges::find(tried_, *policy) != tried_.end()) continue;
      tried_.push_back(*policy);
      open.push_back(
          {.policy = std::move(*policy), .lower_bound_seconds = 0, .needs = {}, .doubtful = false});
    }
    while (!open.empty()) {
      const auto next = std::ranges::min_element(open, {}, [](const Candidate& c) {
        return std::pair(c.doubtful, c.lower_bound_seconds);
      });
      if (best_ && next->lower_bound_seconds >= worthwhile_ * best_seconds_) {
        open.erase(next);
        continue;
      }
      if (!next->needs) {
        if (!weigh(*next)) {
          if (auto fewer = with_less_in_host(next->policy)) {
            next->policy = std::move(*fewer);
          } else {
            open.erase(next);
          }
          continue;
        }
        for (Candidate& other : open) {
          if (other.needs || !computes_no_less(other.policy, next->policy)) continue;
          other.lower_bound_seconds =
              std::max(other.lower_bound_seconds, next->needs->compute_seconds);
        }
      }
      // More may be known by now than when it was weighed.
      const LowerBound lower_bound_seconds = lower_bound_of(*next);
      if (lower_bound_seconds.hopeless) {
        open.erase(next);
        continue;
      }
      if (lower_bound_seconds.step + lower_bound_seconds.update > next->lower_bound_seconds) {
        next->lower_bound_seconds = lower_bound_seconds.step + lower_bound_seconds.update;
        continue;
      }
      if (!next->doubtful && likely_fragmented(*next)) {
        next->doubtful = true;
        continue;
      }
      const MemoryPolicy chosen = std::move(next->policy);
      open.erase(next);
      consider(chosen, lower_bound_seconds.update);
    }
  }

  // Lists have few sizes of pieces of work, small ones where memory is short. Where computing
  // decides how long a step takes, those of the best plan become as large as fits, and groups that
  // stay make room for them. Larger pieces of another plan may be faster: of one with a slot more,
  // or of one whose blocks are computed or kept the other way.
  void widen() {
    if (!best_ || !computing_decides(best_->main_program())) return;
    for (const MemoryPolicy& p : neighbours(*search_.job, without_fill(best_->policy))) {
      const MemoryPolicy chunks =
          widest(p, &MemoryPolicy::chunk_tokens, search_.job->larger_chunks());
      const MemoryPolicy both =
          widest(chunks, &MemoryPolicy::heads_per_group, search_.job->larger_head_groups());
      take_instead(both);
      take_instead(chunks);
    }
    // Smaller ones leave room for groups that stay.
    MemoryPolicy fewer = without_fill(best_->policy);
    for (const std::int64_t heads : search_.job->larger_head_groups()) {
      if (!fewer.streams() || heads == 0 || fewer.heads_per_group != 0) continue;
      fewer.heads_per_group = heads;
      take_instead(fewer);
    }
  }

  // Groups that stay are read anew where experts change: where the step computes as long with fewer
  // of them, it is faster.
  void keep_fewer_groups() {
    if (search_.job->larger_chunks().empty()) return;  // it has no experts
    while (best_ && !plans_all_kinds_ && fills(best_->policy) &&
           best_->policy.stream().resident_groups > 0) {
      double loading = 0;
      for (const StepProgram& s : best_->steps[0]) {
        if (s.name.starts_with("load")) loading += s.runs * best_->seconds_of(s.name);
      }
      if (best_seconds_ - loading > worthwhile_ * best_seconds_) return;
      MemoryPolicy fewer = best_->policy;
      fewer.streaming->resident_groups /= 2;
      auto run = complete_if_fits(search_, record(search_, fewer));
      if (!run || run->seconds_per_step() >= best_seconds_) return;
      best_seconds_ = run->seconds_per_step();
      best_ = std::move(run);
    }
  }

  MemoryPolicy without_fill(MemoryPolicy p) const {
    if (!request_.streamed_blocks) p.keep_groups(0);
    p.kept_blocks = 0;
    return p;
  }

  static bool computing_decides(const PredictedTime& step) {
    return step.busy[to_size(Lane::compute)] >= tuning::kComputingDecides * step.seconds;
  }

  // With the first size larger than its own that fits by live bytes. sizes: the largest first.
  MemoryPolicy widest(const MemoryPolicy& p, std::int64_t MemoryPolicy::*size,
                      const std::vector<std::int64_t>& sizes) {
    for (const std::int64_t n : sizes) {
      if (p.*size == 0 || (n != 0 && n <= p.*size)) break;
      Candidate c = {.policy = p, .lower_bound_seconds = 0, .needs = {}, .doubtful = false};
      c.policy.*size = n;
      if (weigh(c)) return c.policy;
    }
    return p;
  }

  // Whether the best plan is one of this policy now.
  bool take_instead(const MemoryPolicy& p) {
    if (std::ranges::find(tried_, p) != tried_.end()) return false;
    tried_.push_back(p);
    Candidate c = {.policy = p, .lower_bound_seconds = 0, .needs = {}, .doubtful = false};
    if (!weigh(c)) return false;
    const LowerBound lower_bound_seconds = lower_bound_of(c);
    const double before = best_seconds_;
    if (lower_bound_seconds.step + lower_bound_seconds.update > worthwhile_ * before) return false;
    consider(p, lower_bound_seconds.update);
    return best_seconds_ < before;
  }

  // Whether there is no place for the weights, whatever else is needed.
  bool too_heavy(const MemoryPolicy& p) const {
    if (!p.streams()) return state_ > request_.budget.gpu;
    const Bytes gpu = request_.budget.gpu, host = request_.budget.host;  // which may be no limits
    if (p.streaming->stream_from != StreamSource::host) return false;
    if (request_.job->stays_in_host_memory(p)) return state_ > host;
    return state_ > gpu && state_ - gpu > host;
  }

  // Whether groups that do not have to stream stay.
  bool fills(const MemoryPolicy& p) const {
    return p.streams() && !request_.streamed_blocks && search_.job->may_fill();
  }

  // False: it does not fit. Recording a few blocks takes milliseconds, recording and packing all of
  // them a hundred: most candidates fall here.
  bool weigh(Candidate& c) {
    if (known_.exceeds_bound(search_, c.policy)) return false;
    c.needs = known_.needs_for(search_, c.policy);
    const Bytes block = fills(c.policy) ? block_bytes(c.policy) : Bytes{};
    return missing_lower_bound(search_, group_bytes_, c.policy, *c.needs, block).count == 0;
  }

  // Where host memory alone is short of what blocks have there: some of them keep it.
  std::optional<MemoryPolicy> with_less_in_host(MemoryPolicy p) {
    const Job& job = *search_.job;
    if (!job.others_need_less_host() || !job.may_keep_blocks(p, request_.switches)) {
      return std::nullopt;
    }
    if (known_.needs_for(search_, p).device > request_.budget.gpu) return std::nullopt;
    int low = p.kept_blocks, high = static_cast<int>(job.max_kept_blocks());
    while (high - low > 1) {
      p.kept_blocks = (low + high) / 2;
      const NeedsLowerBound needs = known_.needs_for(search_, p);
      if (excess(search_, needs).count == 0) return p;
      (needs.device > request_.budget.gpu ? high : low) = p.kept_blocks;
    }
    return std::nullopt;
  }

  // Whether places of a few blocks lose more than live bytes leave of the device: that recording
  // and packing all of them will show that it does not fit, in all but odd cases.
  bool likely_fragmented(const Candidate& c) {
    const Bytes gpu = request_.budget.gpu, room = gpu - std::min(c.needs->device, gpu);
    const bool ample = room.count > gpu.count / 8;  // places lose less
    return fills(c.policy) && !ample && known_.packing_loss(search_, c.policy) > room;
  }

  // What a block that stays takes of the device with all that full training keeps with it: the same
  // under every policy. Others take their weights, which are known.
  Bytes block_bytes(const MemoryPolicy& lean) {
    const Job& job = *search_.job;
    if (job.trained() != Trained::weights || job.group_count() <= tuning::kMaxTinyModelGroups)
      return {};
    if (job.depth() != job.blocks()) return {};  // they differ
    if (!block_bytes_) {
      MemoryPolicy fuller = lean;
      fuller.keep_groups(3);  // the head and two blocks
      const Bytes with = known_.needs_of_few_blocks(search_, fuller).device;
      const Bytes without = known_.needs_of_few_blocks(search_, lean).device;
      block_bytes_ = with > without ? Bytes{(with - without).count / 2} : Bytes{};
    }
    return *block_bytes_;
  }

  // What full training's plans have shown of groups that stream.
  struct FoundStream {
    double bytes = 0;   // of these groups
    double update = 0;  // seconds
    double stall = 0;   // seconds for which a step computes nothing
  };
  struct LowerBound {
    double step = 0, update = 0;
    bool hopeless = false;  // a plan that is there is no slower in any case
  };
  LowerBound lower_bound_of(const Candidate& c) {
    if (!fills(c.policy)) return {seconds_lower_bound(*c.needs, request_.profile)};
    const MinStreamed streamed =
        min_streamed(request_, group_bytes_, c.policy, *c.needs, block_bytes(c.policy));
    const double share = static_cast<double>(streamed.bytes.count) /
                         static_cast<double>(std::max<std::uint64_t>(1, state_.count));
    const double of_a_block = c.needs->of_a_block.seconds(request_.profile);
    const double transfer = of_a_block > 0 ? static_cast<double>(streamed.blocks) * of_a_block
                                           : share * c.needs->transfers.seconds(request_.profile);
    const bool hopeless = std::ranges::any_of(found_, [&](const MemoryPolicy& q) {
      return streamed.resident <= q.stream().resident_groups && no_faster(c.policy, q);
    });
    const double computing = c.needs->compute_seconds + min_stall_seconds(streamed.bytes);
    return {std::max(computing, transfer), min_update_seconds(streamed.bytes), hopeless};
  }

  // In full training the update brings what does not stay from host memory. Against that of a plan
  // which is there it takes as much longer as more has to come, or no less for each byte.
  double min_update_seconds(Bytes streamed) const {
    if (request_.job->trained() != Trained::weights || !request_.job->records_update()) return 0;
    const auto bytes = static_cast<double>(streamed.count);
    double least = bytes / request_.profile.upload_bandwidth;
    for (const FoundStream& found : streams_) {
      const double more = (bytes - found.bytes) / request_.profile.upload_bandwidth;
      least = std::max(least, more > 0 ? found.update + more : found.update * bytes / found.bytes);
    }
    return least;
  }

  // Where its step waits for what comes and goes, it does so however a block is computed: at least
  // for most of what any plan that is there waits for each byte.
  double min_stall_seconds(Bytes streamed) const {
    double least = std::numeric_limits<double>::infinity();
    for (const FoundStream& found : streams_) least = std::min(least, found.stall / found.bytes);
    return streams_.empty() ? 0
                            : tuning::kOfKnownStall * least * static_cast<double>(streamed.count);
  }

  void learn_streaming(const PlannedRun& run) {
    if (request_.job->trained() != Trained::weights || !fills(run.policy)) return;
    const auto all = static_cast<int>(group_bytes_.size());
    Bytes streamed;
    for (int g = 0; g < all; ++g) {
      if (evenly_chosen(g, all, run.policy.stream().resident_groups)) continue;
      streamed += group_bytes_[to_size(g)];
    }
    double seconds = 0;
    for (std::size_t p = 0; p < run.times.size(); ++p) {
      const std::string& name = run.set.programs[p].name;
      if (name == "grad_norm" || name == "update") seconds += run.times[p].seconds;
    }
    streams_.push_back({.bytes = static_cast<double>(std::max<std::uint64_t>(1, streamed.count)),
                        .update = seconds,
                        .stall = stall_of(run)});
  }

  // Of the programs that compute a step.
  static double stall_of(const PlannedRun& run) {
    double seconds = 0;
    for (const StepProgram& step : run.steps[0]) {
      if (!step.computes) continue;
      const auto p = to_size(run.set.program_index(step.name));
      seconds += step.runs * run.times[p].exposed_stall;
    }
    return seconds;
  }

  // seconds: no plan whose step takes longer is wanted.
  std::optional<PlannedRun> plan_of(const MemoryPolicy& policy, double seconds) {
    return fills(policy) ? fill_with_groups(search_, policy, known_, seconds)
                         : complete_if_fits(search_, known_.recording(search_, policy));
  }

  void consider(const MemoryPolicy& policy, double update) {
    const double most = best_ ? best_seconds_ - update : std::numeric_limits<double>::infinity();
    std::optional<PlannedRun> run = plan_of(policy, most);
    if (!run) return;
    if (search_.job->may_keep_blocks(policy, request_.switches)) {
      run = fill_with_activations(search_, std::move(*run));
    }
    if (!plans_all_kinds_) found_.push_back(run->policy);
    learn_streaming(*run);
    const double seconds = run->seconds_per_step();
    if (best_ && best_seconds_ <= seconds) return;
    if (plans_all_kinds_) {
      run = with_all_kinds(run->policy);
      if (!run) return;
    }
    best_seconds_ = seconds;
    best_ = std::move(run);
  }

  // With as many groups less as the recordings of the other kinds take room.
  std::optional<PlannedRun> with_all_kinds(MemoryPolicy policy) const {
    while (true) {
      Recording recorded = record(request_, policy);
      if (excess(request_, needs_lower_bound(request_, recorded)).count == 0) {
        if (auto run = complete_if_fits(request_, std::move(recorded))) return run;
      }
      if (!fills(policy) || policy.streaming->resident_groups == 0) return std::nullopt;
      --policy.streaming->resident_groups;
    }
  }

  const Request& request_;
  const Request search_;  // with the heaviest step only
  NeedsCache& known_;
  const bool all_kinds_;
  const double worthwhile_ = worthwhile(*request_.job);
  int disk_state_groups_ = 0;  // of the policies at hand
  std::vector<Bytes> group_bytes_;
  Bytes state_;  // of all weights, at least
  std::optional<Bytes> block_bytes_;
  bool plans_all_kinds_ = false, any_odds_ = false;
  std::vector<MemoryPolicy> tried_, found_;  // candidates so far; plans, filled up
  std::vector<FoundStream> streams_;
  std::optional<PlannedRun> best_;
  double best_seconds_ = 0;  // of the heaviest step
};

}  // namespace

std::optional<PlannedRun> search_plan(const Request& request, NeedsCache& known) {
  return Search(request, known).run();
}

}  // namespace ballast::fit
