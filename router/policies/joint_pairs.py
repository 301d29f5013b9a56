"""Two ends of one request together: a prefill worker, a decode worker, and the transfer between them.

Separate from the bill of one side, which it adds to another: of all pairs only those of the cheapest workers
and of the holders are looked at, since nothing but the transfer depends on both.
"""

from __future__ import annotations

from typing import NamedTuple

from router.core.policy import draw
from router.core.request import Request
from router.policies.joint_bill import Bill
from router.policies.load import draw_sequence


class Pair(NamedTuple):
    """One of those looked at: indices of both workers, and the seconds of delay."""

    prefill: int
    decode: int
    transfer_s: float
    cost: float


class PairBill:
    """The costs of the pairs for one request.

    Args:
        candidates: workers of the lowest cost that are looked at on each side.
    """

    __slots__ = ("_costs", "_decodes", "_moved", "_prefills", "decode", "prefill")

    def __init__(self, prefill: Bill, decode: Bill, candidates: int) -> None:
        self.prefill, self.decode = prefill, decode
        self._prefills = _restricted(prefill, candidates)
        self._decodes = _restricted(decode, candidates)
        then = [decode.cost(index) for index in self._decodes]
        self._moved: list[list[float]] = []
        self._costs: list[list[float]] = []
        for index in self._prefills:
            cost_s = prefill.cost(index)
            moved = decode.transfers_s(prefill.workers[index].name, self._decodes)
            self._moved.append(moved)
            self._costs.append(
                [cost_s + moved_s + then_s for moved_s, then_s in zip(moved, then, strict=True)]
            )

    @property
    def pairs(self) -> list[Pair]:
        """All that were looked at, by prefill worker."""
        return [
            Pair(first, second, moved_s, cost)
            for first, moved, costs in zip(self._prefills, self._moved, self._costs, strict=True)
            for second, moved_s, cost in zip(self._decodes, moved, costs, strict=True)
        ]

    def names(self, pair: Pair) -> tuple[str, str]:
        """Prefill and decode worker of a pair."""
        return self.prefill.workers[pair.prefill].name, self.decode.workers[pair.decode].name

    def named(self, pair: Pair) -> dict[str, float]:
        """All terms of a pair by name: those of each side, and what is between them."""
        sides = (("prefill", self.prefill, pair.prefill), ("decode", self.decode, pair.decode))
        terms = {
            f"{side}.{name}": value
            for side, bill, index in sides
            for name, value in bill.named(index).items()
            if value
        }
        return {**terms, "transfer_s": pair.transfer_s}

    def cheapest(self, request: Request, seed: int) -> Pair:
        """The lowest cost; among equals one is drawn by hash, as `decide` does for a table of all of them."""
        lowest = min(map(min, self._costs))
        tied = [
            Pair(self._prefills[row], self._decodes[column], self._moved[row][column], cost)
            for row, costs in enumerate(self._costs)
            if min(costs) == lowest
            for column, cost in enumerate(costs)
            if cost == lowest
        ]
        first = " ".join(self.names(tied[0]))
        return tied[draw(seed, draw_sequence(request), first, len(tied))]


def _restricted(bill: Bill, candidates: int) -> list[int]:
    """The cheapest, and the cheapest of those who hold most of the prompt, as they were offered."""
    bounds = bill.bounds()
    cheapest = sorted(range(len(bounds)), key=bounds.__getitem__)[:candidates]
    return sorted({*cheapest, *sorted(bill.longest_holders, key=bounds.__getitem__)[:candidates]})
