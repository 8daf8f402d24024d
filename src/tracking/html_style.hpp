#pragma once

#include <string_view>

namespace linkboy {

/// The style sheet of a report. The colours of the lines are the palette of Okabe and Ito, which is
/// distinguishable with any colour vision. Yellow is faint on white and therefore used only in dark
/// mode.
inline constexpr std::string_view kHtmlStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --text: #1b1f24; --soft: #5b6470; --line: #dfe3e8;
  --grid: #e9ecf0; --good: #00755a; --bad: #b34700; --busy: #0072b2;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #cc79a7; --s4: #e69f00; --s5: #56b4e9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101317; --card: #181c22; --text: #e6e9ed; --soft: #98a2ae; --line: #2b313a;
    --grid: #262c34; --good: #35c09a; --bad: #f08a3c; --busy: #56b4e9;
    --s0: #56b4e9; --s1: #e69f00; --s2: #1fb98b; --s3: #cc79a7; --s4: #f0e442; --s5: #d55e00;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text); line-height: 1.45;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1280px; margin: 0 auto; padding: 32px 24px 40px; }
header { margin-bottom: 24px; }
h1 { margin: 0 0 4px; font-size: 26px; font-weight: 650; letter-spacing: -0.01em;
  overflow-wrap: anywhere; }
h2 { margin: 32px 0 12px; font-size: 17px; font-weight: 650; }
h3 { margin: 0 0 8px; font-size: 14px; font-weight: 600; overflow-wrap: anywhere; }
.facts { margin: 0; padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px;
  color: var(--soft); }
.facts b { color: var(--text); font-weight: 600; font-variant-numeric: tabular-nums; }
.outcome { font-weight: 600; color: var(--busy); }
.outcome::before { content: ""; display: inline-block; width: 8px; height: 8px;
  margin-right: 7px; border-radius: 50%; background: currentColor; }
.outcome.good { color: var(--good); }
.outcome.bad { color: var(--bad); }
.charts { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%), 1fr)); }
.pairs { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%), 1fr));
  align-items: start; }
.small { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(280px, 100%), 1fr)); }
.card { margin: 0; padding: 16px 18px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; min-width: 0; }
.card.wide { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--grid); fill: none; }
.tick, .frame { stroke: var(--soft); fill: none; opacity: 0.6; }
.line, .average { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round;
  stroke-linecap: round; }
.faint .line { stroke-width: 1; opacity: 0.32; }
.point { fill: currentColor; stroke: var(--card); stroke-width: 1; }
.spot { fill: currentColor; opacity: 0; }
.spot:hover { opacity: 1; }
.point:hover { stroke: currentColor; stroke-width: 4; }
.gap { fill: var(--bad); stroke: var(--card); }
.bar { fill: var(--s0); }
.bar:hover { fill: var(--s1); }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); }
.s3 { color: var(--s3); } .s4 { color: var(--s4); } .s5 { color: var(--s5); }
.legend { margin: 10px 0 0; padding: 0; list-style: none; display: flex; flex-wrap: wrap;
  gap: 4px 18px; font-size: 13px; }
.legend li { display: flex; align-items: baseline; gap: 7px; min-width: 0; }
.legend i { flex: none; width: 16px; height: 3px; border-radius: 2px; background: currentColor;
  transform: translateY(-4px); }
.legend span { color: var(--text); overflow-wrap: anywhere; }
.legend b { color: var(--text); font-weight: 600; font-variant-numeric: tabular-nums; }
.note { margin: 6px 0 0; color: var(--soft); font-size: 12.5px; }
.note.bad { color: var(--bad); }
table { width: 100%; border-collapse: collapse; font-size: 13.5px; }
th { color: var(--soft); font-weight: 500; text-align: left; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
tr:last-child > td, tbody tr:last-child > th { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.at { color: var(--soft); white-space: nowrap; font-size: 12.5px; }
.pairs th { width: 40%; }
.pairs td, .metrics tbody th, .legend span { font-family: ui-monospace, "SF Mono", Menlo, Consolas,
  "DejaVu Sans Mono", monospace; font-size: 12.5px; }
.metrics tbody th { color: var(--text); font-weight: 400; min-width: 180px; }
pre { margin: 0; overflow-x: auto; font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas,
  "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
footer { margin-top: 32px; color: var(--soft); font-size: 12.5px; }
@media print { body { background: none; } .card { break-inside: avoid; } }
)css";

}  // namespace linkboy
