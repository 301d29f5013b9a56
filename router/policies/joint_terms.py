"""What `joint` asks of the workers, and the seconds that it adds up.

Separate from the bill that computes them, so that each term stands beside its meaning.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from router.core.cost import Demand
from router.core.request import Request


class Ask(NamedTuple):
    """One request, and what it wants of the workers at hand.

    Attributes:
        demand: its tokens and sequences; no output where another worker decodes it.
        prefills: whether its prompt is computed there.
        key: of its key portion, which ends after `key_tokens`; None and 0 without one.
        horizon_steps: how long a barrier group is held up at most.
        stats_max_age_s: a scrape older than this is not used.
    """

    request: Request
    demand: Demand
    prefills: bool
    key: int | None
    key_tokens: int
    horizon_steps: float
    stats_max_age_s: float


class Terms(msgspec.Struct):
    """What is known of every worker: for each term one list of seconds, in the order of the workers.

    Attributes:
        prefill: its own, of what is not cached.
        stall: that prefill, for those who stand still meanwhile.
        wait: for the prompts that are queued before it.
        transfer: until its KV is there from another worker.
        decode: its own, in steps that last as long as those of an idle worker; in a barrier group as long as
            its slowest ones.
        company: its own, by which steps are longer for the residents and for itself.
        slowdown: for those who decode beside it.
        overflow: for a barrier group that it holds up.
    """

    prefill: list[float]
    stall: list[float]
    wait: list[float]
    transfer: list[float]
    decode: list[float]
    company: list[float]
    slowdown: list[float]
    overflow: list[float]


class Extras(NamedTuple):
    """Terms of one worker that are mostly 0, in seconds.

    Attributes:
        crowding: until slots and KV are free.
        eviction: to bring back what has to go for it.
        copy: for requests still to come, if its prefix is not copied now.
        lateness: beyond the time at which its client gives up, once more.
    """

    crowding: float
    eviction: float
    copy: float
    lateness: float

    @property
    def total(self) -> float:
        return self.crowding + self.eviction + self.copy + self.lateness
