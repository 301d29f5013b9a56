"""Which requests were served as promised.

Separate from the telemetry, which counts: what a class is promised, and when that was kept, is a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from router.core.request import Request

TIGHT, LOOSE = "tight", "loose"
LOOSE_FACTOR = 3.0
"""Loose targets over tight ones, as in arXiv 2609.16206."""


class Served(msgspec.Struct, frozen=True, gc=False):
    """How long one answer took. None where it was not measured.

    Attributes:
        ttft_s: to its first data event, or to the whole answer when it came in one piece.
        tpot_s: per output token after the first, of a stream.
        output_tokens: of all sequences.
    """

    status: int
    ttft_s: float | None
    tpot_s: float | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Targets:
    """What one class is promised; None: nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None

    def times(self, factor: float) -> Targets:
        return Targets(
            None if self.ttft_s is None else self.ttft_s * factor,
            None if self.tpot_s is None else self.tpot_s * factor,
        )

    def met(self, served: Served, *, streamed: bool) -> bool:
        """Whether both were kept.

        An answer in one piece shows no first token: it is in time when the whole of it took no longer than
        its first token and all others may.
        """
        if served.status >= 500 or served.ttft_s is None:
            return False
        if streamed:
            in_time = self.ttft_s is None or served.ttft_s <= self.ttft_s
            return in_time and (self.tpot_s is None or (served.tpot_s or 0.0) <= self.tpot_s)
        if self.ttft_s is None or self.tpot_s is None:
            return True
        return served.ttft_s <= self.ttft_s + self.tpot_s * max((served.output_tokens or 1) - 1, 0)


_NOTHING = Targets()


@dataclass(frozen=True, slots=True)
class Slos:
    """The targets of all classes.

    Attributes:
        configured: by class, for every model; goes before what was measured.
        measured: by model and class.
        default_class: of requests whose key names no class that is known.
    """

    configured: Mapping[str, Targets] = field(default_factory=dict)
    measured: Mapping[str, Mapping[str, Targets]] = field(default_factory=dict)
    default_class: str = LOOSE

    def __bool__(self) -> bool:
        """Whether anything is promised to anybody."""
        return bool(self.configured or self.measured)

    def class_of(self, request: Request) -> str:
        return request.slo if request.slo in (TIGHT, LOOSE) else self.default_class

    def targets(self, model: str, name: str) -> Targets:
        """Of a class; without any of its own, loose ones follow from tight ones. None at all: empty."""
        for known in (self.configured, self.measured.get(model, {})):
            own = known.get(name)
            if own:
                return own
            if name == LOOSE and known.get(TIGHT):
                return known[TIGHT].times(LOOSE_FACTOR)
        return _NOTHING

    def judge(self, request: Request, served: Served) -> tuple[str, bool] | None:
        """(class, whether it was served as promised); None for what nothing was promised, or what the client
        itself ended or got wrong."""
        if not request.api.generates or 400 <= served.status < 500:
            return None
        name = self.class_of(request)
        targets = self.targets(request.model, name)
        return (name, targets.met(served, streamed=request.stream)) if targets else None
