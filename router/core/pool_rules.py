"""What a pool is made with: how it binds and waits, and the accounts that it shares with the other pools.

Separate from the Pool because it is data without behaviour, made from the settings and never changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from router.core.binding import Mode
from router.core.budget import Budget
from router.core.local_queue import LocalQueueRules
from router.core.prefix_settings import PrefixSettings
from router.core.worker import Role


@dataclass(frozen=True, slots=True)
class PoolRules:
    """How one pool binds and waits.

    Attributes:
        policy: name of the policy it starts with, for logs and metrics.
        mode: when a worker is chosen: as a request comes, when a slot is free, or whichever suits the load.
        max_transfers: KV transfers under way at one worker (decode pools).
        max_queued: waiting requests per model; max_wait_s: how long one may wait.
        stall_min_s, stall_max_s: bounds of the patience with a worker that shows no progress.
        prefix_index: bounds of what is remembered of prompts, while the policy asks for it.
        local: what is held back of the requests that have a worker.
    """

    name: str
    policy: str = ""
    role: Role = Role.BOTH
    mode: Mode = Mode.EARLY
    max_transfers: int = 4
    max_queued: int = 256
    max_wait_s: float = 30.0
    stall_min_s: float = 10.0
    stall_max_s: float = 120.0
    prefix_index: PrefixSettings = field(default_factory=PrefixSettings)
    local: LocalQueueRules = field(default_factory=LocalQueueRules)


@dataclass(frozen=True, slots=True)
class PoolBudgets:
    """Accounts that all pools of a process share."""

    in_flight: Budget
    queued_bytes: Budget
