"""A running mean of output lengths for each tenant and model.

Separate from the survival curves because it answers another question: how long on the whole, from a few
answers of one tenant, where the curve of a model speaks for all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class Mean:
    """A mean that forgets. `samples` is how many it took."""

    tokens: float
    samples: int


class TenantMeans:
    """Exponentially weighted means by (tenant, model); the one used longest ago is dropped beyond `limit`.

    Args:
        memory: samples; a new one weighs 1/n until n reaches it, and 1/memory from then on.
    """

    __slots__ = ("_limit", "_means", "_memory")

    def __init__(self, limit: int, memory: int) -> None:
        self._limit = limit
        self._memory = memory
        self._means: OrderedDict[tuple[str, str], Mean] = OrderedDict()

    def get(self, tenant: str, model: str) -> Mean | None:
        """Changes nothing."""
        return self._means.get((tenant, model))

    def learn(self, tenant: str, model: str, tokens: int, *, ended: bool) -> None:
        """Takes a length. One that was cut says only that it would have been longer, which is news beyond
        the mean."""
        mean = self._means.get((tenant, model))
        if mean is None:
            mean = Mean(0.0, 0)
        if not ended and tokens <= mean.tokens:
            return
        mean.samples += 1
        mean.tokens += (tokens - mean.tokens) / min(mean.samples, self._memory)
        self.put(tenant, model, mean)

    def put(self, tenant: str, model: str, mean: Mean) -> None:
        self._means[tenant, model] = mean
        self._means.move_to_end((tenant, model))
        if len(self._means) > self._limit:
            self._means.popitem(last=False)

    def copy(self) -> TenantMeans:
        """The same means, with a future of their own."""
        twin = TenantMeans(self._limit, self._memory)
        twin._means = OrderedDict((key, Mean(mean.tokens, mean.samples)) for key, mean in self._means.items())
        return twin

    def items(self) -> list[tuple[str, str, Mean]]:
        """(tenant, model, mean), the one used longest ago first."""
        return [(tenant, model, mean) for (tenant, model), mean in self._means.items()]

    def __len__(self) -> int:
        return len(self._means)

    def __repr__(self) -> str:
        return f"<TenantMeans [{len(self._means)} of {self._limit}]>"


def geometric_steps(mean_tokens: float, steps: int) -> float:
    """E[min(rest, steps)] when a request ends with the same chance at each token: all that a mean alone
    says of the rest, whatever was written."""
    staying = 1.0 - 1.0 / max(mean_tokens, 1.0)
    return (1.0 - staying**steps) / (1.0 - staying)
