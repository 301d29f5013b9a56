"""What the connectors whose prefill engine pushes the KV have in common: two sides, and the messages between.

Separate from the two connectors, which say how a request names its transfer and what waits for what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from engines.mock.ask import HandOver
from engines.mock.connector import Errands, Mount
from engines.mock.exposition import Family
from engines.mock.fields import Json
from engines.mock.push_decode import Pulls
from engines.mock.push_line import Line, Manner
from engines.mock.push_prefill import Offers
from engines.mock.push_wire import (
    Expect,
    Failed,
    Introduce,
    Left,
    Message,
    Ready,
    Reply,
    Taken,
    Want,
    decode_message,
    encode,
)
from engines.model.engine import Fetch, Kept, Timing


class PushedKv:
    """Both sides of one incarnation.

    Args:
        mount: the engine and the way to others.
        manner: makes the ways of the connector, given how it speaks to peers.
    """

    def __init__(self, mount: Mount, manner: Callable[[Line], Manner]) -> None:
        self._mount = mount
        self._kept = mount.engine.kept
        self._errands = Errands(mount.died)
        self._line = Line(mount)
        ways = manner(self._line)
        self.offers = Offers(mount, self._line, self._errands, ways)
        self.pulls = Pulls(mount, self._line, self._errands, ways)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.offers!r} {self.pulls!r} {self._kept!r} {self._errands!r}>"

    # --- this engine ----------------------------------------------------------------------------------

    def kills(self, params: Mapping[str, object]) -> bool:
        """No params are known to kill an engine core."""
        return False

    def refused(self, params: Mapping[str, object]) -> None:
        """Nobody is told of a request that never reached the engine."""

    def left(self, hand_over: HandOver) -> None:
        """Nobody is told of a client that left, beside what its job tells."""

    def start(self, fetch: Fetch) -> None:
        """The engine wants KV, or wants it to be known that it does not."""
        self.pulls.start(fetch)

    def ended(self, job_id: str) -> None:
        """A job has left the engine, whichever way. Idempotent."""
        self.offers.ended(job_id)
        self.pulls.ended(job_id)

    def handle(self, job_id: str, kept: Kept, timing: Timing) -> Json | None:
        """Offer the blocks of a prefill. The answer tells nothing of them."""
        cut = self._mount.faults.strike("lease_cut")
        if cut is not None:
            self._kept.cut(job_id, cut.delay_s or 0.0, self._now())
        self.offers.prefilled(job_id, timing.cached_tokens + timing.external_tokens)
        self._watch_leases()
        return None

    def families(self, labels: Mapping[str, str], created: float) -> Iterator[Family]:
        """No series of its own."""
        return iter(())

    def state(self) -> Json:
        """Return what is kept and what is under way."""
        return {
            "engine_id": self._mount.engine_id(),
            "kept": len(self._kept),
            "expired": self._kept.expired,
            "offers": len(self.offers),
            "pulls": len(self.pulls),
            "sent": self.offers.sent,
            "received": self.pulls.received,
            "errands": len(self._errands),
        }

    def close(self) -> None:
        """Leave no task and no timer."""
        self._errands.close()

    # --- peers ----------------------------------------------------------------------------------------

    def answer(self, message: bytes, now: float) -> bytes:
        """Answer a message of a peer.

        Raises:
            Refusal: 400 for what is no message.
        """
        return encode(self._answer(decode_message(message)))

    def _answer(self, asked: Message) -> Reply:
        error = None
        match asked:
            case Introduce():
                pass
            case Want():
                error = self._called(asked)
            case Taken(name=name):
                return self._handed_over(name)
            case Left(name=name):
                self.offers.left(name)
            case Ready(job_id=job_id):
                error = self.pulls.ready(job_id)
            case Expect(job_id=job_id):
                error = self.pulls.expects(job_id)
            case Failed(job_id=job_id, reason=reason):
                self.pulls.failed(job_id, reason)
        return self._line.reply(error)

    def _handed_over(self, name: str) -> Reply:
        taken = self.offers.taken(name)
        self._watch_leases()
        reply = self._line.reply()
        if taken is not None:
            reply.content, reply.cached_tokens = taken.content.hex(), taken.cached_tokens
        return reply

    def _called(self, want: Want) -> str | None:
        if want.engine_id not in (None, self._mount.engine_id()):
            return f"engine {want.engine_id} is not here"
        self.offers.call(want)
        self._watch_leases()
        return None

    # --- leases ---------------------------------------------------------------------------------------

    def _watch_leases(self) -> None:
        end = self._kept.next_end
        if end is None:
            self._errands.forget("lease")
        elif end < float("inf"):
            self._errands.at("lease", end, self._end_leases)

    def _end_leases(self) -> None:
        if self._kept.expire(self._now()):
            self.offers.forget_expired()
            self._mount.wake()
        self._watch_leases()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
