"""Several requests at once, where they wait for slots: who goes where before any of them is charged.

Separate from the policy, which prices one request. Nothing here moves anything: each placement is charged to
drafts of the workers, so that the next one sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from router.core.policy import Choice
from router.core.request import Request
from router.policies.joint_bill import Bill
from router.policies.joint_draft import Draft

Price = Callable[[Request, Sequence[Draft]], Bill]
"""The bill of one request at some of the drafts."""


def slots_suffice(waiting: Sequence[Request], drafts: Sequence[Draft]) -> bool:
    """Whether all who wait can go at once. Then each may have the worker where it costs least; a choice of
    whom to let in first only pays while slots are few."""
    free = [draft.free_slots for draft in drafts]
    known = [slots for slots in free if slots is not None]
    return len(known) < len(free) or sum(known) >= sum([request.sequences for request in waiting])


def in_order(
    waiting: Sequence[Request], drafts: Sequence[Draft], price: Price, seed: int
) -> Iterator[Choice]:
    """The oldest first, each where it costs least of those with room for it."""
    for request in waiting:
        open_ones = _with_room(drafts, request)
        if not open_ones:
            if not any(draft.free_slots is None or draft.free_slots for draft in drafts):
                return
            continue
        bill = price(request, open_ones)
        index, cost = bill.cheapest(seed)
        yield _taken(bill, index, cost, open_ones)


def to_caches(
    waiting: Sequence[Request], drafts: Sequence[Draft], price: Price, seed: int
) -> Iterator[Choice]:
    """Of a barrier group: only those whose prompt is cached where that saves more than the group then waits
    for. All others may go where they fit best."""
    for request in waiting:
        open_ones = _with_room(drafts, request)
        if not open_ones:
            continue
        bill = price(request, open_ones)
        index, cost = bill.cheapest(seed)
        if bill.ask.prefills and bill.held[index] and _saved_s(bill, index) > bill.terms.overflow[index]:
            yield _taken(bill, index, cost, open_ones)


def _saved_s(bill: Bill, index: int) -> float:
    """Seconds that a prompt costs less at one worker than where nothing of it is cached."""
    spent = [own + stall for own, stall in zip(bill.terms.prefill, bill.terms.stall, strict=True)]
    return max(spent) - spent[index]


def _with_room(drafts: Sequence[Draft], request: Request) -> list[Draft]:
    """A request of more sequences than slots takes an empty worker."""
    return [
        draft
        for draft in drafts
        if draft.free_slots is None or draft.free_slots >= request.sequences or not draft.in_flight
    ]


def _taken(bill: Bill, index: int, cost: float, drafts: Sequence[Draft]) -> Choice:
    missed = bill.ask.demand.prompt_tokens - bill.held[index] if bill.ask.prefills else 0
    drafts[index].take(bill.ask.demand, missed)
    return Choice(bill.ask.request.id, drafts[index].name, cost=cost, reason=bill.reason(index))
