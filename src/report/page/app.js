'use strict';
// The live page: reads /api/run once, then /events. Text goes into the page by textContent alone.
(() => {
/** @param {string} id */
const at = id => /** @type {any} */ (document.getElementById(id));
const make = (tag, text, parent, cls) => {
  const e = document.createElement(tag);
  if (text !== '' && text !== undefined && text !== null) e.textContent = text;
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
const seconds = s => !isFinite(s) ? '-' : s === 0 ? '0' : s >= 100 ? s.toFixed(0) + ' s' : s >= 1 ? s.toPrecision(3) + ' s' : (s * 1e3).toPrecision(3) + ' ms';
const duration = s => {
  s = Math.max(0, Math.round(s));
  const d = Math.floor(s / 86400), h = Math.floor(s % 86400 / 3600), m = Math.floor(s % 3600 / 60);
  return d ? `${d} d ${h} h` : h ? `${h} h ${String(m).padStart(2, '0')} min` : m ? `${m} min ${String(s % 60).padStart(2, '0')} s` : `${s} s`;
};
const clock = t => new Date(t * 1000).toLocaleString([], Date.now() / 1000 - t > 72000 ? {} : {timeStyle: 'short'});
const number = v => v === null || !isFinite(v) ? 'not a number' : v === 0 ? '0' : Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6 ? v.toExponential(3) : v.toPrecision(4);
const css = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

const TIERS = ['device', 'ram', 'host', 'disk'];
const tierName = (t, gpu) => ({device: gpu ? 'GPU memory' : 'RAM (compute share)', ram: 'RAM', host: gpu ? 'pinned RAM' : 'RAM (buffers)', disk: 'disk'})[t];
const MAX_POINTS = 8192;

let run = null;           // what /api/run answered, and what came since
let state = {state: 'waiting'};
let points = [];
let source = null;
let generation = 0;
let connected = true;
let predicted = 0;        // seconds of a step, by the plan
const view = {byTime: false, smoothing: 0.9, zoom: null, cursor: null};

const xOf = p => view.byTime ? p.time - (points.length ? points[0].time : 0) : p.last;
const xText = x => view.byTime ? duration(x) : 'step ' + Math.round(x);
function nice(v) {
  const p = 10 ** Math.floor(Math.log10(v)), s = v / p;
  return p * (s < 1.5 ? 1 : s < 3 ? 2 : s < 7 ? 5 : 10);
}
const domain = () => points.length ? [xOf(points[0]), Math.max(xOf(points[points.length - 1]), xOf(points[0]) + 1)] : [0, 1];
const range = () => view.zoom || domain();

class Chart {
  /** o: title, unit(v), zero, height, series() -> [{name, color, dash, style, value(p), low(p), high(p), level, marks}] */
  constructor(parent, o) {
    this.o = o;
    const box = make('div', '', parent, 'chart');
    make('h3', o.title, box);
    this.keys = make('ul', '', box, 'keys');
    this.canvas = make('canvas', '', box);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'img');
    this.read = make('p', '', box, 'read');
    this.table = make('details', '', box);
    make('summary', 'the same as a table', this.table);
    this.table.ontoggle = () => this.fill();
    const c = this.canvas;
    c.onpointermove = e => { view.cursor = this.data(this.x(e)); later(); };
    c.onpointerdown = e => { this.from = this.x(e); };
    c.onpointerup = e => {
      const from = this.from, to = this.x(e);
      this.from = undefined;
      if (from === undefined || Math.abs(to - from) < 10) return;
      zoomTo(this.data(Math.min(from, to)), this.data(Math.max(from, to)));
    };
    c.onpointerleave = () => { view.cursor = null; this.from = undefined; later(); };
    c.ondblclick = () => { view.zoom = null; later(); };
    c.onkeydown = e => this.key(e);
    charts.push(this);
  }
  x(e) { return e.clientX - this.canvas.getBoundingClientRect().left; }
  get left() { return 62; }
  data(x) {
    const [a, b] = range();
    return Math.min(Math.max(a + (x - this.left) / (this.width - this.left - 6) * (b - a), a), b);
  }
  px(v) {
    const [a, b] = range();
    return this.left + (v - a) / (b - a) * (this.width - this.left - 6);
  }
  key(e) {
    const [a, b] = range(), w = b - a, c = view.cursor === null ? b : view.cursor;
    if (e.key === 'ArrowLeft') view.cursor = Math.max(c - w / 100, a);
    else if (e.key === 'ArrowRight') view.cursor = Math.min(c + w / 100, b);
    else if (e.key === 'Home') view.cursor = a;
    else if (e.key === 'End') view.cursor = b;
    else if (e.key === '+') zoomTo(c - w / 4, c + w / 4);
    else if (e.key === '-') zoomTo(c - w, c + w);
    else if (e.key === 'Escape') view.zoom = null;
    else return;
    e.preventDefault();
    later();
  }
  near(x) {
    let best = null;
    for (const p of points) if (best === null || Math.abs(xOf(p) - x) < Math.abs(xOf(best) - x)) best = p;
    return best;
  }
  draw() {
    const c = this.canvas, dpr = window.devicePixelRatio || 1;
    this.width = c.clientWidth;
    this.height = this.o.height || 170;
    c.width = this.width * dpr;
    c.height = this.height * dpr;
    c.style.height = this.height + 'px';
    const g = c.getContext('2d');
    g.scale(dpr, dpr);
    const series = this.o.series(), [a, b] = range();
    const inside = points.filter((p, i) => xOf(p) >= a && xOf(p) <= b || i > 0 && xOf(points[i - 1]) <= b && xOf(p) >= a || i + 1 < points.length && xOf(points[i + 1]) >= a && xOf(p) <= b);
    this.paint(g, series, inside, this.reach(series, inside));
    this.legend(series);
    this.tell(series);
    if (this.table.open) this.fill(series);
  }
  reach(series, inside) {
    let low = this.o.zero ? 0 : Infinity, high = -Infinity;
    const take = v => { if (v !== null && isFinite(v)) low = Math.min(low, v), high = Math.max(high, v); };
    for (const s of series) {
      if (s.level !== undefined) { take(s.level); continue; }
      for (const m of s.marks || []) take(m[1]);
      if (!s.value) continue;
      for (const p of inside) { take(s.low ? s.low(p) : s.value(p)); take(s.high ? s.high(p) : s.value(p)); }
    }
    if (!(high > -Infinity)) return [0, 1];
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    return [this.o.zero ? 0 : low - pad, high + pad];
  }
  paint(g, series, inside, [low, high]) {
    const h = this.height - 20, y = v => 6 + (high - v) / (high - low) * (h - 8);
    const soft = css('soft'), lineColor = css('line');
    g.fillStyle = css('bg');
    g.fillRect(0, 0, this.width, this.height);
    g.font = '11px system-ui,sans-serif';
    g.lineWidth = 1;
    const step = nice((high - low) / 4);
    for (let v = Math.ceil(low / step) * step; v <= high; v += step) {
      g.strokeStyle = lineColor;
      g.beginPath(); g.moveTo(this.left, y(v)); g.lineTo(this.width, y(v)); g.stroke();
      g.fillStyle = soft;
      g.fillText(this.o.unit(Math.abs(v) < step / 1e6 ? 0 : v), 0, y(v) + 4);
    }
    const [a, b] = range(), every = nice((b - a) / (this.width < 500 ? 3 : 7));
    for (let v = Math.ceil(a / every) * every; v <= b; v += every) {
      g.fillStyle = soft;
      g.fillText(view.byTime ? duration(v) : String(Math.round(v * 1000) / 1000), Math.min(this.px(v), this.width - 36), this.height - 4);
    }
    if (!points.length) { g.fillText('no step yet', this.left + 8, h / 2); return; }
    g.save();
    g.beginPath(); g.rect(this.left, 0, this.width - this.left, h); g.clip();
    for (const s of series) this.line(g, s, inside, y);
    if (view.cursor !== null) {
      g.setLineDash([]); g.strokeStyle = css('mark'); g.lineWidth = 1;
      g.beginPath(); g.moveTo(this.px(view.cursor), 0); g.lineTo(this.px(view.cursor), h); g.stroke();
    }
    g.restore();
  }
  line(g, s, inside, y) {
    const color = css(s.color);
    g.strokeStyle = color; g.fillStyle = color;
    g.setLineDash(s.dash || []);
    g.lineWidth = s.thin ? 1 : 2;
    if (s.level !== undefined) {
      g.beginPath(); g.moveTo(this.left, y(s.level)); g.lineTo(this.width, y(s.level)); g.stroke();
      return;
    }
    if (s.marks) {
      for (const [x, v] of s.marks) mark(g, s.shape, this.px(x), y(v));
      return;
    }
    const edge = (value, back) => {
      const all = back ? [...inside].reverse() : inside;
      for (const p of all) { const v = value(p); if (v !== null && isFinite(v)) g.lineTo(this.px(xOf(p)), y(v)); }
    };
    if (s.low) {
      g.globalAlpha = s.alpha || 1;
      g.beginPath(); edge(s.high, false); edge(s.low, true); g.fill();
      g.globalAlpha = 1;
      return;
    }
    g.beginPath();
    let open = false;
    for (const p of inside) {
      const v = s.value(p);
      if (v === null || !isFinite(v)) { open = false; continue; }
      open ? g.lineTo(this.px(xOf(p)), y(v)) : g.moveTo(this.px(xOf(p)), y(v));
      open = true;
    }
    g.stroke();
    g.setLineDash([]);
    if (inside.length < 3 && !s.thin) for (const p of inside) if (isFinite(s.value(p))) mark(g, 0, this.px(xOf(p)), y(s.value(p)));
  }
  legend(series) {
    const names = series.map(s => s.name).join('\n');
    if (this.names === names + css('bg')) return;
    this.names = names + css('bg');
    this.keys.textContent = '';
    for (const s of series) {
      const li = make('li', '', this.keys), c = make('canvas', '', li);
      c.width = 52; c.height = 20;
      const g = c.getContext('2d');
      g.scale(2, 2);
      g.strokeStyle = g.fillStyle = css(s.color);
      g.lineWidth = s.thin ? 1 : 2;
      if (s.low) { g.globalAlpha = s.alpha || 1; g.fillRect(0, 1, 26, 8); }
      else if (s.marks) mark(g, s.shape, 13, 5);
      else { g.setLineDash(s.dash || []); g.beginPath(); g.moveTo(0, 5); g.lineTo(26, 5); g.stroke(); }
      c.setAttribute('aria-hidden', 'true');
      make('span', s.name, li);
    }
  }
  tell(series) {
    const p = view.cursor === null ? points[points.length - 1] : this.near(view.cursor);
    if (!p) { this.read.textContent = ''; return; }
    const text = series.filter(s => s.value).map(s => `${s.name} ${this.o.unit(s.text ? s.text(p) : s.value(p))}`).join(', ');
    const where = (p.first === p.last ? `step ${p.last}` : `steps ${p.first} to ${p.last}`) + ` at ${clock(p.time)}`;
    this.read.textContent = `${where}: ${text}`;
    if (view.cursor === null) this.canvas.setAttribute('aria-label', `${this.o.title}. ${this.read.textContent}. Arrow keys move, plus and minus zoom, Escape shows all.`);
  }
  fill(series) {
    if (!this.table.open) return;
    series = (series || this.o.series()).filter(s => s.value);
    if (this.shown) this.shown.remove();
    this.shown = make('div', '', this.table, 'scroll');
    const table = make('table', '', this.shown), head = make('tr', '', make('thead', '', table));
    make('th', 'step', head);
    for (const s of series) make('th', s.name, head, 'n');
    const body = make('tbody', '', table), most = 60, every = Math.max(1, Math.ceil(points.length / most));
    points.filter((_, i) => (points.length - 1 - i) % every === 0).reverse().forEach(p => {
      const row = make('tr', '', body);
      make('td', p.first === p.last ? p.last : `${p.first} to ${p.last}`, row);
      for (const s of series) make('td', this.o.unit(s.text ? s.text(p) : s.value(p)), row, 'n');
    });
  }
}
function mark(g, shape, x, y) {
  g.beginPath();
  if (shape === 1) { g.moveTo(x, y - 5); g.lineTo(x + 5, y + 4); g.lineTo(x - 5, y + 4); g.closePath(); }
  else if (shape === 2) g.rect(x - 4, y - 4, 8, 8);
  else g.arc(x, y, 3.5, 0, 7);
  g.fill();
}
const charts = [];
let drawn = false;
function later() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => { drawn = false; for (const c of charts) c.draw(); });
}
function zoomTo(a, b) {
  const [low, high] = domain();
  const next = [Math.max(a, low), Math.min(b, high)];
  view.zoom = next[1] - next[0] >= (high - low) * 0.999 || next[1] <= next[0] ? null : next;
  later();
}

// Of the loss, as in the report: an average that forgets.
function smooth() {
  let sum = 0, weight = 0;
  const keep = view.smoothing;
  for (const p of points) {
    if (p.loss !== null && isFinite(p.loss)) { sum = keep * sum + p.loss; weight = keep * weight + 1; }
    p.smooth = weight ? sum / weight : null;
  }
}
const lossSeries = () => {
  const named = list => [...new Set(list.map(e => e.name))];
  const marks = (list, name) => list.filter(e => e.name === name && e.value !== null).map(e => [view.byTime ? e.time - (points.length ? points[0].time : 0) : e.step, e.value]);
  const banded = points.some(p => p.first !== p.last);
  return [
    ...(banded ? [{name: 'least to greatest', color: 'r1', alpha: 0.4, low: p => p.loss_least, high: p => p.loss_most}] : []),
    {name: 'each step', color: 'r1', thin: true, value: p => p.loss},
    {name: 'smoothed', color: 'r0', value: p => p.smooth},
    ...named(run.evals).map((n, i) => ({name: `evaluation ${n}`, color: ['r7', 'r3', 'r5'][i % 3], shape: (i + 1) % 3, marks: marks(run.evals, n)})),
  ];
};
const PARTS = [['compute', 'r0'], ['waiting', 'r7'], ['data', 'r5'], ['save', 'r2'], ['other', 'r10']];
const partOf = (p, name) => name === 'other' ? Math.max(0, p.seconds - p.compute - p.waiting - p.data - p.save) : p[name];
const timeSeries = () => {
  const stack = PARTS.map(([name, color], i) => {
    const below = p => PARTS.slice(0, i).reduce((n, [part]) => n + partOf(p, part), 0);
    return {name, color, low: below, high: p => below(p) + partOf(p, name), value: p => below(p) + partOf(p, name), text: p => partOf(p, name)};
  }).filter(s => points.some(p => s.text(p) > 0));
  const lanes = [['upload', 'r1', [7, 3]], ['disk', 'r9', [2, 3]]].filter(([n]) => points.some(p => p[n] > 0))
    .map(([name, color, dash]) => ({name: `${name} lane busy`, color, dash, value: p => p[name]}));
  return [...stack, ...lanes, ...(predicted > 0 ? [{name: 'predicted step', color: 'mark', dash: [6, 4], thin: true, level: predicted}] : [])];
};
const memorySeries = () => {
  const styles = {device: ['r0', []], ram: ['r5', [8, 3]], host: ['r2', [3, 3]], disk: ['r7', [10, 3, 2, 3]]};
  const all = [];
  for (const t of TIERS) {
    if (!points.some(p => p['mem_' + t] > 0)) continue;
    const planned = state.planned ? state.planned[t] : 0;
    all.push({name: tierName(t, state.gpu), color: styles[t][0], dash: styles[t][1], value: p => p['mem_' + t]});
    if (planned > 0) all.push({name: `${tierName(t, state.gpu)} planned`, color: styles[t][0], dash: [3, 3], thin: true, level: planned});
  }
  return all;
};

function words() {
  const of = state.total_steps ? ` of ${state.total_steps}` : '';
  switch (state.state) {
    case 'training': return `training, step ${state.step}${of}` + (state.phase === 'save' ? ', saving' : state.phase === 'evaluate' ? ', evaluating' : '');
    case 'loading': return 'loading';
    case 'finished': return `finished after ${state.step} steps`;
    case 'stopped': return `stopped after step ${state.step}${of}`;
    case 'failed': return `failed after step ${state.step}${of}`;
    case 'dead': return `dead since ${clock(state.updated)}, step ${state.step}${of}: ${state.cause}`;
    default: return 'waiting for the run to begin';
  }
}
const recent = (n = 20) => points.slice(-n);
const mean = (list, value) => list.length ? list.reduce((s, p) => s + value(p), 0) / list.length : 0;
function tell() {
  if (!run) return;
  at('state').textContent = connected ? words() : `not connected: ballast watch has ended or cannot be reached. Last: ${words()}`;
  document.title = `${state.state === 'training' && state.total_steps ? Math.floor(100 * state.step / state.total_steps) + ' %' : state.state} · ${run.name}`;
  const last = points[points.length - 1], perStep = mean(recent(), p => p.seconds), parts = [];
  if (state.state === 'training' && state.total_steps > state.step && perStep > 0) parts.push(`${duration((state.total_steps - state.step) * perStep)} left`);
  if (last) parts.push(`last record ${duration(Date.now() / 1000 - last.time)} ago`);
  if (state.host) parts.push(`on ${state.host}`);
  if (run.starts > 1) parts.push(`started ${run.starts} times`);
  if (run.unreadable) parts.push(`${run.unreadable} lines of the log could not be read`);
  at('since').textContent = parts.join(' · ');
  tiles(last, perStep);
  cause();
}
function tile(name, value, more) {
  const box = make('div', '', at('tiles'));
  make('span', name, box);
  make('b', value, box);
  make('span', more, box);
}
function tiles(last, perStep) {
  at('tiles').textContent = '';
  tile('loss, smoothed', last ? number(last.smooth) : '-', last ? `last step ${number(last.loss)}` : 'no step yet');
  const ratio = predicted > 0 && perStep > 0 ? perStep / predicted : 0;
  tile('a step', perStep ? seconds(perStep) : '-', predicted > 0 ? `predicted ${seconds(predicted)}` + (ratio ? ` (${ratio >= 1 ? '+' : ''}${Math.round(100 * ratio - 100)} %)` : '') : 'mean of the last 20');
  const list = recent(), share = perStep ? mean(list, p => p.waiting + p.data) / perStep : 0;
  const causes = [['upload', mean(list, p => p.upload)], ['disk', mean(list, p => p.disk)]].sort((a, b) => b[1] - a[1]);
  const why = mean(list, p => p.data) > mean(list, p => p.waiting) ? 'for the dataset' : causes[0][1] > 0 ? `mostly for the ${causes[0][0]} lane` : 'for other lanes';
  tile('waiting', perStep ? (100 * share).toFixed(1) + ' %' : '-', share > 0.001 ? why : 'of a step');
  const saved = run.checkpoint || null;
  tile('newest checkpoint', saved ? duration(Date.now() / 1000 - saved.time) + ' ago' : 'none yet', saved ? `step ${saved.step}` : '');
}
function cause() {
  const box = at('cause'), lines = [];
  if (state.state === 'failed' && state.note) lines.push(state.note);
  if (state.state === 'dead') lines.push(...(state.findings || []));
  if (state.state === 'dead' || state.state === 'failed') for (const a of state.advice || []) lines.push(`What would help: ${a.change}: ${a.effect}`);
  box.hidden = !lines.length;
  if (box.dataset.text === lines.join('\n')) return;
  box.dataset.text = lines.join('\n');
  box.textContent = '';
  for (const l of lines) make('p', l, box);
}
function gauges() {
  const box = at('memory');
  box.textContent = '';
  for (const t of TIERS) {
    const planned = (state.planned || {})[t] || 0, allowed = (state.allowed || {})[t] || 0;
    const now = (state.measured || {})[t] || 0, most = (state.most || {})[t] || 0;
    if (!planned && !most) continue;
    const scale = 1.06 * Math.max(planned, most, allowed < 1.6 * Math.max(planned, most) ? allowed : 0), share = v => 100 * v / scale + '%';
    const gauge = make('div', '', box, 'gauge'), names = make('div', '', gauge, 'names');
    make('b', tierName(t, state.gpu), names);
    make('span', `${bytes(now)} now, ${bytes(most)} at most`, names);
    make('span', `${bytes(planned)} planned`, names, 'soft');
    make('span', allowed ? `${bytes(allowed)} allowed` : '', names, 'soft');
    if (most > planned && planned) make('span', `${bytes(most - planned)} above the plan`, names, 'over-text');
    const track = make('div', '', gauge, 'track');
    const part = (cls, style) => Object.assign(make('i', '', track, cls).style, style);
    part('now', {width: share(Math.min(now, planned || now))});
    if (planned && now > planned) part('over', {left: share(planned), width: share(now - planned)});
    part('planned', {width: share(planned)});
    part(most > planned && planned ? 'most high' : 'most', {left: `calc(${share(most)} - 2px)`});
    if (allowed && allowed <= scale) part('allowed', {left: share(allowed)});
  }
}

function events() {
  const box = at('events'), list = [...run.events].reverse().slice(0, 200);
  box.textContent = '';
  if (!list.length) { make('p', 'none yet', box, 'soft'); return; }
  const table = make('table', '', box), head = make('tr', '', make('thead', '', table));
  for (const h of ['time', 'step', 'event', '']) make('th', h, head);
  const body = make('tbody', '', table);
  for (const e of list) {
    const row = make('tr', '', body);
    make('td', clock(e.time), row);
    make('td', e.step, row, 'n');
    make('td', e.event, row);
    make('td', e.text, row);
  }
}
// "previews/step000200_00.mp4: a red circle" -> its file and its prompt.
const previewOf = e => {
  const end = e.text.indexOf(': '), path = end < 0 ? e.text : e.text.slice(0, end);
  return {step: e.step, file: path.replace(/^previews\//, ''), prompt: end < 0 ? '' : e.text.slice(end + 2)};
};
function previews() {
  const all = run.previews.map(previewOf), steps = [...new Set(all.map(p => p.step))].sort((a, b) => a - b);
  at('previews').hidden = !steps.length;
  if (!steps.length) return;
  const pick = (select, wanted, none) => {
    const kept = select.dataset.touched ? select.value : '';
    select.textContent = '';
    if (none) make('option', none, select).value = '';
    for (const s of steps) make('option', `step ${s}`, select).value = String(s);
    select.value = select.dataset.touched && [...select.options].some(o => o.value === kept) ? kept : wanted;
  };
  pick(at('left'), String(steps[steps.length - 1]));
  pick(at('right'), steps.length > 1 ? String(steps[0]) : '', 'nothing');
  const box = at('shown'), chosen = [at('left').value, at('right').value].filter(s => s !== ''), shown = all.filter(p => chosen.includes(String(p.step)));
  const key = shown.map(p => p.file + p.step).join('\n');
  if (box.dataset.shown === key) return;
  box.dataset.shown = key;
  box.textContent = '';
  for (const s of chosen) for (const p of shown.filter(p => String(p.step) === s)) {
    const figure = make('figure', '', box), src = `/previews/${encodeURIComponent(p.file)}?name=${encodeURIComponent(run.name)}`;
    if (p.file.endsWith('.mp4')) {
      const video = make('video', '', figure);
      Object.assign(video, {controls: true, loop: true, muted: true, src});
      video.setAttribute('aria-label', `step ${p.step}: ${p.prompt}`);
    } else {
      Object.assign(make('img', '', figure), {src, alt: `step ${p.step}: ${p.prompt}`});
    }
    make('figcaption', `step ${p.step}: ${p.prompt}`, figure);
  }
}
function about() {
  const box = at('about'), info = run.info;
  box.textContent = '';
  if (run.has_report) {
    const link = make('a', 'the report of this run', make('p', '', box));
    link.href = `/report.html?name=${encodeURIComponent(run.name)}`;
  }
  if (!info) { make('p', 'the log has not begun', box, 'soft'); return; }
  const list = (title, pairs) => {
    if (!pairs.length) return;
    make('h3', title, box);
    const dl = make('dl', '', box);
    for (const [k, v] of pairs) { make('dt', k, dl); make('dd', v, dl); }
  };
  list('Settings', [['command', info.command], ['started', info.started], ...info.summary]);
  if (info.notes.length) {
    make('h3', 'Notes', box);
    const ul = make('ul', '', box);
    for (const n of info.notes) make('li', n, ul);
  }
  if (info.config) {
    const details = make('details', '', box, 'more');
    make('summary', 'config', details);
    make('pre', info.config, details).tabIndex = 0;
  }
  const more = make('details', '', box, 'more');
  make('summary', 'environment', more);
  const dl = make('dl', '', more);
  for (const [k, v] of info.environment) { make('dt', k, dl); make('dd', v, dl); }
}

function pointOf(r) {
  const p = {first: r.step, last: r.step, time: r.time, loss: r.loss, loss_least: r.loss, loss_most: r.loss, lr: r.lr, grad_norm: r.grad_norm, seconds: r.seconds, seconds_most: r.seconds};
  Object.assign(p, r.times);
  for (const t of TIERS) p['mem_' + t] = r.memory && r.memory.measured ? r.memory.measured[t] || 0 : 0;
  return p;
}
function record(r) {
  if (r.kind === 'run') { load(run.name); return; }
  if (r.kind === 'step') {
    if (points.length && r.step <= points[points.length - 1].last || points.length > MAX_POINTS) { load(run.name); return; }
    points.push(pointOf(r));
    smooth();
    soon('tell', tell);
  } else if (r.kind === 'eval') {
    run.evals.push({time: r.time, step: r.step, name: r.name, value: r.loss});
  } else if (r.kind === 'event' && r.event === 'preview') {
    run.previews.push(r);
    soon('previews', previews);
  } else if (r.kind === 'event') {
    if (r.event === 'checkpoint') run.checkpoint = r;
    run.events.push(r);
    soon('events', events);
  }
  later();
}
const waiting = new Set();
function soon(name, work) {
  if (waiting.has(name)) return;
  waiting.add(name);
  setTimeout(() => { waiting.delete(name); if (run) work(); }, 100);
}
function listen() {
  if (source) source.close();
  source = new EventSource(`/events?name=${encodeURIComponent(run.name)}&from=${run.offset}`);
  source.addEventListener('record', e => { try { record(JSON.parse(e.data)); } catch { /* a line that is no JSON */ } });
  source.addEventListener('state', e => {
    const before = state;
    state = JSON.parse(e.data);
    if (before.pid && state.pid && before.pid !== state.pid) { load(run.name); return; }
    gauges();
    tell();
    later();
    if (state.state === 'finished' && before.state !== 'finished' || state.state === 'stopped' && before.state === 'training') setTimeout(() => load(run.name), 500);
  });
  source.addEventListener('reset', () => load(run.name));
  const set = now => { connected = now; document.body.dataset.connected = String(now); tell(); };
  source.onopen = () => set(true);
  source.onerror = () => set(false);
}
async function json(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${(await answer.text()).trim()}`);
  return answer.json();
}
let mapOf = '';  // the run whose plan is shown
async function showPlan(name, started) {
  if (mapOf === name + started) return;
  mapOf = name + started;
  at('plan').hidden = true;
  predicted = 0;
  if (!run.has_plan) return;
  const plan = await json(`/api/plan?name=${encodeURIComponent(name)}`);
  predicted = plan.seconds_per_step || plan.step_seconds || 0;
  if (plan.map && plan.map.plans && plan.map.plans.length) {
    at('plan').hidden = false;
    showPlans(plan.map, at('map'));
  }
  tell();
  later();
}
async function load(name) {
  const mine = ++generation;
  let next;
  try {
    next = await json('/api/run' + (name ? `?name=${encodeURIComponent(name)}` : ''));
  } catch (e) {
    if (mine !== generation) return;
    at('state').textContent = String(e.message || e);
    setTimeout(() => { if (mine === generation) load(name); }, 2000);
    return;
  }
  if (mine !== generation) return;
  run = next;
  state = run.state;
  points = run.steps.map(s => Object.fromEntries(run.columns.map((c, i) => [c, s[i]])));
  run.steps = [];
  run.checkpoint = [...run.events].reverse().find(e => e.event === 'checkpoint') || null;
  smooth();
  at('title').textContent = run.info && run.info.title ? run.info.title : run.name;
  at('main').hidden = false;
  gauges();
  tell();
  events();
  previews();
  about();
  later();
  listen();
  showPlan(run.name, state.started || '').catch(() => { at('plan').hidden = true; });
}
async function runs() {
  const all = (await json('/api/runs')).runs.reverse(), select = at('runs');
  at('runs-bar').hidden = all.length < 2;
  select.textContent = '';
  for (const r of all) make('option', `${r.name} · ${r.state}${r.total_steps ? `, step ${r.step} of ${r.total_steps}` : ''}`, select).value = r.name;
  if (run) select.value = run.name;
}
new Chart(at('memory-chart'), {title: 'Memory over time', unit: bytes, zero: true, series: memorySeries});
new Chart(at('loss-chart'), {title: 'Loss', unit: number, height: 260, series: lossSeries});
new Chart(at('rate-chart'), {title: 'Learning rate', unit: number, zero: true, series: () => [{name: 'learning rate', color: 'r5', value: p => p.lr}]});
new Chart(at('norm-chart'), {title: 'Gradient norm', unit: number, zero: true, series: () => [{name: 'gradient norm', color: 'r3', value: p => p.grad_norm}]});
new Chart(at('time-chart'), {title: 'Seconds of a step', unit: seconds, zero: true, height: 220, series: timeSeries});
const press = byTime => {
  view.byTime = byTime;
  view.zoom = view.cursor = null;
  at('by-step').setAttribute('aria-pressed', String(!byTime));
  at('by-time').setAttribute('aria-pressed', String(byTime));
  later();
};
at('by-step').onclick = () => press(false);
at('by-time').onclick = () => press(true);
at('all').onclick = () => { view.zoom = null; later(); };
at('smoothing').oninput = () => { view.smoothing = Number(at('smoothing').value); smooth(); tell(); later(); };
for (const id of ['left', 'right']) at(id).onchange = () => { at(id).dataset.touched = '1'; previews(); };
at('runs').onchange = () => { view.zoom = null; load(at('runs').value); };
window.addEventListener('resize', later);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { gauges(); later(); });
setInterval(() => { if (run) tell(); }, 1000);
setInterval(() => runs().catch(() => {}), 10000);
load('').then(() => runs()).catch(() => {});
})();
