#include "report/run_info.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/to_size.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

Json numbers_json(const MemoryNumbers& m) {
  Json j = Json::object();
  MemoryNumbers::each(m, [&](const char* name, Bytes b) { j[name] = b.count; });
  return j;
}

Json pairs_json(const RunInfo::Pairs& pairs) {
  Json j = Json::array();
  for (const auto& [name, value] : pairs) j.push_back({name, value});
  return j;
}

// Reading: whatever has another type than expected reads as nothing.
Json member(const Json& j, const char* name) {
  return j.is_object() && j.contains(name) ? j.at(name) : Json();
}
std::string text_of(const Json& j) { return j.is_string() ? j.get<std::string>() : std::string(); }
std::uint64_t count_of(const Json& j) {
  return j.is_number_unsigned() ? j.get<std::uint64_t>() : 0;
}

MemoryNumbers numbers_of(const Json& j) {
  MemoryNumbers m;
  MemoryNumbers::each(m, [&](const char* name, Bytes& b) { b = {count_of(member(j, name))}; });
  return m;
}

RunInfo::Pairs pairs_of(const Json& j) {
  RunInfo::Pairs pairs;
  if (!j.is_array()) return pairs;
  for (const Json& p : j) {
    if (p.is_array() && p.size() == 2) pairs.emplace_back(text_of(p[0]), text_of(p[1]));
  }
  return pairs;
}

void sort_by_size(std::vector<std::pair<std::string, Bytes>>& roles) {
  std::ranges::stable_sort(roles, [](const auto& a, const auto& b) { return a.second > b.second; });
}

}  // namespace

std::vector<PlanRow> plan_rows(const MemoryPlan& plan, std::span<const ProcessLine> lines) {
  std::vector<PlanRow> rows;
  for (const ProgramUse& p : plan.programs) {
    for (const Tier t : kTiers) {
      const TierUse& use = p.tier(t);
      if (use.peak.count == 0) continue;
      PlanRow row = {p.name, std::string(name_of(t)), use.peak, use.lower_bound, {}};
      for (int r = 0; r < kRoles; ++r) {
        const Bytes b = use.roles[to_size(r)];
        if (b.count > 0) row.roles.emplace_back(name_of(static_cast<Role>(r)), b);
      }
      sort_by_size(row.roles);
      rows.push_back(std::move(row));
    }
  }
  for (const Tier t : kTiers) {
    PlanRow row = {"outside the buffers", std::string(name_of(t)), {}, {}, {}};
    for (const ProcessLine& l : lines) {
      if (l.tier != t) continue;
      row.peak += l.bytes;
      row.roles.emplace_back(l.name, l.bytes);
    }
    if (row.roles.empty()) continue;
    row.lower_bound = row.peak;
    sort_by_size(row.roles);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string to_json(const RunInfo& info) {
  Json j = {{"title", info.title},
            {"command", info.command},
            {"started", info.started},
            {"total_steps", info.total_steps},
            {"summary", pairs_json(info.summary)},
            {"environment", pairs_json(info.environment)},
            {"planned", numbers_json(info.planned)},
            {"allowed", numbers_json(info.allowed)}};
  j["plan"] = Json::array();
  for (const PlanRow& row : info.plan) {
    Json roles = Json::array();
    for (const auto& [name, bytes] : row.roles) roles.push_back(Json::array({name, bytes.count}));
    j["plan"].push_back({{"phase", row.phase},
                         {"tier", row.tier},
                         {"peak", row.peak.count},
                         {"lower_bound", row.lower_bound.count},
                         {"roles", std::move(roles)}});
  }
  j["config"] = info.config;
  j["notes"] = info.notes;
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RunInfo run_info_from_json(std::string_view json) {
  const Json j = Json::parse(json, nullptr, false);
  RunInfo info;
  info.title = text_of(member(j, "title"));
  info.command = text_of(member(j, "command"));
  info.started = text_of(member(j, "started"));
  info.total_steps = static_cast<std::int64_t>(count_of(member(j, "total_steps")));
  info.summary = pairs_of(member(j, "summary"));
  info.environment = pairs_of(member(j, "environment"));
  info.planned = numbers_of(member(j, "planned"));
  info.allowed = numbers_of(member(j, "allowed"));
  if (const Json plan = member(j, "plan"); plan.is_array()) {
    for (const Json& p : plan) {
      PlanRow row = {text_of(member(p, "phase")),
                     text_of(member(p, "tier")),
                     {count_of(member(p, "peak"))},
                     {count_of(member(p, "lower_bound"))},
                     {}};
      if (const Json roles = member(p, "roles"); roles.is_array()) {
        for (const Json& r : roles) {
          if (r.is_array() && r.size() == 2)
            row.roles.emplace_back(text_of(r[0]), Bytes{count_of(r[1])});
        }
      }
      info.plan.push_back(std::move(row));
    }
  }
  info.config = text_of(member(j, "config"));
  if (const Json notes = member(j, "notes"); notes.is_array()) {
    for (const Json& n : notes) info.notes.push_back(text_of(n));
  }
  return info;
}

std::string iso_time(double unix_seconds) {
  constexpr double kYear1 = -62135596800.0, kYear10000 = 253402300800.0;
  if (!(unix_seconds >= kYear1 && unix_seconds < kYear10000)) return "unknown";
  const auto whole = static_cast<std::time_t>(unix_seconds);
  std::tm utc = {};
  if (::gmtime_r(&whole, &utc) == nullptr) return "unknown";
  std::string text(24, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc));
  return text;
}

}  // namespace ballast
