"""How loads of unequal workers are made comparable, and how the least one is found.

Separate because all load policies must agree on it: a worker of capacity 2 carries twice the load of its
fellows at the same cost, a worker that came back lately looks `warmup` times as loaded, and a tie is broken
by hash. Capacity and warmup are above zero, which the pool sees to. The request to be placed is counted in;
without it an idle slow worker would tie with an idle fast one, and a warm-up factor would multiply zero.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from router.core.policy import draw, tie_break
from router.core.request import Request
from router.core.worker import WorkerView

_TRY_STRIDE = 1 << 40
"""Puts the numbers of a second try beyond those of any later request."""


def request_loads(workers: Sequence[WorkerView]) -> list[float]:
    """Requests in flight, the new one included, over the worker's relative speed."""
    return [(w.in_flight + 1) * w.warmup / w.capacity for w in workers]


def token_loads(workers: Sequence[WorkerView], tokens: int) -> list[float]:
    """KV tokens held, with the new `tokens`, over the worker's relative speed."""
    return [(w.kv_tokens + tokens) * w.warmup / w.capacity for w in workers]


def least(costs: Sequence[float], workers: Sequence[WorkerView], request: Request, seed: int) -> int:
    """Index of the lowest cost. Among equals each is as likely, by one hash for the whole tie."""
    lowest = min(costs)
    ties = costs.count(lowest)
    if ties == 1:
        return costs.index(lowest)
    tied = [index for index, cost in enumerate(costs) if cost == lowest]
    return tied[draw(seed, draw_sequence(request), workers[tied[0]].name, ties)]


def draw_sequence(request: Request) -> int:
    """What a draw for a request is hashed by: the same at each call, and another one for each try.

    The try is part of it, or all requests that a worker failed would be drawn to its neighbours in the list.
    """
    return request.sequence + max(request.attempt, len(request.avoid)) * _TRY_STRIDE


def hash_bits(workers: Sequence[WorkerView], request: Request, seed: int) -> int:
    """64 bits for (seed, request, try, first worker): the same at each call, and different in the next pool.

    One hash whatever the number of workers; a hash for each of 256 idle ones would cost more than the pick.
    """
    return tie_break(seed, draw_sequence(request), workers[0].name)


def drawn(workers: Sequence[WorkerView], request: Request, seed: int) -> int:
    """Index of a worker drawn in proportion to capacity, by hash."""
    bits = hash_bits(workers, request, seed)
    ends = list(accumulate([w.capacity / w.warmup for w in workers]))
    # 53 bits, so that the quotient is below 1; the product may still round up to the last end.
    return min(bisect_right(ends, (bits >> 11) * 2.0**-53 * ends[-1]), len(ends) - 1)
