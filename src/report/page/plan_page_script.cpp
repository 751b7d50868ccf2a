#include "report/page/plan_page.h"

namespace ballast {

// Draws maps of plans: of the JSON beside it, or, on the live page, of what showPlans() is given.
// Text goes into the page by textContent alone, so no name can become markup.
const std::string_view kPlanPageScript = R"js(
'use strict';
function showPlans(data, root) {
const TICKS = 1e6, LEFT = 66, LANE = 20, AXIS = 22;
const state = {right: -1, phase: null, tier: 0, zoom: [0, 1], hidden: new Set()};
const make = (tag, text, parent, cls) => {
  const e = document.createElement(tag);
  if (text) e.textContent = text;
  if (cls) e.className = cls;
  if (parent) parent.append(e);
  return e;
};
const bytes = n => {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let u = 0, v = n;
  while (v >= 999.95 && u < 4) v /= 1000, ++u;
  return u === 0 ? n + ' B' : v.toPrecision(4) + ' ' + units[u];
};
const exact = n => bytes(n) + (n < 1000 ? '' : ' (' + n.toLocaleString('en-US') + ' bytes)');
const seconds = s => s === 0 ? '0 s' : s >= 1 ? s.toPrecision(4) + ' s' : (s * 1e3).toPrecision(3) + ' ms';
const numbers = text => text ? text.split(' ').map(x => parseInt(x, 36)) : [];

// Names are templates with one number; shapes are read when their phase is first shown.
function read(plan, phase) {
  if (phase.ready) return;
  phase.ready = true;
  const name = (t, n) => plan.names[t].replace('\u0001', n);
  for (const tier of phase.tiers) {
    const v = numbers(tier.blocks);
    tier.shapes = [];
    for (let i = 0, t = 0; i < v.length; i += 13) {
      t += v[i];
      const at = i;
      tier.shapes.push({begin: t, end: t + v[i + 1], offset: v[i + 2], extent: v[i + 3],
        bytes: v[i + 3] - v[i + 4], role: v[i + 5] >> 1, stays: v[i + 5] & 1, count: v[i + 6],
        get name() { return name(v[at + 7], v[at + 8]); },
        get maker() { return name(v[at + 9], v[at + 10]); },
        get user() { return name(v[at + 11], v[at + 12]); }});
    }
  }
  const v = numbers(phase.bars);
  phase.work = [];
  for (let i = 0, t = 0; i < v.length; i += 6) {
    t += v[i];
    const at = i;
    phase.work.push({begin: t, end: t + v[i + 1], lane: v[i + 2], count: v[i + 3],
      get name() { return name(v[at + 4], v[at + 5]); }});
  }
  phase.lanes = data.lanes.map((_, l) => l).filter(l => phase.work.some(b => b.lane === l));
}

const shown = () => state.right < 0 ? [data.plans[0]] : [data.plans[0], data.plans[state.right]];
const phaseOf = plan => {
  const phase = plan.phases.find(p => p.name === state.phase) || plan.phases[0];
  read(plan, phase);
  return phase;
};
// One clock for all that is shown; without a prediction it counts shares of the program.
const clock = () => Math.max(...shown().map(p => phaseOf(p).seconds)) || 1;
const length = phase => phase.seconds || 1;

class View {
  constructor(plan, parent) {
    this.plan = plan;
    this.cursor = null;
    this.chosen = null;
    const box = make('section', '', parent, 'view');
    make('h3', plan.label, box);
    this.canvas = make('canvas', '', box);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'img');
    this.sum = make('p', '', box, 'soft');
    this.tip = make('div', '', box, 'tip');
    this.tip.setAttribute('aria-live', 'polite');
    const files = make('div', '', box, 'bar');
    make('button', 'save PNG', files).onclick = () => this.canvas.toBlob(b => save(b, 'png'));
    make('button', 'save SVG', files).onclick = () => {
      const svg = new SvgContext(this.width, this.height);
      this.paint(svg);
      save(new Blob([svg.text()], {type: 'image/svg+xml'}), 'svg');
    };
    const c = this.canvas;
    c.onpointermove = e => this.point(e);
    c.onpointerdown = e => { this.from = this.x(e); this.point(e); };
    c.onpointerup = e => this.release(e);
    c.onpointerleave = () => { this.from = null; };
    c.ondblclick = () => { state.zoom = [0, 1]; drawAll(); };
    c.onkeydown = e => this.key(e);
    this.intro();
  }
  get phase() { return phaseOf(this.plan); }
  get tier() { return this.phase.tiers[state.tier]; }
  get whole() { return this.plan.tiers[state.tier]; }
  get below() { return this.whole.below.reduce((n, b) => n + b[1], 0); }
  x(e) { return e.clientX - this.canvas.getBoundingClientRect().left; }
  // Pixels of a tick of the phase, and back.
  px(tick) {
    const t = tick / TICKS * length(this.phase) / clock();
    return LEFT + (t - state.zoom[0]) / (state.zoom[1] - state.zoom[0]) * (this.width - LEFT - 4);
  }
  tick(x) {
    const t = state.zoom[0] + (x - LEFT) / (this.width - LEFT - 4) * (state.zoom[1] - state.zoom[0]);
    return t * clock() / length(this.phase) * TICKS;
  }
  py(address) { return this.map - address / this.scale * (this.map - 8); }
  time(tick) {
    return this.phase.seconds ? seconds(tick / TICKS * this.phase.seconds)
      : (tick / TICKS * 100).toFixed(1) + ' %';
  }
  draw() {
    this.width = this.canvas.clientWidth;
    this.map = this.width < 500 ? 300 : 420;
    this.height = this.map + AXIS + this.phase.lanes.length * LANE + 4;
    const dpr = window.devicePixelRatio || 1;
    this.canvas.width = this.width * dpr;
    this.canvas.height = this.height * dpr;
    this.canvas.style.height = this.height + 'px';
    const g = this.canvas.getContext('2d');
    g.scale(dpr, dpr);
    this.paint(g);
    const live = this.tier.live, gap = this.tier.peak - live, all = this.tier.peak + this.below;
    this.sum.textContent = `${this.whole.name}, ${this.phase.name}: ${bytes(live)} of buffers alive at most` +
      (this.tier.at ? ` (${this.tier.at})` : '') + ` + ${bytes(gap)} between them + ${bytes(this.below)} outside the plan's buffers = ` +
      `${exact(all)}; planned for the run ${exact(this.whole.planned)}.` +
      (this.tier.hidden ? ` ${this.tier.hidden} buffers are too small to draw.` : '');
    this.canvas.setAttribute('aria-label', this.sum.textContent + ' Arrow keys move through time and buffers.');
  }
  paint(g) {
    const css = getComputedStyle(document.documentElement), color = n => css.getPropertyValue('--' + n).trim();
    const near = p => { const w = p.tiers[state.tier]; return w.allowed < 1.6 * w.planned ? Math.max(w.allowed, w.planned) : w.planned; };
    this.scale = Math.max(1, ...shown().map(near)) * 1.04;
    g.fillStyle = color('bg');
    g.fillRect(0, 0, this.width, this.height);
    g.font = '11px system-ui,sans-serif';
    const label = (text, x, y, c) => { g.fillStyle = c || color('soft'); g.fillText(text, x, y); };
    const line = (x1, y1, x2, y2, c, dash) => {
      g.strokeStyle = c; g.setLineDash(dash || []);
      g.beginPath(); g.moveTo(x1, y1); g.lineTo(x2, y2); g.stroke(); g.setLineDash([]);
    };
    g.lineWidth = 1;
    const step = nice(this.scale / 6);
    for (let v = 0; v <= this.scale; v += step) {
      line(LEFT, this.py(v), this.width, this.py(v), color('line'));
      label(bytes(v), 2, this.py(v) + 3);
    }
    g.save();
    g.beginPath(); g.rect(LEFT, 0, this.width - LEFT, this.height); g.clip();
    const right = Math.min(this.px(TICKS), this.width);
    let base = 0;
    for (const [name, n] of this.whole.below) {
      const y = this.py(base + n), h = this.py(base) - y;
      g.fillStyle = color('below');
      g.fillRect(LEFT, y, right - LEFT, Math.max(h, 0.6));
      if (h > 12) label(name, LEFT + 4, y + h / 2 + 4, color('ink'));
      base += n;
    }
    this.base = base;
    const colors = data.roles.map((_, r) => color('r' + r));
    const texts = [];
    for (const s of this.tier.shapes) {
      if (state.hidden.has(s.role)) continue;
      const x = Math.max(this.px(s.begin), LEFT), r = this.px(s.end);
      if (r < LEFT || x > this.width) continue;
      const y = this.py(base + s.offset + s.extent), h = this.py(base + s.offset) - y;
      const w = Math.min(r, this.width) - x;
      g.fillStyle = colors[s.role];
      const seam = w > 4 && h > 3 ? 0.6 : 0;
      g.fillRect(x, y, Math.max(w - seam, 0.5), Math.max(h - seam, 0.5));
      if (w > 60 && h > 13) texts.push([s, x, y, w, h]);
    }
    for (const [s, x, y, w, h] of texts) {
      const text = (s.name + ' ' + bytes(s.bytes)).slice(0, Math.floor(w / 6));
      label(text, x + 4, y + Math.min(h / 2 + 4, 16), color('bg'));
    }
    const over = this.whole.allowed;
    if (this.whole.planned > over) {
      const top = this.py(this.whole.planned), y = this.py(over);
      for (let x = LEFT - 400; x < this.width; x += 7) {
        const run = y - top;
        line(x, y, x + run, top, color('over'));
      }
    }
    const flag = (text, y, x2) => {
      const w = text.length * 5.8 + 6;
      g.fillStyle = color('bg'); g.fillRect(x2 - w, y - 13, w, 12);
      label(text, x2 - w + 3, y - 4, color('mark'));
    };
    const peak = base + this.tier.peak;
    line(LEFT, this.py(peak), this.width, this.py(peak), color('mark'), [5, 4]);
    if (over <= this.scale) {
      g.lineWidth = 2;
      line(LEFT, this.py(over), this.width, this.py(over), color('over'));
      g.lineWidth = 1;
      flag('allowed ' + bytes(over), this.py(over), this.width - 4);
    }
    flag('peak ' + bytes(peak), this.py(peak) + (Math.abs(this.py(peak) - this.py(over)) < 13 ? 14 : 0), this.width - (this.width < 500 ? 4 : 150));
    const when = this.px(this.tier.when);
    line(when, 0, when, this.map, color('mark'), [2, 3]);
    this.lanes(g, color, label, line);
    if (this.cursor !== null) line(this.px(this.cursor), 0, this.px(this.cursor), this.height, color('mark'));
    if (this.chosen) {
      const s = this.chosen, y = s.lane === undefined ? this.py(base + s.offset + s.extent) : this.laneTop(s.lane);
      const h = s.lane === undefined ? this.py(base + s.offset) - y : LANE - 4;
      g.strokeStyle = color('mark'); g.lineWidth = 2;
      g.strokeRect(this.px(s.begin), y, Math.max(this.px(s.end) - this.px(s.begin), 2), Math.max(h, 2));
    }
    g.restore();
    const ticks = clock() * (state.zoom[1] - state.zoom[0]), every = nice(ticks / (this.width < 500 ? 3 : 7));
    for (let t = Math.ceil(clock() * state.zoom[0] / every) * every; t <= clock() * state.zoom[1] * 1.0001; t += every) {
      const x = this.px(t / length(this.phase) * TICKS);
      label(this.phase.seconds ? seconds(t) : Math.round(t * 100) + ' %', Math.min(x, this.width - 44), this.map + 15);
    }
    this.phase.lanes.forEach(l => label(data.lanes[l], 2, this.laneTop(l) + 12));
  }
  laneTop(l) { return this.map + AXIS + this.phase.lanes.indexOf(l) * LANE + 2; }
  lanes(g, color, label, line) {
    let free = 0;
    const y0 = this.laneTop(0);
    for (const b of this.phase.work) {
      const x = this.px(b.begin), w = this.px(b.end) - x, y = this.laneTop(b.lane);
      if (b.lane === 0) {
        if (b.begin > free) {
          for (let at = Math.max(this.px(free), LEFT); at < Math.min(x, this.width); at += 5) line(at, y0 + LANE - 4, at + 4, y0, color('soft'));
        }
        free = Math.max(free, b.end);
      }
      g.fillStyle = color('r' + [0, 1, 5, 8, 9][b.lane]);
      g.fillRect(x, y, Math.max(w - (w > 3 ? 0.6 : 0), 0.5), LANE - 4);
    }
  }
  alive(tick) { return this.tier.shapes.filter(s => s.begin <= tick && tick <= s.end && !state.hidden.has(s.role)); }
  point(e) {
    const box = this.canvas.getBoundingClientRect(), x = this.x(e), y = e.clientY - box.top;
    this.cursor = Math.min(Math.max(this.tick(Math.max(x, LEFT)), 0), TICKS);
    const near = 2 * (this.tick(LEFT + 1) - this.tick(LEFT));
    this.chosen = null;
    if (y > this.map + AXIS) {
      const lane = this.phase.lanes[Math.floor((y - this.map - AXIS) / LANE)];
      this.chosen = this.phase.work.findLast(b => b.lane === lane && b.begin - near <= this.cursor && this.cursor <= b.end + near) || null;
    } else {
      const address = (this.map - y) / (this.map - 8) * this.scale - this.base;
      this.chosen = this.tier.shapes.findLast(s => !state.hidden.has(s.role) && s.begin - near / 2 <= this.cursor &&
        this.cursor <= s.end + near / 2 && s.offset <= address && address <= s.offset + s.extent) || null;
    }
    this.later();
  }
  release(e) {
    const from = this.from, to = this.x(e);
    this.from = null;
    if (from === null || from === undefined || Math.abs(to - from) < 12) return;
    const at = x => Math.min(Math.max(this.tick(Math.max(x, LEFT)) / TICKS * length(this.phase) / clock(), 0), 1);
    state.zoom = [at(Math.min(from, to)), at(Math.max(from, to))];
    drawAll();
  }
  key(e) {
    const span = TICKS * (state.zoom[1] - state.zoom[0]), at = this.cursor === null ? this.tier.when : this.cursor;
    const moves = {ArrowLeft: at - span / 200, ArrowRight: at + span / 200, Home: 0, End: TICKS, p: this.tier.when};
    const zoom = {'+': 0.5, '-': 2}[e.key];
    if (e.key in moves) {
      this.cursor = Math.min(Math.max(moves[e.key], 0), TICKS);
      this.chosen = null;
    } else if (e.key === 'ArrowUp' || e.key === 'ArrowDown') {
      const all = this.alive(at).sort((a, b) => a.offset - b.offset), now = all.indexOf(this.chosen);
      this.cursor = at;
      this.chosen = all[e.key === 'ArrowUp' ? Math.min(now + 1, all.length - 1) : now < 0 ? all.length - 1 : Math.max(now - 1, 0)] || null;
    } else if (zoom) {
      const middle = at / TICKS * length(this.phase) / clock(), half = zoom * (state.zoom[1] - state.zoom[0]) / 2;
      state.zoom = [Math.max(middle - half, 0), Math.min(middle + half, 1)];
      drawAll();
    } else if (e.key === 'Escape') {
      state.zoom = [0, 1];
      drawAll();
    } else {
      return;
    }
    e.preventDefault();
    this.later();
  }
  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); this.tell(); });
  }
  intro() {
    this.tip.textContent = 'Point at a shape, tap it, or use the arrow keys. Drag to zoom, double-click or Escape to see all. P goes to the moment when most is alive.';
  }
  tell() {
    this.tip.textContent = '';
    const s = this.chosen, row = text => make('div', text, this.tip);
    if (s && s.lane !== undefined) {
      row(`${data.lanes[s.lane]}: ${s.name}${s.count > 1 ? ` and ${s.count - 1} more` : ''}`);
      row(`${this.time(s.begin)} to ${this.time(s.end)} (${this.time(s.end - s.begin)})`);
    } else if (s) {
      row(`${s.name}${s.count > 1 ? ` (${s.count} buffers)` : ''}: ${data.roles[s.role]}, ${exact(s.bytes)}`);
      row(s.stays ? `stays during the ${this.phase.name}; at ${bytes(this.base + s.offset)}`
        : `${this.time(s.begin)} to ${this.time(s.end)}; at ${bytes(this.base + s.offset)}; made by ${s.maker}, last used by ${s.user}`);
    }
    if (this.cursor === null) return;
    const sums = new Map(), all = this.alive(this.cursor);
    for (const b of all) sums.set(b.role, (sums.get(b.role) || 0) + b.bytes);
    const roles = [...sums].sort((a, b) => b[1] - a[1]);
    row(`At ${this.time(this.cursor)}: ` + roles.map(([r, n]) => `${data.roles[r]} ${bytes(n)}`).join(', '));
    row('Largest: ' + all.sort((a, b) => b.bytes - a.bytes).slice(0, 10).map(b => `${b.name} ${bytes(b.bytes)}`).join(', '));
  }
}

// What paint() asks of a canvas, as SVG.
class SvgContext {
  constructor(w, h) { this.w = w; this.h = h; this.out = []; this.dash = []; this.lineWidth = 1; this.path = ''; }
  static safe(t) { return String(t).replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`); }
  rectangle(x, y, w, h, more) { this.out.push(`<rect x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${w.toFixed(1)}" height="${h.toFixed(1)}" ${more}/>`); }
  fillRect(x, y, w, h) { this.rectangle(x, y, w, h, `fill="${this.fillStyle}"`); }
  strokeRect(x, y, w, h) { this.rectangle(x, y, w, h, `fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"`); }
  fillText(t, x, y) { this.out.push(`<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" fill="${this.fillStyle}">${SvgContext.safe(t)}</text>`); }
  setLineDash(d) { this.dash = d; }
  beginPath() { this.path = ''; }
  moveTo(x, y) { this.path += `M${x.toFixed(1)} ${y.toFixed(1)}`; }
  lineTo(x, y) { this.path += `L${x.toFixed(1)} ${y.toFixed(1)}`; }
  stroke() { this.out.push(`<path d="${this.path}" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}" stroke-dasharray="${this.dash.join(' ')}"/>`); }
  save() { this.out.push('<g clip-path="url(#inside)">'); }
  restore() { this.out.push('</g>'); }
  rect() {}
  clip() {}
  text() {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.w}" height="${this.h}" font-family="sans-serif" font-size="11">` +
      `<clipPath id="inside"><rect x="${LEFT}" width="${this.w - LEFT}" height="${this.h}"/></clipPath>${this.out.join('\n')}</svg>`;
  }
}
function save(blob, kind) {
  const a = make('a');
  a.href = URL.createObjectURL(blob);
  a.download = 'plan.' + kind;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}
function nice(v) {
  const p = 10 ** Math.floor(Math.log10(v)), s = v / p;
  return p * (s < 1.5 ? 1 : s < 3 ? 2 : s < 7 ? 5 : 10);
}

let views = [];
const drawAll = () => views.forEach(v => v.draw());
const choice = (parent, names, now, pick) => names.map(([text, value]) => {
  const b = make('button', text, parent);
  b.type = 'button';
  b.setAttribute('aria-pressed', String(value === now));
  b.onclick = () => { pick(value); build(); };
  return b;
});
function build() {
  root.textContent = '';
  const first = data.plans[0];
  const phases = make('div', '', root, 'bar');
  make('span', 'phase', phases, 'soft');
  choice(phases, first.phases.map(p => [p.name, p.name]), state.phase, v => { state.phase = v; state.zoom = [0, 1]; });
  const tiers = make('div', '', root, 'bar');
  make('span', 'memory', tiers, 'soft');
  choice(tiers, first.tiers.map((t, i) => [t.name, i]).filter(([, i]) => shown().some(p => p.tiers[i].planned > 0)), state.tier, v => { state.tier = v; });
  const box = make('div', '', root, state.right < 0 ? 'views' : 'views two');
  views = shown().map(p => new View(p, box));
  const legend = make('div', '', root, 'bar');
  make('span', 'show', legend, 'soft');
  const used = new Set(views.flatMap(v => v.tier.shapes.map(s => s.role)));
  data.roles.forEach((name, r) => {
    if (!used.has(r)) return;
    const b = make('button', '', legend, 'key');
    b.type = 'button';
    make('i', '', b).style.background = `var(--r${r})`;
    make('span', name, b);
    b.setAttribute('aria-pressed', String(!state.hidden.has(r)));
    b.onclick = () => {
      state.hidden.has(r) ? state.hidden.delete(r) : state.hidden.add(r);
      b.setAttribute('aria-pressed', String(!state.hidden.has(r)));
      drawAll();
    };
  });
  drawAll();
}
for (const b of document.querySelectorAll('button[data-plan]')) {
  b.onclick = () => {
    const i = Number(b.dataset.plan);
    state.right = state.right === i ? -1 : i;
    state.zoom = [0, 1];
    for (const other of document.querySelectorAll('button[data-plan]')) {
      other.setAttribute('aria-pressed', String(Number(other.dataset.plan) === state.right));
    }
    build();
    document.getElementById('map-title').scrollIntoView({behavior: 'smooth'});
  };
}
const step = data.plans[0].phases.find(p => p.name === 'step') || [...data.plans[0].phases].sort((a, b) => b.seconds - a.seconds)[0];
const short = data.plans[0].tiers.findIndex(t => t.planned > t.allowed);
state.phase = step.name;
state.tier = short < 0 ? 0 : short;
root.hidden = false;
build();
window.addEventListener('resize', drawAll);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
}
const plans = document.getElementById('plans');
if (plans) showPlans(JSON.parse(plans.textContent), document.getElementById('map'));
)js";

}  // namespace ballast
