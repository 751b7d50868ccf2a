#include <algorithm>
#include <cmath>
#include <iterator>
#include <unordered_map>

#include "core/to_size.h"
#include "plan/display_names.h"
#include "report/html_text.h"
#include "report/json_text.h"
#include "report/page/plan_page.h"
#include "report/plan_map.h"

namespace ballast {
namespace {

constexpr double kTicks = 1e6;  // of the page's clock in a program

// Numbers of shapes stand side by side in one string, in the base that JavaScript reads quickest
// among the short ones.
void put_number(std::string& out, std::uint64_t value) {
  char text[14];
  char* at = std::end(text);
  do {
    *--at = "0123456789abcdefghijklmnopqrstuvwxyz"[value % 36];
    value /= 36;
  } while (value > 0);
  if (!out.empty()) out += ' ';
  out.append(at, std::end(text));
}

// Most names differ in the number of their block only: a table keeps the rest once, with a
// character that no name has where the number was.
class NameTable {
 public:
  void put(std::string& out, std::string_view name) {
    std::size_t begin = name.size(), end = name.size();
    std::uint64_t number = 0;
    for (std::size_t at = name.find('.'); at != name.npos; at = name.find('.', at + 1)) {
      const std::size_t stop = std::min(name.find('.', at + 1), name.size());
      const std::string_view part = name.substr(at + 1, stop - at - 1);
      if (part.empty() || part.size() > 9 || part.find_first_not_of("0123456789") != part.npos ||
          (part.size() > 1 && part[0] == '0'))
        continue;
      begin = at + 1;
      end = stop;
      for (const char c : part) number = number * 10 + static_cast<std::uint64_t>(c - '0');
      break;
    }
    std::string rest(name.substr(0, begin));
    if (end > begin) rest += '\x01';
    rest += name.substr(end);
    const auto [at, added] = ids_.try_emplace(std::move(rest), ids_.size());
    if (added) all_.push_back(&at->first);
    put_number(out, at->second);
    put_number(out, number);
  }
  std::string json() const {
    std::string out = "[";
    for (const std::string* name : all_) {
      if (out.size() > 1) out += ',';
      put_json_text(out, *name);
    }
    return out + "]";
  }

 private:
  std::unordered_map<std::string, std::size_t> ids_;
  std::vector<const std::string*> all_;  // by id
};

void put_text_field(std::string& out, std::string_view key, std::string_view value) {
  put_json_text(out, key);
  out += ':';
  put_json_text(out, value);
  out += ',';
}

void put_count_field(std::string& out, std::string_view key, std::uint64_t value) {
  put_json_text(out, key);
  fmt::format_to(std::back_inserter(out), ":{},", value);
}

// Memory below an arena, from the bottom of its map up.
struct Band {
  std::string name;
  Bytes bytes;
};

std::vector<Band> bands_of(const MapRequest& r, Tier tier) {
  std::vector<Band> all;
  // On the CPU the RAM budget bounds both arenas.
  if (tier == Tier::host && r.title.shared_ram) {
    all.push_back({std::string(memory_name(Tier::device, true)),
                   r.plan.peak_of(Tier::device) + sum_lines(r.lines, Tier::device)});
  }
  for (const ProcessLine& l : r.lines) {
    if (l.tier == tier && l.bytes.count > 0) all.push_back({l.name, l.bytes});
  }
  return all;
}

Bytes sum_of(const std::vector<Band>& bands) {
  Bytes sum;
  for (const Band& b : bands) sum += b.bytes;
  return sum;
}

// One program for each phase, the longest, and wherever else a peak is.
std::vector<int> drawn_programs(const MapRequest& r) {
  const auto seconds = [&](int p) {
    return to_size(p) < r.times.size() ? r.times[to_size(p)].seconds : 0;
  };
  const auto phase = [&](int p) { return phase_name(r.set.programs[to_size(p)].name); };
  std::vector<int> all;
  for (int p = 0; p < static_cast<int>(r.set.programs.size()); ++p) {
    if (r.set.programs[to_size(p)].instructions.empty()) continue;
    const auto same = std::ranges::find_if(all, [&](int q) { return phase(q) == phase(p); });
    if (same == all.end()) {
      all.push_back(p);
    } else if (seconds(p) > seconds(*same)) {
      *same = p;
    }
  }
  for (const Tier t : kTiers) {
    const auto has_peak = [&](int p) {
      return r.plan.programs[to_size(p)].tier(t).peak == r.plan.peak_of(t);
    };
    if (std::ranges::any_of(all, has_peak)) continue;
    for (int p = 0; p < static_cast<int>(r.set.programs.size()); ++p) {
      if (r.set.programs[to_size(p)].instructions.empty() || !has_peak(p)) continue;
      all.push_back(p);
      break;
    }
  }
  std::ranges::sort(all);
  return all;
}

// "step", and "step 1" where two of that phase are drawn.
std::string drawn_name(const MapRequest& r, const std::vector<int>& drawn, int program) {
  const std::string_view name = r.set.programs[to_size(program)].name;
  std::string text(phase_name(name));
  const auto same = std::ranges::count_if(drawn, [&](int p) {
    return phase_name(r.set.programs[to_size(p)].name) == phase_name(name);
  });
  if (const std::size_t dot = name.find('.'); same > 1 && dot != name.npos) {
    text += ' ';
    text += name.substr(dot + 1);
    std::ranges::replace(text, '.', ' ');
  }
  return text;
}

void put_tier(std::string& out, const MapRequest& r, const ProgramMap& map, Tier tier,
              NameTable& names) {
  const TierMap& t = map.tiers[to_size(tier)];
  const auto& code = r.set.programs[to_size(map.program)].instructions;
  const double tick = map.seconds > 0 ? kTicks / map.seconds : 0;
  const auto ticks = [&](double s) { return static_cast<std::uint64_t>(std::llround(s * tick)); };
  out += '{';
  put_count_field(out, "peak", r.plan.programs[to_size(map.program)].tier(tier).peak.count);
  put_count_field(out, "live", t.live);
  put_count_field(out, "hidden", t.hidden);
  put_text_field(out, "at", code.empty() ? "" : instruction_text(code[t.live_at].name));
  double at = 0;  // in the map of times, where a buffer that lives then has begun
  for (const MapBlock& b : t.blocks) {
    if (!b.stays && b.first <= t.live_at && t.live_at <= b.last) at = std::max(at, b.begin);
  }
  put_count_field(out, "when", ticks(at));
  std::string shapes;
  std::uint64_t before = 0;
  for (const MapBlock& b : t.blocks) {
    const std::uint64_t begin = ticks(b.begin);
    put_number(shapes, begin - std::min(begin, before));
    put_number(shapes, ticks(b.end) - begin);
    put_number(shapes, b.offset);
    put_number(shapes, b.extent);
    put_number(shapes, b.stays ? b.extent - b.bytes : 0);
    put_number(shapes, static_cast<std::uint64_t>(b.role) * 2 + (b.stays ? 1 : 0));
    put_number(shapes, b.count);
    names.put(shapes, b.name);
    names.put(shapes, b.stays ? std::string_view() : code[b.first].name);
    names.put(shapes, b.stays ? std::string_view() : code[b.last].name);
    before = begin;
  }
  put_json_text(out, "blocks");
  out += ':';
  put_json_text(out, shapes);
  out += '}';
}

void put_bars(std::string& out, const ProgramMap& map, NameTable& names) {
  const double tick = map.seconds > 0 ? kTicks / map.seconds : 0;
  std::string shapes;
  std::uint64_t before = 0;
  for (const MapBar& b : map.bars) {
    const auto begin = static_cast<std::uint64_t>(std::llround(b.begin * tick));
    const auto end = static_cast<std::uint64_t>(std::llround(b.end * tick));
    put_number(shapes, begin - std::min(begin, before));
    put_number(shapes, end - std::min(begin, end));
    put_number(shapes, static_cast<std::uint64_t>(b.lane));
    put_number(shapes, b.count);
    names.put(shapes, b.name);
    before = begin;
  }
  put_json_text(out, "bars");
  out += ':';
  put_json_text(out, shapes);
}

// What adds up to the peak of a kind of memory, in bytes.
std::string sums_of(const MapRequest& r) {
  std::string out;
  for (const Tier tier : kTiers) {
    const std::vector<Band> bands = bands_of(r, tier);
    const Bytes peak = r.plan.peak_of(tier);
    if (peak.count == 0 && bands.empty()) continue;
    const auto use = std::ranges::find_if(
        r.plan.programs, [&](const ProgramUse& u) { return u.tier(tier).peak == peak; });
    const auto row = [&](std::string_view name, Bytes bytes) {
      out += fmt::format("<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
                         html(name), bytes, bytes.count);
    };
    out += fmt::format(
        "<table class=\"sum\"><caption>{}{}</caption>\n<thead><tr><th>what</th><th "
        "class=\"n\">size</th><th class=\"n\">bytes</th></tr></thead><tbody>\n",
        html(memory_name(tier, r.title.shared_ram)),
        use == r.plan.programs.end() || use->tier(tier).at.empty()
            ? ""
            : ", " + html(moment_text(use->name, use->tier(tier).at)));
    Bytes named;
    if (use != r.plan.programs.end()) {
      for (const auto& [role, bytes] : sorted_roles(use->tier(tier).roles)) {
        row(display_name(role), bytes);
        named += bytes;
      }
    }
    if (peak > named) row("space between buffers", peak - named);
    for (const Band& b : bands) row(b.name, b.bytes);
    const Bytes all = peak + sum_of(bands);
    out += fmt::format(
        "</tbody><tfoot><tr><td>planned</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td></tr></tfoot></table>\n",
        all, all.count);
  }
  return out;
}

}  // namespace

bool MappedPlan::fits() const {
  const auto& [device, host, disk] = needed;
  return device <= budget.gpu && (shared_ram ? device + host : host) <= budget.host &&
         disk <= budget.disk;
}

MappedPlan map_plan(const MapRequest& r) {
  MappedPlan plan = {.label = r.label,
                     .verdict = r.verdict,
                     .policy = r.policy,
                     .effect = {},
                     .json = "{",
                     .sums = sums_of(r),
                     .budget = r.title.budget,
                     .shared_ram = r.title.shared_ram,
                     .needed = {},
                     .step_seconds = r.step_seconds};
  std::string& out = plan.json;
  put_text_field(out, "label", r.label);
  put_text_field(out, "verdict", r.verdict);
  put_json_text(out, "tiers");
  out += ":[";
  for (const Tier t : kTiers) {
    plan.needed[to_size(t)] = r.plan.peak_of(t) + sum_lines(r.lines, t);
    const std::vector<Band> bands = bands_of(r, t);
    out += t == Tier::device ? "{" : ",{";
    put_text_field(out, "name", memory_name(t, r.title.shared_ram));
    put_count_field(out, "arena", r.plan.peak_of(t).count);
    put_count_field(out, "planned", (r.plan.peak_of(t) + sum_of(bands)).count);
    put_count_field(out, "allowed", allowed_of(r.title.budget, t).count);
    out += "\"below\":[";
    for (std::size_t b = 0; b < bands.size(); ++b) {
      out += b == 0 ? "[" : ",[";
      put_json_text(out, bands[b].name);
      out += fmt::format(",{}]", bands[b].bytes.count);
    }
    out += "]}";
  }
  out += "],\"phases\":[";
  const std::vector<int> drawn = drawn_programs(r);
  std::size_t instructions = 1;  // shares of the shapes
  for (const int p : drawn) instructions += r.set.programs[to_size(p)].instructions.size();
  NameTable names;
  for (const int p : drawn) {
    const auto& program = r.set.programs[to_size(p)];
    Timeline timeline;
    if (r.timeline) timeline = r.timeline(p);
    const bool timed = !timeline.instructions.empty();
    if (!timed) timeline = even_timeline(program.instructions.size());
    ProgramMap map = map_program(r.set, r.plan, p, timeline);
    const auto share = [&](std::size_t limit) {
      return std::max<std::size_t>(limit * program.instructions.size() / instructions, 200);
    };
    simplify(map, share(r.limits.blocks), share(r.limits.bars));
    out += p == drawn.front() ? "{" : ",{";
    put_text_field(out, "name", drawn_name(r, drawn, p));
    out += "\"seconds\":";
    put_json_number(out, timed ? map.seconds : 0);
    out += ",\"tiers\":[";
    for (const Tier t : kTiers) {
      if (t != Tier::device) out += ',';
      put_tier(out, r, map, t, names);
    }
    out += "],";
    put_bars(out, map, names);
    out += '}';
  }
  out += "],\"names\":" + names.json() + "}";
  return plan;
}

}  // namespace ballast
