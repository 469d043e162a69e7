"""The style sheet of `flycc profile --html`: light or dark as the reader's system is."""

from __future__ import annotations

#: cause -> colour in light and dark: what executes is cool, what waits is warm.
CAUSES = {
    "mfma": "#2f6fde",
    "valu": "#2fa36f",
    "trans": "#8fbf4a",
    "salu": "#8b98a8",
    "lds": "#8660d6",
    "global": "#129bb0",
    "scalar": "#6bb5c8",
    "branch": "#5f6b7a",
    "issue": "#b3bbc6",
    "wait-vm": "#e2552b",
    "wait-lgkm": "#f0a33c",
    "barrier": "#c2205f",
    "dependency": "#da6cb4",
    "start": "#b59a72",
    "tail": "#8d7367",
    "launch": "#c9b8a8",
}
LEVELS = {"l2": "#2f6fde", "mall": "#2fa36f", "hbm": "#e2552b", "store": "#8b98a8"}

_RULES = """
:root { color-scheme: light dark; --ink: #1c2430; --quiet: #5c6775; --line: #dde2e9; --paper: #f6f7f9; --card: #fff;
  --heat-colour: 226, 85, 43; --accent: #2f6fde; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --quiet: #98a3b3; --line: #303a47; --paper: #12171e;
  --card: #1a212b; --accent: #6a9bf0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 22px; margin: 0; overflow-wrap: anywhere; }
h2 { font: 600 15px/1.4 ui-monospace, monospace; margin: 0 0 14px; overflow-wrap: anywhere; }
h3 { font-size: 14px; margin: 24px 0 8px; }
h4 { font-size: 13px; font-weight: 500; color: var(--quiet); margin: 14px 0 6px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 20px;
  margin-top: 20px; }
a { color: var(--accent); text-decoration: none; }
.quiet, small { color: var(--quiet); font-size: 12px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.card span { display: block; color: var(--quiet); font-size: 11px; }
.card b { display: block; font-size: 19px; font-weight: 600; margin: 2px 0; }
.columns { display: grid; grid-template-columns: 1.2fr 1fr; gap: 28px; }
.columns > :only-child { grid-column: 1 / -1; }
@media (max-width: 800px) { .columns { grid-template-columns: 1fr; } }
.stack { display: flex; height: 26px; border-radius: 5px; overflow: hidden; gap: 1px; }
td .stack { height: 14px; border-radius: 3px; }
.legend { list-style: none; padding: 0; margin: 10px 0 0; display: flex; flex-wrap: wrap; gap: 4px 18px;
  font-size: 12px; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--quiet); font-size: 11px; font-weight: 500; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); vertical-align: middle;
  overflow-wrap: anywhere; }
.r { text-align: right; white-space: nowrap; }
.w { width: 45%; }
.meter { position: relative; min-width: 110px; height: 16px; background: var(--paper); border-radius: 3px; }
.meter span { position: absolute; inset: 0 auto 0 0; background: var(--accent); opacity: .35; border-radius: 3px; }
.meter b { position: relative; padding-left: 6px; font-size: 11px; font-weight: 500; line-height: 16px; }
.chart { width: 100%; height: auto; display: block; }
.tick { fill: var(--quiet); font: 10px system-ui, sans-serif; }
.mid { text-anchor: middle; }
.end { text-anchor: end; }
.grid { stroke: var(--line); }
.roof { stroke-width: 1.6; fill: none; }
.peak { stroke: var(--ink); }
.dashed { stroke-dasharray: 5 4; opacity: .6; }
.point { stroke: var(--card); stroke-width: 1.5; }
.code { max-height: 640px; overflow: auto; border: 1px solid var(--line); border-radius: 8px; }
.code table { font: 12px/1.35 ui-monospace, monospace; }
.code th { position: sticky; top: 0; background: var(--card); padding-left: 8px; }
.code td { padding: 1px 14px 1px 8px; border: 0; }
.code tr:target { outline: 2px solid var(--accent); outline-offset: -2px; }
.code tr { background: rgba(var(--heat-colour), calc(var(--heat, 0) * .55)); }
.code td:first-child { border-left: 4px solid transparent; color: var(--quiet); }
.loop-0 td:first-child { border-left-color: #2f6fde; }
.loop-1 td:first-child { border-left-color: #2fa36f; }
.loop-2 td:first-child { border-left-color: #8660d6; }
details { margin-top: 20px; }
summary { cursor: pointer; color: var(--quiet); }
dl { display: grid; grid-template-columns: 110px 1fr; gap: 4px 12px; font-size: 13px; }
dt { color: var(--quiet); }
dd { margin: 0; }
"""

CSS = _RULES + "".join(
    [
        *(f".c-{cause} {{ background: {colour}; fill: {colour}; }}\n" for cause, colour in CAUSES.items()),
        *(f"i.level-{name} {{ background: {colour}; }}\n" for name, colour in LEVELS.items()),
        *(f"line.level-{name} {{ stroke: {colour}; }}\n" for name, colour in LEVELS.items()),
        *(f"circle.level-{name} {{ fill: {colour}; }}\n" for name, colour in LEVELS.items()),
    ]
)
