"""Who steps together: the members of each barrier group, for each of them.

Separate from the roster, which knows when members come and go, so that there is one place that says who waits
for whom.
"""

from __future__ import annotations

from collections.abc import Iterable

from router.core.worker import Worker


def fill_peers(workers: Iterable[Worker], *, pool_is_group: bool) -> None:
    """Tells each worker who steps together with it, in the order given.

    Nobody is left out for its state: a full or a draining member is waited for like any other, and one that
    was removed runs until its streams have ended.

    Args:
        pool_is_group: those of no declared group are taken to be one group, for a policy that balances steps;
            otherwise each of them is alone.
    """
    groups: dict[str | None, list[Worker]] = {}
    for worker in workers:
        groups.setdefault(worker.barrier_group, []).append(worker)
    for name, members in groups.items():
        peers = tuple(members) if name is not None or pool_is_group else ()
        for worker in members:
            worker.barrier_peers = peers
