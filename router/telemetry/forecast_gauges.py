"""How well the lengths of answers were foretold, as gauges.

Separate from the other gauges because it judges predictions and measures no load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from router.core.predict_error import Errors
from router.telemetry.exposition import SampleFamily

_SOURCE = ("pool", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastSample:
    """The predictor of one pool.

    Attributes:
        trust: 2 full, 1 low, 0 lost: its errors have become a multiple of what they were.
        residents: requests that run and that something is expected of.
        known: how many of them a policy that looks ahead knows something of.
        errors: by what predictions rested on, and of all under `overall`.
    """

    pool: str
    trust: int
    residents: int
    known: int
    errors: Mapping[str, Errors] = field(default_factory=dict)


_ERRORS: tuple[tuple[str, str, str, Callable[[Errors], float | None]], ...] = (
    ("requests_total", "counter", "Finished requests whose length was foretold.", lambda e: e.samples),
    (
        "brier_score",
        "gauge",
        "Recent mean of (chance of an end within the horizon - whether it came) squared; absent before any.",
        lambda e: e.brier,
    ),
    ("baseline_brier_score", "gauge", "The same, of the last hours.", lambda e: e.baseline_brier),
    (
        "bias_steps",
        "gauge",
        "Recent mean of foretold less true steps within the horizon; above 0: answers end sooner.",
        lambda e: e.bias_steps,
    ),
    (
        "length_error_ratio",
        "gauge",
        "Recent mean of |foretold - true length| over the larger of both, 0 to 1.",
        lambda e: e.length_error,
    ),
    (
        "baseline_length_error_ratio",
        "gauge",
        "The same, of the last hours.",
        lambda e: e.baseline_length_error,
    ),
    (
        "absolute_error_tokens",
        "gauge",
        "Recent mean of |foretold - true length|.",
        lambda e: e.mae_tokens,
    ),
)


def forecast_gauges(pools: Sequence[ForecastSample]) -> Iterator[SampleFamily]:
    """The families, those without samples included."""
    for name, description, read in (
        ("trust", "Whether foretold lengths are relied on: 2 yes, 1 for the near future, 0 no.", _trust),
        ("residents", "Requests that run and that some length is expected of.", _residents),
        ("known", "Those of whose rest a policy that looks ahead knows anything.", _known),
    ):
        family = SampleFamily(f"pointsman_forecast_{name}", description, ("pool",))
        for pool in pools:
            family.set(read(pool), pool.pool)
        yield family
    for name, kind, description, read_error in _ERRORS:
        family = SampleFamily(f"pointsman_forecast_{name}", description, _SOURCE, kind)
        for pool in pools:
            for source, errors in pool.errors.items():
                family.set(read_error(errors), pool.pool, source)
        yield family


def _trust(sample: ForecastSample) -> int:
    return sample.trust


def _residents(sample: ForecastSample) -> int:
    return sample.residents


def _known(sample: ForecastSample) -> int:
    return sample.known
