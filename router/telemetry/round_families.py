"""The names of what is counted of rounds, in which requests that wait are placed together.

Separate from `families` because only pools whose policy decides in rounds show anything but zeros.
"""

from __future__ import annotations

from router.telemetry.series import CounterFamily, HistogramFamily

STAGE_BOUNDS_S = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1,
)  # fmt: skip
"""Around the 1.2 ms that the whole round of BalanceRoute takes in its paper."""

SIZE_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class RoundFamilies:
    """Of rounds."""

    def __init__(self) -> None:
        self.rounds = CounterFamily(
            "pointsman_balance_rounds_total",
            "Rounds by why the steps ahead were of no use: drifted, low_use, unknown, or none if they were.",
            ("pool", "fallback"),
        )
        self.round_admitted = CounterFamily(
            "pointsman_balance_admitted_total",
            "Requests placed by rounds, by what decided; guard: it gained nothing, but a slot was free.",
            ("pool", "reason"),
        )
        self.round_gain = CounterFamily(
            "pointsman_balance_gain_total",
            "Sum of F over the sets placed, in the unit of cost: gained, or lost to guard and ageing.",
            ("pool", "sign"),
        )
        self.round_size = HistogramFamily(
            "pointsman_balance_round_requests",
            "Requests that a round was about.",
            SIZE_BOUNDS,
            ("pool",),
        )
        self.round_stage = HistogramFamily(
            "pointsman_balance_stage_seconds",
            "Time of each stage of a round: state, greedy, subset.",
            STAGE_BOUNDS_S,
            ("pool", "stage"),
        )
