"""What `pointsman check` says of workers that step together, and of policies that balance their steps.

Separate from the rest of the report because nearly nobody has such workers, and who does needs to know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from router.core.binding import Mode
from router.policies import POLICIES, Shape
from router.settings import PoolSettings, WorkerSettings

_NAMED: Final = 3
"""Workers that a sentence names."""


def barrier_warnings(name: str, pool: PoolSettings, ranks: Sequence[WorkerSettings]) -> Iterator[str]:
    """What is allowed but probably not meant, one sentence each.

    Args:
        ranks: the workers of the pool, those with several ranks once for each.
    """
    alone = [worker.name for worker in ranks if pool.barrier_group_of(worker) is None]
    if POLICIES[pool.policy].shape is Shape.BATCH and (alone or not ranks):
        whose = f"of {_some(alone)}" if alone else "of workers to come"
        yield (
            f"pool {name} runs {pool.policy}, and the barrier group {whose} is not declared; they are taken "
            "to wait for each other at every step, which independent engines do not"
        )
    stepping = [worker.name for worker in ranks if pool.barrier_group_of(worker) is not None]
    if stepping and not pool.knows_slots and pool.binding == "auto" and pool.mode is Mode.EARLY:
        yield (
            f"pool {name} has workers that step together ({_some(stepping)}) but not the slots of each, so "
            "requests are placed as they come; set slots to the max_num_seqs of a rank"
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
