"""Makes the plot and the table of the README: `python -m tests.studies.write_readme_plot`, some minutes.

The same as `pointsman compare` with the flags that the README names, of which the page's first plot is kept.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from router.studies.compare import Plan, cells
from router.studies.compare_table import grids
from router.studies.grid import Grid
from router.studies.html.page import standalone
from router.studies.html.plots import over_rates, styles_of
from router.studies.lines import lines

PLOT = Path(__file__).parents[2] / "docs" / "goodput.svg"
POLICIES = ("round_robin", "least_requests", "cache_aware", "preble", "calibrated", "joint")
PLAN = Plan(
    policies=[(policy, {}) for policy in POLICIES],
    workloads=["toolbench"],
    seeds=3,
    calls=1_000,
    levels=[20.0, 25.0, 30.0, 35.0, 40.0, 45.0],
)
SHOWN = 3
"""Place of the rate whose table is printed."""


def markdown(grid: Grid) -> str:
    """A table as the README has it."""
    rows = [[grid.corner, *grid.columns], ["---", *("---:" for _ in grid.columns)]]
    rows += [[f"`{name}`", *map(str, fields)] for name, fields in grid.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Writes the plot, and prints the table."""
    found = lines(cells(PLAN.tasks(), os.cpu_count() or 1))
    plot = next(iter(over_rates(found, styles_of(POLICIES))))
    PLOT.write_text(standalone(plot.svg, POLICIES), encoding="utf-8")
    grid = [grid for grid in grids(found) if grid.title][SHOWN]
    sys.stdout.write(f"{grid.title}\n\n{markdown(grid)}\n")


if __name__ == "__main__":
    main()
