"""How far a worker's event stream was followed, and what the next message means for that.

Separate because it is pure: sequence numbers, the engine's clock, and a memory of the last message decide
whether events are missing, come twice, or belong to another life of the engine.
"""

from __future__ import annotations

import enum

from router.kv_events.framing import Message

_MOST_MISSED = 2**31
"""Batches. An engine that takes a step each millisecond publishes so many in 25 days."""


class Step(enum.Enum):
    """What a message is, after those that were taken."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    """Some were published before it and did not arrive."""
    RESTART = "restart"
    """The engine counts anew, or from where it cannot have come to: it is another process, which holds
    nothing of what was believed."""


class Position:
    """Of one stream.

    Attributes:
        expected: number of the next message; None before the first, when any is as good.
    """

    __slots__ = ("_digest", "_live", "_ts", "expected")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The next message is the first one."""
        self.expected: int | None = None
        self._live = -1
        self._ts = 0.0
        self._digest: int | None = None

    def from_start(self) -> None:
        """Everything is known: nothing was published so far."""
        self.forget()
        self.expected = 0

    def judge(self, message: Message, ts: float | None) -> Step:
        """What a live message is; `ts` is its engine's time (s), None when that cannot be read.

        What was replayed may arrive once more from the queue of the live socket. It is told from a new life
        of the engine, whose numbers are low as well, by its time; and numbers of one process never fall on
        the live socket itself.
        """
        if self.expected is None:
            return Step.NEXT
        if message.sequence >= self.expected:
            return self._ahead(message.sequence - self.expected)
        if message.sequence == self.expected - 1 and self.was_last(message):
            return Step.DUPLICATE
        later = ts is not None and ts > self._ts
        return Step.RESTART if later or message.sequence <= self._live else Step.DUPLICATE

    @staticmethod
    def _ahead(missed: int) -> Step:
        if missed == 0:
            return Step.NEXT
        return Step.GAP if missed <= _MOST_MISSED else Step.RESTART

    def was_last(self, message: Message) -> bool:
        """Whether this is the message that was taken last, to the byte."""
        return hash(message.payload) == self._digest

    def take(self, message: Message, ts: float | None) -> None:
        """It was taken in; what is expected follows it."""
        self.expected = message.sequence + 1
        self._digest = hash(message.payload)
        if ts is not None:
            self._ts = ts

    def seen(self, message: Message) -> None:
        """It came on the live socket, whatever it was."""
        self._live = message.sequence

    def __repr__(self) -> str:
        return f"<Position [expects {self.expected}]>"
