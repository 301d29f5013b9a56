"""What `pointsman check` says of how each pool really chooses: by what, when, and with what knowledge.

Separate from the rest of the report because this is what differs from what was written: defaults filled in,
binding as the policy asks for it, coefficients as far as they were measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from router.core.binding import Mode
from router.policies import POLICIES, Shape
from router.settings import PoolSettings, Settings, WorkerSettings
from router.settings.calibration_file import read_calibration

_NAMED = 3
"""Workers that a line names."""

Fact = tuple[str, str]


def policy_report(
    pool: PoolSettings, settings: Settings, ranks: tuple[WorkerSettings, ...]
) -> Iterator[Fact]:
    """Names and values, for lines of the report.

    Args:
        ranks: the workers of the pool, those with several ranks once for each.
    """
    spec = POLICIES[pool.policy]
    rule = next(iter((spec.page or "").splitlines()), "")
    params = spec.check(pool.policy_params)
    values = [f"{field.name} {getattr(params, field.name)}" for field in dataclasses.fields(params)]
    yield "policy", f"{pool.policy}: {rule}"
    if values:
        yield "parameters", ", ".join(values)
    yield "cost", spec.cost_unit
    yield "binding", pool.mode.value
    yield "decides", _decides(pool)
    yield "calibrated", _calibrated(settings, ranks)
    if pool.shadow_policies:
        share = (
            "" if pool.shadow_sample == 1.0 else f", asked about {pool.shadow_sample:.0%} of the decisions"
        )
        yield "shadows", f"{', '.join(pool.shadow_policies)}{share}"


def _decides(pool: PoolSettings) -> str:
    """On which requests, when, and why then."""
    batch = POLICIES[pool.policy].shape is Shape.BATCH
    if pool.mode is Mode.ADAPTIVE:
        return "as a request comes or when a slot is free, by the load"
    if pool.mode is Mode.EARLY:
        return "one request at a time, as it comes"
    why = "as its policy" if batch else "as its barrier group"
    asked = f"{why} asks for it" if pool.binding == "auto" else "as configured"
    return f"{'all that wait at once' if batch else 'the oldest first'}, when a slot is free, {asked}"


def _calibrated(settings: Settings, ranks: tuple[WorkerSettings, ...]) -> str:
    calibration = settings.calibration
    live = "from live traffic, once there is enough" if calibration.online else "no"
    if calibration.file is None:
        return live
    measured = read_calibration(calibration.file)
    without = [worker.name for worker in ranks if measured.worker(worker.name, worker.url) is None]
    found = f"{len(ranks) - len(without)} of {len(ranks)} workers by {calibration.file}"
    if not without:
        return found
    names = ", ".join(without[:_NAMED]) + (" …" if len(without) > _NAMED else "")
    return f"{found}; {names}: {live}"
