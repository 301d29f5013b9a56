"""All reproductions, in the order of the page.

Separate from the studies so that none of them knows the others.
"""

from __future__ import annotations

from router.studies.reproductions import (
    balanceroute,
    calibrated,
    calibrated_signals,
    lecture_prefixes,
    lecture_queues,
    preble,
    preble_costs,
)
from router.studies.reproductions.study import Study

_ALL = (
    lecture_queues.CLASSIC,
    lecture_queues.BINS,
    lecture_queues.STALE,
    lecture_prefixes.DILEMMA,
    lecture_prefixes.THRESHOLD,
    lecture_prefixes.TOTAL,
    lecture_prefixes.HOT,
    preble_costs.COSTS,
    preble.PAIRING,
    preble.ORDER,
    preble.WINDOW,
    preble.TABLE,
    preble.ABLATION,
    calibrated.MAIN,
    calibrated.CONSTANTS,
    calibrated.WIDTH,
    calibrated.SCARCITY,
    calibrated.NOISE,
    calibrated_signals.SIGNALS,
    calibrated_signals.LOADS,
    calibrated.SAVED,
    balanceroute.MAIN,
    balanceroute.SCALE,
    balanceroute.WEIGHTS,
    balanceroute.CANDIDATES,
)

STUDIES: dict[str, Study] = {study.name: study for study in _ALL}
