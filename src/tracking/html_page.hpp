#pragma once

#include <string_view>

namespace linkboy {

/// The report. Between the two parts are the lines of its records.
///
/// The colours of the lines are the palette of Okabe and Ito, which is distinguishable with any
/// colour vision. Yellow is faint on white and therefore used only in dark mode.
inline constexpr std::string_view kHtmlBegin = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="linkboy">
<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>linkboy</title>
<style>
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --text: #1b1f24; --soft: #5b6470; --line: #dfe3e8;
  --grid: #e9ecf0; --good: #00755a; --bad: #b34700; --busy: #0072b2;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #cc79a7; --s4: #e69f00; --s5: #56b4e9;
}
@media (prefers-color-scheme: dark) { :root {
  --page: #101317; --card: #181c22; --text: #e6e9ed; --soft: #98a2ae; --line: #2b313a;
  --grid: #262c34; --good: #35c09a; --bad: #f08a3c; --busy: #56b4e9;
  --s0: #56b4e9; --s1: #e69f00; --s2: #1fb98b; --s3: #cc79a7; --s4: #f0e442; --s5: #d55e00;
} }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 32px 24px 40px; }
header { margin-bottom: 24px; }
h1 { margin: 0 0 4px; font-size: 26px; font-weight: 650; letter-spacing: -0.01em; }
h2 { margin: 32px 0 12px; font-size: 17px; font-weight: 650; }
h3 { margin: 0 0 8px; font-size: 14px; font-weight: 600; }
h1, h3, th, td, pre, .legend span { overflow-wrap: anywhere; }
.facts, .legend { margin: 0; padding: 0; list-style: none; display: flex; flex-wrap: wrap;
  gap: 4px 19px; }
.facts { color: var(--soft); }
b { color: var(--text); font-weight: 600; }
b, .number, svg text { font-variant-numeric: tabular-nums; }
.outcome { font-weight: 600; color: var(--busy); }
.outcome::before { content: ""; display: inline-block; width: 8px; height: 8px;
  margin-right: 7px; border-radius: 50%; background: currentColor; }
.outcome.good { color: var(--good); }
.outcome.bad, .note.bad { color: var(--bad); }
section { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%), 1fr)); }
.pairs { align-items: start; }
.small { grid-template-columns: repeat(auto-fill, minmax(min(280px, 100%), 1fr)); }
.card { margin: 0; padding: 16px 18px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; min-width: 0; overflow-x: auto; break-inside: avoid; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--grid); fill: none; }
.tick, .frame { stroke: var(--soft); fill: none; opacity: 0.6; }
.line, .average { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round;
  stroke-linecap: round; }
.faint .line { stroke-width: 1; opacity: 0.32; }
.point { fill: currentColor; stroke: var(--card); stroke-width: 1; }
.point:hover { stroke: currentColor; stroke-width: 4; }
.spot { fill: currentColor; opacity: 0; } .spot:hover { opacity: 1; }
.gap { fill: var(--bad); stroke: var(--card); }
.bar { fill: var(--s0); } .bar:hover { fill: var(--s1); }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); }
.s3 { color: var(--s3); } .s4 { color: var(--s4); } .s5 { color: var(--s5); }
.legend { margin-top: 10px; font-size: 13px; }
.legend li { display: flex; align-items: baseline; gap: 7px; min-width: 0; }
.legend i { flex: none; width: 16px; height: 3px; border-radius: 2px; background: currentColor;
  transform: translateY(-4px); }
.note { margin: 6px 0 0; color: var(--soft); font-size: 12.5px; }
table { width: 100%; border-collapse: collapse; font-size: 13.5px; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top;
  text-align: left; }
th { color: var(--soft); font-weight: 500; }
tr:last-child > td, tbody tr:last-child > th { border-bottom: 0; }
.number { text-align: right; white-space: nowrap; }
.at { color: var(--soft); white-space: nowrap; font-size: 12.5px; }
.pairs th { width: 40%; }
.metrics tbody th { color: var(--text); font-weight: 400; min-width: 180px; }
pre, .pairs td, .metrics tbody th, .legend span { font-size: 12.5px;
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.legend span { color: var(--text); }
pre { margin: 0; white-space: pre-wrap; }
footer { margin-top: 32px; color: var(--soft); font-size: 12.5px; }
</style>
</head>
<body>
<main><noscript>This page needs JavaScript, but no network.</noscript></main>
<script type="application/jsonl" id="linkboy-records">
)html";

inline constexpr std::string_view kHtmlEnd = R"html(</script>
<script>
"use strict";
// Values that are not Html are escaped.
class Html { constructor(text) { this.text = text; } }
const text_of = value => value instanceof Html ? value.text :
  Array.isArray(value) ? value.map(text_of).join("") :
  String(value ?? "").replace(/[&<>"']/g, letter => `&#${letter.charCodeAt()};`);
const html = (parts, ...values) =>
  new Html(parts.reduce((all, part, i) => all + text_of(values[i - 1]) + part));

function number(value, digits = 6) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  const rounded = +value.toPrecision(digits), size = Math.abs(rounded);
  return size && (size < 1e-4 || size >= 1e6) ? rounded.toExponential() : String(rounded);
}
const two = value => String(Math.floor(value)).padStart(2, "0");
const duration = seconds => seconds < 60 ? seconds.toFixed(1) + " s" :
  seconds < 3600 ? `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s` :
  `${Math.floor(seconds / 3600)} h ${two(seconds / 60 % 60)} min`;
const date = seconds => seconds >= 0 && seconds < 253402300800 ?
  new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC" : "";
const extent = values => values.reduce(([low, high], value) => Number.isFinite(value) ?
  [Math.min(low, value), Math.max(high, value)] : [low, high], [Infinity, -Infinity]);

// `at` maps values to [0, 1]. Ticks are at 1, 2 or 5 times a power of ten.
function axis(range, { is_log, is_count }) {
  const scale = value => is_log ? Math.log10(value) : Math.min(Math.max(value, -1e300), 1e300);
  let [low, high] = range[0] > range[1] ? [0, 1] : range.map(scale);
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= Math.max(size * 1e-9, 1e-300)) {
    const margin = size < 1e-300 ? 1 : size / 10;
    [low, high] = [low - margin, high + margin];
  }
  // The tolerances allow for rounding errors.
  const least = (high - low) / 5, power = +`1e${Math.floor(Math.log10(least))}`;
  const nice = [1, 2, 5, 10].find(factor => least <= factor * power * (1 + 1e-9)) * power;
  const step = is_log || is_count ? Math.max(nice, 1) : nice;
  const first = is_count ? low / step : Math.floor(low / step + 1e-9);
  const last = is_count ? high / step : Math.ceil(high / step - 1e-9);
  const label = value => is_log ? number(+`1e${value}`) : !is_count ? number(value, 11) :
    value >= 1e6 ? value / 1e6 + "M" : value >= 1e4 ? value / 1e3 + "k" : String(value);
  const ticks = [];
  for (let i = Math.ceil(first); i <= last; ++i) {
    ticks.push({ at: (i - first) / (last - first), label: label(i * step) });
  }
  return { ticks, at: value => (scale(value) / step - first) / (last - first) };
}

// The lowest and the highest point of each column of pixels
function thinned(points) {
  const columns = new Map();
  for (const point of points) {
    const column = Math.floor(point.x), [low, high] = columns.get(column) ?? [point, point];
    columns.set(column, [point.y < low.y ? point : low, point.y > high.y ? point : high]);
  }
  const kept = new Set([...columns.values()].flat());
  return points.filter(point => kept.has(point));
}

// A line with gaps where y is NaN. With round line ends, a line of length 0 shows a point.
function path(points) {
  const parts = [[]];
  for (const point of points) Number.isNaN(point.y) ? parts.push([]) : parts.at(-1).push(point);
  return parts.filter(part => part.length).map(part => "M" +
    (points.length > 2000 ? thinned(part) : part).map(
      ({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L") + (part[1] ? "" : "h0")).join("");
}

// Whether there are many values whose total up and down movement is much larger than their range
function is_noisy(values) {
  const [low, high] = extent(values);
  const moves = values.map((value, i) => Math.abs(value - values[i - 1])).filter(Number.isFinite);
  return values.length >= 100 && moves.reduce((a, b) => a + b, 0) > 6 * (high - low);
}

function moving_average(values, reach) {
  const sums = [[0, 0]];
  values.forEach((value, i) => sums.push(Number.isFinite(value) ?
    [sums[i][0] + value, sums[i][1] + 1] : sums[i]));
  return values.map((value, i) => {
    const begin = sums[Math.max(i - reach, 0)];
    const end = sums[Math.min(i + reach + 1, values.length)];
    return (end[0] - begin[0]) / (end[1] - begin[1]);
  });
}

// Metrics whose names differ only in words such as "train" and "eval" share a chart. The learning
// rates of all param groups share one as well. Losses come first.
function charts_of(metrics) {
  const charts = new Map();
  for (const metric of metrics) {
    const words = metric.name.toLowerCase().split(/[_/ ]/);
    const is_rate = words.includes("lr") || words.includes("learning") && words.includes("rate");
    const family = words.filter(word =>
      !/^(train(ing)?|eval(uation)?|val(id(ation)?)?|test)$/.test(word) &&
      !(is_rate && /^(group|\d*)$/.test(word)));
    const key = (family.length ? family : words).join(" ");
    const title = key.replace(/\blr\b/g, "learning rate").replace(/ epoch$/, " per epoch")
      .replace(/^./, letter => letter.toUpperCase());
    const chart = charts.get(key) ?? { title, is_rate, metrics: [] };
    charts.set(key, chart).get(key).metrics.push(metric);
  }
  const order = chart => /\bloss\b/i.test(chart.title) ? 0 : 1;
  return [...charts.values()].sort((a, b) => order(a) - order(b));
}

const kWidth = 640, kHeight = 300, kTop = 12, kBottom = 254, kRight = 626;
function chart_svg({ title, is_rate, metrics }) {
  const by_epoch = metrics.every(({ points }) =>
    points.every((point, i) => !i || points[i - 1].epoch < point.epoch));
  const count_of = point => by_epoch ? point.epoch : point.update;
  const points = metrics.flatMap(metric => metric.points);
  const x_range = extent(points.map(count_of)), y_range = extent(points.map(point => point.value));
  if (!by_epoch && x_range[0] < x_range[1] / 10) x_range[0] = 0;  // if they start near 0
  if (x_range[0] == x_range[1]) ++x_range[1];
  const is_log = is_rate && y_range[0] > 1e-300 && y_range[1] > y_range[0] * 100;
  const xs = axis(x_range, { is_count: true }), ys = axis(y_range, { is_log });
  const left = 14 + 6.8 * Math.max(...ys.ticks.map(({ label }) => label.length));
  const px = at => (left + 8 + at * (kRight - left - 16)).toFixed(1) * 1;
  const py = at => (kBottom - at * (kBottom - kTop)).toFixed(1) * 1;

  const series = ({ name, points }, index) => {
    const values = points.map(point => point.value);
    const line_of = values => points.map((point, i) => ({ ...point, x: px(xs.at(count_of(point))),
      y: Number.isFinite(point.value) ? py(ys.at(values[i])) : NaN }));
    const line = line_of(values), stride = line.length > 60 ? Math.ceil(line.length / 100) : 1;
    const has_average = !is_log && is_noisy(values), reach = Math.max(3, line.length / 50 | 0);
    const hover = ({ value, update, epoch }) =>
      html`<title>${name}\n${number(value)} (update ${update}, epoch ${epoch})</title>`;
    const dots = line.filter(({ y }, i) => i % stride == 0 && !Number.isNaN(y));
    const gaps = line.filter(({ y }) => Number.isNaN(y)).slice(0, 50);
    return html`<g class="series s${index % 6} ${has_average ? "faint" : ""}" data-metric="${name}">
<path class="line" d="${path(line)}"/>${has_average ? html`<path class="average"
d="${path(line_of(moving_average(values, reach)))}"><title>${name}: mean of ${2 * reach + 1} values
</title></path>` : ""}${dots.map(dot => html`<circle class="${stride > 1 ? "spot" : "point"}"
cx="${dot.x}" cy="${dot.y}" r="${stride > 1 ? 5 : 3}">${hover(dot)}</circle>`)}
${gaps.map(gap => html`<path class="gap" d="M${gap.x},${kBottom}l-5,-9h10z">${hover(gap)}</path>`)}
</g>`;
  };
  return html`<svg viewBox="0 0 ${kWidth} ${kHeight}" role="img" aria-label="${title}">
${ys.ticks.map(({ at, label }) => html`<path class="grid" d="M${left},${py(at)}H${kRight}"/>
<text x="${left - 7}" y="${py(at) + 4}" text-anchor="end">${label}</text>`)}
${xs.ticks.map(({ at, label }) => html`<path class="tick" d="M${px(at)},${kBottom}v5"/>
<text x="${px(at)}" y="${kBottom + 18}" text-anchor="middle">${label}</text>`)}
<path class="frame" d="M${left},${kBottom}H${kRight}"/><text x="${(left + kRight) / 2}" y="292"
text-anchor="middle">${by_epoch ? "epoch" : "update"}</text>${metrics.map(series)}</svg>`;
}

const card = (title, ...content) => html`<article class="card"><h3>${title}</h3>${content}</article>`;
const note = (style, ...content) => html`<p class="note ${style}">${content}</p>`;
const section = (title, style, cards) => cards.length ?
  html`<h2>${title}</h2><section class="${style}">${cards}</section>` : "";
const table = ([title, object]) => card(title, html`<table><tbody>${Object.entries(object).map(
  ([name, value]) => html`<tr><th>${name}</th><td>${value}</td></tr>`)}</tbody></table>`);

const chart_card = chart => card(chart.title, chart_svg(chart), html`<ul class="legend">
${chart.metrics.map(({ name, points }, i) => html`<li class="s${i % 6}"><i></i><span>${name}</span>
<b>${number(points.at(-1).value)}</b></li>`)}</ul>`, chart.metrics.map(({ name, points }) => {
  const gaps = points.filter(point => !Number.isFinite(point.value));
  return gaps.length ? note("bad", `${gaps.length} of ${points.length} values of ${name} \
${gaps.length == 1 ? "is" : "are"} not finite, first at update ${gaps[0].update}.`) : "";
}));

const cell = value => html`<td class="number">${value}</td>`;
function metric_row({ name, points }) {
  const finite = points.filter(point => Number.isFinite(point.value));
  const extreme = sign => {
    if (!finite.length) return html`${cell("–")}<td></td>`;
    const best = finite.reduce((a, b) => sign * b.value > sign * a.value ? b : a);
    return html`${cell(number(best.value))}
<td class="at">epoch ${best.epoch}, update ${best.update}</td>`;
  };
  return html`<tr><th>${name}</th>${cell(number(points.at(-1).value))}${extreme(-1)}${extreme(1)}
${cell(points.length)}</tr>`;
}

function histogram_card({ name, update, counts, edges, ...record }) {
  const most = Math.max(...counts), width = 320 / counts.length, of = key => number(+record[key]);
  const bar = (count, i) => html`<rect class="bar" x="${width * i}" y="${100 - 94 * count / most}"
width="${width - 1}" height="${94 * count / most}"><title>${number(edges[i])} to
${number(edges[i + 1])}: ${count}</title></rect>`;
  return card(name, html`<svg viewBox="0 0 320 120" role="img" aria-label="${name}">${counts.map(bar)}
<path class="frame" d="M0,100H320"/><text x="0" y="116">${of("min")}</text>
<text x="320" y="116" text-anchor="end">${of("max")}</text></svg>`, note("", `mean ${of("mean")}, \
standard deviation ${of("standard_deviation")}, ${record.count} values; update ${update}`),
  record.non_finite ? note("bad", `${record.non_finite} values are not finite.`) : "");
}

function page(records) {
  const of = type => records.filter(record => record.type == type);
  const [run] = of("run"), [end] = of("end"), by_name = new Map();
  for (const { update, epoch, values } of of("scalars")) {
    for (const [name, value] of Object.entries(values)) {
      if (!by_name.has(name)) by_name.set(name, { name, points: [] });
      by_name.get(name).points.push({ update, epoch, value: Number(value) });
    }
  }
  const metrics = [...by_name.values()], style = end?.outcome == "failed" ? "bad" : end && "good";
  const [begin, last] = extent(of("scalars").map(record => record.time));
  const newest = key => Math.max(extent(of("scalars").map(record => record[key]))[1], 0);
  return html`<header><h1>${run.name}</h1><ul class="facts">
<li class="outcome ${style}">${end ? end.outcome : "running"}</li>
<li><b>${Math.max(run.first_update, newest("update"))}</b> updates</li>
${newest("epoch") ? html`<li>epoch <b>${newest("epoch")}</b></li>` : ""}
${begin < last ? html`<li><b>${duration(last - begin)}</b></li>` : ""}
${begin <= last ? html`<li>${date(begin)} to ${date(last)}</li>` : ""}</ul></header>
<section class="charts">${charts_of(metrics).map(chart_card)}</section>
${metrics.length ? html`<h2>Metrics</h2><div class="card"><table class="metrics"><thead><tr>
<th>Metric</th><th class="number">Last</th><th class="number">Lowest</th><th>at</th>
<th class="number">Highest</th><th>at</th><th class="number">Records</th></tr></thead><tbody>
${metrics.map(metric_row)}</tbody></table></div>` :
  html`<p class="card note">No metrics are recorded yet.</p>`}
${section("Histograms", "small", of("histogram").map(histogram_card))}
${section("Texts", "pairs", of("text").map(({ name, text, epoch, update }) =>
  card(name, html`<pre>${text}</pre>`, note("", `epoch ${epoch}, update ${update}`))))}
${section("Run", "pairs", [["Configuration", run.config], ["Environment", run.environment]].filter(
  ([, object]) => Object.keys(object).length).map(table))}
<footer>Written by linkboy. The page needs no network; it contains the records as JSON.</footer>`;
}

const lines = document.getElementById("linkboy-records").textContent.trim().split("\n");
const records = lines.map(line => JSON.parse(line));
document.title = records.find(record => record.type == "run").name;
document.querySelector("main").innerHTML = page(records).text;
</script>
</body>
</html>
)html";

}  // namespace linkboy
