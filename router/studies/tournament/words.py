"""What is to be said of rounds of the stored tournament.

Separate from the page, which is made of figures alone, so that a sentence about a figure has one place.
"""

from __future__ import annotations

WORDS = """\
### Where it is not

`classic_heavy_tail` at full load: jobs of two lengths before servers that do one at a time.
`length_threshold` keeps half of the servers for short jobs, and its defaults happen to cut this workload into
halves of equal work. `joint` weighs those who are there, and keeps nothing free for those who are not, so now
and then short jobs wait behind a long one. Reserving pays while a server does one job at a time and lengths
have two groups; before engines, which batch, the same policy is near the end of the table above.

### What this does not show

- Loads beyond the collapse of round robin, where the mean time says how long a run was. There is the place of
  the policies of BalanceRoute, which weigh KV only among requests that wait for a slot: while slots are free,
  as here, both fill them by count, like `least_requests` and like each other
  ([reproductions.md](reproductions.md) has them at full ranks).
- Wrong coefficients: policies that reckon in seconds know here what a calibration, or a minute of traffic,
  would have taught them.
- Parameters: every policy runs with its defaults, `length_threshold` too, whose threshold wants to be set.
"""
"""Markdown, put below the table of rounds."""
