#include "report/page/plan_page.h"

namespace ballast {

// Colours of roles in the order of Role, then of lanes; the script reads them.
const std::string_view kPlanPageStyle = R"css(
:root{color-scheme:light dark;--bg:#fff;--ink:#1c2024;--soft:#5c646c;--line:#d5dade;--panel:#f4f6f8;--over:#b3261e;--mark:#1c2024;
--r0:#3b6ea5;--r1:#79a8d6;--r2:#8a5aa8;--r3:#c2477f;--r4:#6d4c41;--r5:#2e7d5b;--r6:#8fc9a0;--r7:#d98a2b;--r8:#b9a13a;--r9:#4a9aa8;--r10:#7b8794;--below:#c4cad0}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--ink:#e6e9ec;--soft:#9aa4ad;--line:#343a40;--panel:#1d2125;--over:#ff8a80;--mark:#fff;
--r0:#4f86c0;--r1:#8fbce8;--r2:#a678c4;--r3:#d9659a;--r4:#a1796b;--r5:#3f9a73;--r6:#7fbf92;--r7:#d9933d;--r8:#bfa845;--r9:#55a9b8;--r10:#8a96a3;--below:#4a5259}}
*{box-sizing:border-box}
body{background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif;margin:0 auto;padding:20px 16px 60px;max-width:1560px}
h1{font-size:1.4em;margin:0}h2{font-size:1.1em;margin:28px 0 8px}
.soft{color:var(--soft);margin:0 0 12px}code{font-size:.93em;overflow-wrap:anywhere}
.verdict{font-weight:600;white-space:pre-line;margin:0 0 12px}.verdict.over,tr.over td{color:var(--over)}
.head{display:flex;flex-wrap:wrap;gap:12px 48px}
dl{margin:0;max-width:640px;display:grid;grid-template-columns:auto 1fr;gap:2px 14px;align-content:start}dt{color:var(--soft)}dd{margin:0}
table{border-collapse:collapse;font-size:.92em}caption{text-align:left;font-weight:600;padding:6px 0}
th,td{text-align:left;padding:3px 14px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap}tfoot td{font-weight:600}
.scroll{overflow-x:auto}.others code{white-space:nowrap}.others td:nth-child(2){min-width:13em}.sums{display:flex;align-items:start;flex-wrap:wrap;gap:16px 48px}
button,select{font:inherit;font-size:.9em;color:var(--ink);background:var(--panel);border:1px solid var(--line);border-radius:5px;padding:2px 10px;cursor:pointer}
button[aria-pressed=true]{background:var(--ink);color:var(--bg)}
button:focus-visible,canvas:focus-visible,summary:focus-visible{outline:2px solid var(--r0);outline-offset:2px}
.bar{display:flex;flex-wrap:wrap;gap:6px;align-items:center;margin:0 0 8px}.bar .soft{margin:0 4px 0 0}
.views{display:grid;grid-template-columns:1fr;gap:18px}
@media (min-width:900px){.views.two{grid-template-columns:1fr 1fr}}
.view{min-width:0}.view h3{font-size:1em;margin:0 0 4px}
canvas{display:block;width:100%;touch-action:pan-y;cursor:crosshair}
.tip{background:var(--panel);border-radius:6px;padding:8px 12px;margin-top:8px;min-height:5.2em;font-size:.92em;overflow-wrap:anywhere}
.key{display:inline-flex;align-items:center;gap:6px}.key i{width:12px;height:12px;border-radius:2px;display:inline-block}
.key[aria-pressed=false]{opacity:.45;text-decoration:line-through}
button.key[aria-pressed=true]{background:var(--panel);color:var(--ink)}
@media (max-width:480px){th,td{padding-right:8px}body{padding:14px 10px 40px}.totals{font-size:.85em}}
)css";

}  // namespace ballast
