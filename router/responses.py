"""Which worker holds which stored response: the Responses API is stateful, its objects live in one engine.

Bounded: the oldest is forgotten first. An id is believed as long as its worker is the same incarnation.
"""

from __future__ import annotations

from collections import OrderedDict

from router.core.errors import NotFound, shown
from router.fleet import Fleet, Member

MAX_RESPONSES = 100_000


class ResponseOwners:
    """Response id to (worker, incarnation), newest last."""

    def __init__(self, fleet: Fleet, *, limit: int = MAX_RESPONSES) -> None:
        self._fleet = fleet
        self._limit = limit
        self._owners: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def learn(self, response_id: str, member: Member) -> None:
        """An answer of this worker carried this id."""
        self._owners[response_id] = (member.name, member.worker.incarnation)
        self._owners.move_to_end(response_id)
        if len(self._owners) > self._limit:
            self._owners.popitem(last=False)

    def owner(self, response_id: str) -> str:
        """Name of the worker that holds it. Raises NotFound when nobody does (any more)."""
        found = self._owners.get(response_id)
        member = self._fleet.member(found[0]) if found is not None else None
        if found is None or member is None or member.worker.incarnation != found[1]:
            raise NotFound(
                f"No stored response `{shown(response_id)}`: it is unknown here, or its worker is gone.",
                param="previous_response_id",
            )
        return found[0]

    def __repr__(self) -> str:
        return f"<ResponseOwners [{len(self._owners)} of {self._limit}]>"
