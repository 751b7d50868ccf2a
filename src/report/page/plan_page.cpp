#include "report/page/plan_page.h"

#include <algorithm>
#include <cmath>

#include "core/sha256.h"
#include "core/to_size.h"
#include "plan/display_names.h"
#include "report/html_text.h"
#include "report/json_text.h"

namespace ballast {
namespace {

std::string step_seconds_text(double seconds) {
  if (seconds <= 0) return "-";
  return seconds >= 1 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.1f} ms", seconds * 1e3);
}

// Of RAM on the CPU the compute share is part.
Bytes shown_need(const MappedPlan& p, Tier t) {
  const Bytes own = p.needed[to_size(t)];
  return t == Tier::host && p.shared_ram ? own + p.needed[to_size(Tier::device)] : own;
}

constexpr Bytes kAnything{1ull << 59};  // budgets from here on are no limit

std::string totals_html(const MappedPlan& p) {
  std::string out =
      "<table class=\"totals\">\n<thead><tr><th>memory</th><th class=\"n\">planned</th><th "
      "class=\"n\">bytes</th><th class=\"n\">allowed</th><th class=\"n\">free</th></tr></thead>"
      "<tbody>\n";
  for (const Tier t : kTiers) {
    const Bytes needed = shown_need(p, t), allowed = allowed_of(p.budget, t);
    if (needed.count == 0 && t == Tier::disk) continue;
    const bool over = needed > allowed;
    out += fmt::format(
        "<tr{}><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td></tr>\n",
        over ? " class=\"over\"" : "", html(memory_name(t, p.shared_ram)), needed, needed.count,
        allowed >= kAnything ? "no limit" : to_string(allowed),
        over                   ? to_string(needed - allowed) + " too much"
        : allowed >= kAnything ? "-"
                               : to_string(allowed - needed));
  }
  return out + "</tbody></table>\n";
}

// A plan beside the first: what it is, what it needs, a button that shows its map.
std::string others_html(std::span<const MappedPlan> plans, std::string_view heading) {
  std::string out = fmt::format(
      "<h2>{}</h2>\n<div class=\"scroll\"><table class=\"others\"><thead><tr><th>plan</th><th>"
      "</th><th class=\"n\">{}</th><th class=\"n\">RAM</th><th class=\"n\">step</th><th></th>"
      "</tr></thead><tbody>\n",
      html(heading), plans[0].shared_ram ? "compute share" : "GPU memory");
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const MappedPlan& p = plans[i];
    out += fmt::format(
        "<tr{}><td><code>{}</code></td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
        p.fits() ? "" : " class=\"over\"", html(p.label), html(p.effect),
        shown_need(p, Tier::device), shown_need(p, Tier::host), step_seconds_text(p.step_seconds),
        i == 0 ? std::string()
               : fmt::format("<button type=\"button\" data-plan=\"{}\" aria-pressed=\"false\">show"
                             "</button>",
                             i));
  }
  return out + "</tbody></table></div>\n";
}

// "1.200 GB less GPU memory"
void add_difference(std::string& text, Bytes before, Bytes after, std::string_view memory) {
  if (before == after) return;
  if (!text.empty()) text += ", ";
  text += before < after ? fmt::format("{} more {}", after - before, memory)
                         : fmt::format("{} less {}", before - after, memory);
}

}  // namespace

std::string plans_json(std::span<const MappedPlan> plans) {
  std::string out = "{\"roles\":[";
  for (int r = 0; r < kRoles; ++r) {
    if (r > 0) out += ',';
    put_json_text(out, display_name(static_cast<Role>(r)));
  }
  out += "],\"lanes\":[";
  for (int l = 0; l < kLaneCount; ++l) {
    if (l > 0) out += ',';
    put_json_text(out, name_of(static_cast<Lane>(l)));
  }
  out += "],\"plans\":[";
  for (const MappedPlan& p : plans) {
    if (&p != &plans[0]) out += ',';
    for (const char c : p.json) {
      if (c == '<') {
        out += "\\u003c";
      } else {
        out += c;
      }
    }
  }
  return out + "]}";
}

std::string difference_text(const MappedPlan& first, const MappedPlan& other) {
  std::string text;
  if (first.step_seconds > 0 && other.step_seconds > 0) {
    const double percent = (other.step_seconds / first.step_seconds - 1) * 100;
    if (std::abs(percent) >= 0.5) {
      text = fmt::format("step {:.0f} % {}", std::abs(percent), percent < 0 ? "faster" : "slower");
    } else {
      text = "same step time";
    }
  }
  if (!first.shared_ram) {
    add_difference(text, shown_need(first, Tier::device), shown_need(other, Tier::device),
                   memory_name(Tier::device));
  }
  add_difference(text, shown_need(first, Tier::host), shown_need(other, Tier::host),
                 memory_name(Tier::host));
  if (!other.fits()) text = text.empty() ? "does not fit" : "does not fit; " + text;
  return text;
}

std::string plan_page(const PlanTitle& title, std::span<const MappedPlan> plans,
                      std::string_view heading) {
  const MappedPlan& plan = plans[0];
  const std::string name = title.model + " " + title.mode;
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src "
      "'sha256-{}'; style-src 'sha256-{}'; img-src data: blob:; base-uri 'none'; form-action "
      "'none'\">\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<title>{}: memory plan</title>\n<style>{}</style></head>\n<body>\n",
      sha256_base64(kPlanPageScript), sha256_base64(kPlanPageStyle), html(name), kPlanPageStyle);
  out += fmt::format("<h1>{}</h1>\n<p class=\"soft\">{}{}{}<br>{}</p>\n", html(name),
                     html(title.shape), title.weights.empty() ? "" : " · weights ",
                     html(title.weights), html(title.machine));
  out += fmt::format("<p class=\"verdict {}\">{}</p>\n", plan.fits() ? "fits" : "over",
                     html(plan.verdict));
  out += "<div class=\"head\">" + totals_html(plan);
  out += fmt::format("<dl><dt>step</dt><dd>{}</dd><dt>policy</dt><dd>{}</dd></dl></div>\n",
                     step_seconds_text(plan.step_seconds), html(plan.policy));
  if (plans.size() > 1) out += others_html(plans, heading);
  out +=
      "<h2 id=\"map-title\">Memory over time</h2>\n"
      "<noscript><p>The map needs JavaScript. The tables do not.</p></noscript>\n"
      "<div id=\"map\" hidden></div>\n"
      "<h2>What adds up to each peak</h2>\n<div class=\"sums\">\n" +
      plan.sums + "</div>\n";
  for (std::size_t i = 1; i < plans.size(); ++i) {
    out += fmt::format(
        "<details><summary>The same for <code>{}</code></summary><div class=\"sums\">"
        "\n{}</div></details>\n",
        html(plans[i].label), plans[i].sums);
  }
  out += fmt::format("<script type=\"application/json\" id=\"plans\">{}</script>\n",
                     plans_json(plans));
  return out + fmt::format("<script>{}</script>\n</body></html>\n", kPlanPageScript);
}

}  // namespace ballast
