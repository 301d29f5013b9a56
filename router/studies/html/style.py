"""How reports look: colours for light and dark, dashes for more lines than there are colours.

Separate from the plots, which name classes only. No script: resting on a name dims what is not its own.
"""

from __future__ import annotations

STYLES = 16
"""Lines that can be told apart: eight colours, whole and dashed."""
_LIGHT = ("#1f6fd6", "#d9480f", "#2b8a3e", "#9c36b5", "#c2255c", "#0b7285", "#8d6708", "#495057")
_DARK = ("#74b3ff", "#ff9d66", "#6fd08c", "#dd9cf0", "#ff8fb4", "#5fd0e0", "#e6c25a", "#b8bfc7")

_PLOT = """
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg text.name { fill: var(--ink); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .base { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
svg .s path { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
svg .s .whisker { stroke-width: 1.2; stroke-dasharray: none; opacity: .6; }
svg .s circle { fill: currentColor; }
svg .s:hover path { stroke-width: 3.2; }
.small svg .s path { stroke-width: 1; opacity: .55; }
svg .paper { fill: var(--paper); }
"""

_PAGE = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; font: 15px/1.5 system-ui, sans-serif;
  background: var(--paper); color: var(--ink); }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p, dl { margin: .25rem 0 .75rem; max-width: 52rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.note { color: var(--soft); }
.wide { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .65rem; text-align: right; white-space: nowrap; }
th, td { border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); border-bottom-width: 2px; }
th:first-child, td:first-child { text-align: left; }
td small { color: var(--soft); }
.better { color: var(--good); }
.worse { color: var(--bad); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 1rem;
  align-items: start; margin-bottom: 1rem; }
.plots.pairs { grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); }
.plots.small { grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); }
.plots:not(.pairs) svg text { font-size: 14px; }
.plots.pairs svg.curves text { font-size: 10px; }
details { margin: .25rem 0 .75rem; max-width: 52rem; }
summary { cursor: pointer; color: var(--soft); }
figure { margin: 0; padding: .75rem; border: 1px solid var(--line); border-radius: 6px; }
figure { min-width: 0; max-width: 42rem; }
figcaption { font-weight: 600; margin-bottom: .35rem; }
figcaption small { font-weight: 400; color: var(--soft); }
.keys { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: .75rem 0; padding: .4rem 0;
  list-style: none; border-bottom: 1px solid var(--line); background: var(--paper);
  position: sticky; top: 0; }
@media print { .keys { position: static; } }
.key { cursor: default; }
.key span { color: var(--ink); }
.key svg { display: inline-block; width: 28px; height: 10px; margin-right: .4rem; }
.key path { stroke: currentColor; stroke-width: 2.5; }
"""


def _variables(colours: tuple[str, ...], rest: str) -> str:
    return "".join(f"--c{index}: {colour}; " for index, colour in enumerate(colours)) + rest


_INK_LIGHT = (
    "--paper: #fff; --ink: #1c1f23; --soft: #5c6670; --line: #e1e5e9; --good: #1e7b34; --bad: #c92a2a;"
)
_INK_DARK = (
    "--paper: #15181c; --ink: #e6e9ec; --soft: #9aa5b0; --line: #30363d; --good: #6fd08c; --bad: #ff8787;"
)


def _colours() -> str:
    rules = [
        f":root {{ color-scheme: light dark; {_variables(_LIGHT, _INK_LIGHT)} }}",
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(_DARK, _INK_DARK)} }} }}",
    ]
    for index in range(STYLES):
        dashes = " stroke-dasharray: 6 3;" if index >= len(_LIGHT) else ""
        rules.append(f".s{index} {{ color: var(--c{index % len(_LIGHT)});{dashes} }}")
        rules.append(f"main:has(.key.s{index}:hover) svg .s:not(.s{index}) {{ opacity: .12; }}")
    return "\n".join(rules)


def page_style() -> str:
    """The style of a whole report."""
    return f"{_colours()}{_PLOT}{_PAGE}"


def plot_style() -> str:
    """The style of one plot that stands alone."""
    return f"{_colours()}{_PLOT}"
