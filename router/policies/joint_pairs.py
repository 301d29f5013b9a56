"""Two ends of one request together: a prefill worker, a decode worker, and the transfer between them.

Separate from the bill of one side, which it adds to another: of all pairs only those of the cheapest workers
and of the holders are looked at, since nothing but the transfer depends on both.
"""

from __future__ import annotations

from collections.abc import Iterator
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

    __slots__ = ("decode", "pairs", "prefill")

    def __init__(self, prefill: Bill, decode: Bill, candidates: int) -> None:
        self.prefill, self.decode = prefill, decode
        self.pairs = list(self._pairs(candidates))

    def _pairs(self, candidates: int) -> Iterator[Pair]:
        prefill, decode = self.prefill, self.decode
        decodes = _restricted(decode, candidates)
        costs = [decode.cost(index) for index in decodes]
        for first in _restricted(prefill, candidates):
            cost_s = prefill.cost(first)
            transfers = decode.transfers_s(prefill.workers[first].name, decodes)
            for second, moved_s, then_s in zip(decodes, transfers, costs, strict=True):
                yield Pair(first, second, moved_s, cost_s + moved_s + then_s)

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
        lowest = min([pair.cost for pair in self.pairs])
        tied = [pair for pair in self.pairs if pair.cost == lowest]
        first = " ".join(self.names(tied[0]))
        return tied[draw(seed, draw_sequence(request), first, len(tied))]


def _restricted(bill: Bill, candidates: int) -> list[int]:
    """The cheapest, and the cheapest of those who hold most of the prompt, as they were offered."""
    bounds = bill.bounds()
    cheapest = sorted(range(len(bounds)), key=bounds.__getitem__)[:candidates]
    return sorted({*cheapest, *sorted(bill.longest_holders, key=bounds.__getitem__)[:candidates]})
