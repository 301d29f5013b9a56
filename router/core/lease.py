"""One charged unit of work at a worker, settled exactly once."""

from __future__ import annotations

import enum

import msgspec

from router.core.request import Request


class Outcome(enum.Enum):
    """How a lease ended. Only `ok` and `client_error` say something good about the worker."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    OK = "ok"
    CLIENT_ERROR = "client_error"
    """The engine refused the request with a 4xx of the client's making."""
    CANCELLED = "cancelled"
    """The client left, or its request was given up on our side: it says nothing about the worker."""
    FAILED = "failed"
    """The worker broke its answer, reset the connection, let nobody in, or answered 5xx."""
    BUSY = "busy"
    """The engine is full (429, 503): nothing is wrong with it, but another one may take the request."""
    UNREACHABLE = "unreachable"
    """Its port refuses connections; nothing was sent."""
    TIMEOUT = "timeout"
    """A deadline ran out after the request was sent. Whose fault that is depends on how silent it was."""
    HANDOVER = "handover"
    """The KV did not get from the prefill worker to the decode worker. Which of them is to blame only shows
    when it happens with others, too."""
    EXPIRED = "expired"
    """The reaper settled it: nobody else did."""


class Lease(msgspec.Struct, eq=False):
    """Held by whoever drives one request at one worker.

    The ledger of its pool alone changes it. Counts are what was charged to the worker and not yet given back.

    Attributes:
        policy: name of the one that chose the worker.
        others: the best workers that were not chosen and what each would have cost, when that is recorded.
        incarnation: of the worker at the time of the charge; a late settlement of an older incarnation
            moves no account of the new one.
        prompt_tokens: charged, corrected when the engine says the true length.
        generated_tokens: output tokens seen so far, all sequences together.
        expected_tokens: predicted output tokens, all sequences together, at least 1.
        prompt_known: the engine has said how long the prompt is.
        cached_tokens: prompt tokens that it found in its cache, None when it did not say.
        prefilled: whether the first output was seen, or the prompt was another worker's to prefill.
        prefill_only: its answer is KV for another worker, in one piece; once it is prefilled the lease only
            keeps that KV.
        transferring: the worker still has to get the KV from another one.
        counted: it stands for its request among those in flight. Of two leases of one request one does.
        last_event: when the engine last gave a sign of life for this lease (s).
        prefill: the lease at the worker that prefills, or has prefilled, for this one.
        ahead: what is expected of its rest, while a policy looks ahead (see `Forecasts`).
    """

    request: Request
    worker: str
    incarnation: int
    granted: float
    prompt_tokens: int
    expected_tokens: int
    cost: float = 0.0
    reason: str = ""
    policy: str = ""
    others: tuple[tuple[str, float], ...] = ()
    generated_tokens: int = 0
    prompt_known: bool = False
    cached_tokens: int | None = None
    prefilled: bool = False
    prefill_only: bool = False
    transferring: bool = False
    counted: bool = False
    last_event: float = 0.0
    outcome: Outcome | None = None
    prefill: Lease | None = None
    ahead: tuple[bytes, int, int] | None = None

    @property
    def settled(self) -> bool:
        return self.outcome is not None

    @property
    def answered(self) -> bool:
        """Whether its worker has shown output for it, so that it holds the prompt."""
        return self.prefilled and not self.transferring

    @property
    def keeps(self) -> bool:
        """Whether its work is done and only the KV is kept, until another worker has it."""
        return self.prefill_only and self.prefilled

    @property
    def streamed(self) -> bool:
        """Whether its events are seen as the engine makes them."""
        return self.request.stream and not self.prefill_only

    @property
    def kv_tokens(self) -> int:
        return self.prompt_tokens + self.generated_tokens

    @property
    def remaining_tokens(self) -> int:
        """Output still expected. Never 0 while it runs: an overrun stays visible."""
        expected = self.expected_tokens
        left = expected - self.generated_tokens
        # Written without min and max: it is read twice per event.
        floor = 8 if expected < 80 else expected // 10
        if left >= floor:
            return left
        return floor if floor < expected else expected

    def __repr__(self) -> str:
        state = self.outcome.value if self.outcome else "held"
        return (
            f"<Lease {self.request.id} on {self.worker}#{self.incarnation} "
            f"[{self.prompt_tokens}+{self.generated_tokens} tokens | {state}]>"
        )
