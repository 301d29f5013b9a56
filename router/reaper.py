"""When time itself is the event: waits that ran out, workers that stall, workers that are gone for good.

Nothing is reaped by age while its socket lives; streams have deadlines of their own.
"""

from __future__ import annotations

import asyncio

from router.fleet import Fleet

PERIOD_S = 0.25


async def reap(fleet: Fleet, *, period_s: float = PERIOD_S) -> None:
    """Looks at every pool, for ever."""
    while True:
        reap_once(fleet)
        await asyncio.sleep(period_s)


def reap_once(fleet: Fleet) -> None:
    """One look: fails what has waited too long, marks stalled workers, forgets removed ones that are idle."""
    for dispatcher in fleet.dispatchers.values():
        dispatcher.expire()
        dispatcher.pool.roster.forget_gone()
