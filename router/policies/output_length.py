"""How many tokens a request will write: running means of what requests like it wrote.

Separate from the length predictors of `router.core.predict`, which tell when one that runs will end: here one
mean is enough. The calibrated cost tolerates errors of 150 % (arXiv 2609.16206, section V-H).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from router.core.lease import Lease
from router.core.request import Request

_MEMORY = 20.0
_ENOUGH = 8
_OUTLIER = 4.0
_MAX_KINDS = 4_096


@dataclass(slots=True)
class _Mean:
    tokens: float
    samples: float = 0.0


@dataclass(slots=True)
class OutputLengths:
    """Means of one policy.

    Args:
        unknown_tokens: of a request that is like none before.

    State: `_means` by kind of request, the one used longest ago first.
    """

    unknown_tokens: float
    _means: OrderedDict[Hashable, _Mean] = field(default_factory=OrderedDict, repr=False)

    def expected(self, request: Request) -> float:
        """Output tokens of each sequence, at least 1; 0 for a call that generates none. Changes nothing."""
        if not request.api.generates:
            return 0.0
        most = float("inf") if request.max_tokens is None else float(request.max_tokens)
        if request.ignore_eos and request.max_tokens is not None:
            return max(most, 1.0)
        tokens = self.unknown_tokens
        for kind in _kinds(request):
            mean = self._means.get(kind)
            if mean is not None and mean.samples >= _ENOUGH:
                tokens = mean.tokens
                break
        return max(min(max(tokens, float(request.min_tokens or 0)), most), 1.0)

    def learn(self, lease: Lease) -> None:
        """A whole answer was had. A length that the client dictated says nothing, one that it cut only that
        there would have been more."""
        request, tokens = lease.request, lease.generated_tokens / lease.request.sequences
        if not request.api.generates or request.ignore_eos or lease.prefill_only or tokens < 1:
            return
        cut = request.max_tokens is not None and tokens >= request.max_tokens
        for kind in _kinds(request):
            mean = self._means.setdefault(kind, _Mean(tokens))
            self._means.move_to_end(kind)
            if cut and tokens <= mean.tokens:
                continue
            mean.samples = min(mean.samples + 1.0, _MEMORY)
            bounded = min(max(tokens, mean.tokens / _OUTLIER), mean.tokens * _OUTLIER)
            mean.tokens += (bounded - mean.tokens) / mean.samples
        while len(self._means) > _MAX_KINDS:
            self._means.popitem(last=False)

    def __len__(self) -> int:
        return len(self._means)


def _kinds(request: Request) -> tuple[Hashable, ...]:
    """From the most telling to the least. Lengths are alike when they have as many binary digits."""
    bound = request.max_tokens
    return (
        ("tenant", request.model, request.tenant, None if bound is None else bound.bit_length()),
        ("prompt", request.model, request.prompt_tokens.bit_length()),
        ("model", request.model),
    )
