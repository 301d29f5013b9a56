"""The prefill side of pushed KV: which transfers are on offer, who has called for them, and what is sent.

Separate from the decode side, for no engine is both for one request. A decode engine may call before the
prefill has come, or after it has ended; whoever is second starts the transfer.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from engines.mock.connector import Errands, Mount
from engines.mock.push_line import Line, Manner, PeerLost
from engines.mock.push_wire import Expect, Failed, Ready, Want

LOOK_S = 1.0
"""How often a prefill engine makes sure, during a transfer, that the other side is still there."""


class Stage(enum.Enum):
    """How far a prefill is."""

    HELD = "held"
    RUNNING = "running"
    KEPT = "kept"
    SENDING = "sending"


@dataclass(slots=True, eq=False)
class Offer:
    """One prefill whose KV a decode engine will call for.

    Attributes:
        cached_tokens: of its prompt, known when it has ended.
        over: set when nothing is to be sent any more.
    """

    name: str
    job_id: str
    stage: Stage
    cached_tokens: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_blocks(self) -> bool:
        """Whether its prefill has ended."""
        return self.stage in (Stage.KEPT, Stage.SENDING)


class Given(NamedTuple):
    """What a decode engine has taken."""

    content: bytes
    cached_tokens: int


class Offers:
    """The transfers of one prefill engine.

    Args:
        mount: the engine, and how its jobs are let go on or ended.
    """

    def __init__(self, mount: Mount, line: Line, errands: Errands, manner: Manner) -> None:
        self._mount = mount
        self._kept = mount.engine.kept
        self._line = line
        self._errands = errands
        self._manner = manner
        self._offers: dict[str, Offer] = {}
        self._by_job: dict[str, Offer] = {}
        self._callers: dict[str, Want] = {}
        self.sent = 0
        self.failed_meetings = 0
        self.failed_transfers = 0

    def __repr__(self) -> str:
        return f"<Offers {len(self._offers)} prefills, {len(self._callers)} callers>"

    def __len__(self) -> int:
        return len(self._offers) + len(self._callers)

    def count(self, *stages: Stage) -> int:
        """Prefills that are so far."""
        return sum(offer.stage in stages for offer in self._offers.values())

    # --- from this engine -----------------------------------------------------------------------------

    def expect(self, job_id: str, name: str) -> None:
        """A prefill whose KV will be called for has come."""
        meets = self._manner.meets
        if meets and name in self._offers:
            self._mount.failed(job_id, f"Another request is in bootstrap room {name}.")
            return
        offer = Offer(name, job_id, Stage.HELD if meets else Stage.RUNNING)
        self._offers[name] = self._by_job[job_id] = offer
        if name in self._callers:
            self._let_run(offer)
        elif meets:
            wait_s = self._manner.prefill_wait_s
            self._errands.at(f"offer {name}", self._now() + wait_s, lambda: self._nobody_came(offer))

    def prefilled(self, job_id: str, cached_tokens: int) -> None:
        """A prefill has ended and its blocks are kept. What has no name stays until its lease ends."""
        offer = self._by_job.get(job_id)
        if offer is not None:
            offer.cached_tokens = cached_tokens
            offer.stage = Stage.KEPT
            self._send(offer)

    def ended(self, job_id: str) -> None:
        """A prefill has left the engine before its KV was taken, or is over. Idempotent."""
        offer = self._by_job.get(job_id)
        if offer is None or (offer.has_blocks and not self._manner.meets):
            return
        caller = self._callers.get(offer.name)
        self._drop(offer)
        if self._manner.meets and caller is not None:
            self._errands.run(self._tell(caller, "The prefill was aborted."))

    def forget_expired(self) -> None:
        """Let go of offers whose blocks are not kept any more."""
        for offer in list(self._offers.values()):
            if offer.has_blocks and offer.job_id not in self._kept:
                self._drop(offer)

    # --- from decode engines --------------------------------------------------------------------------

    def call(self, want: Want) -> None:
        """A decode engine has room for the KV of a transfer."""
        if self._manner.meets and self._mount.faults.strike("lose_handle") is not None:
            return
        name = want.name
        self._callers[name] = want
        self._errands.at(
            f"caller {name}", self._now() + self._manner.prefill_wait_s, lambda: self._waited_enough(want)
        )
        offer = self._offers.get(name)
        if offer is not None:
            self._let_run(offer)
            self._send(offer)

    def taken(self, name: str) -> Given | None:
        """The KV of a transfer has arrived; what it was, None when it was not kept any more."""
        offer = self._offers.get(name)
        if offer is None or offer.stage is not Stage.SENDING:
            return None
        content = self._drop(offer)
        if content is None:
            return None
        self.sent += 1
        if self._manner.meets:
            self._mount.handed(offer.job_id)
        return Given(content, offer.cached_tokens)

    def left(self, name: str) -> None:
        """The decode engine of a transfer does not want it any more."""
        offer = self._offers.get(name)
        if offer is not None:
            self._fail(offer, "Aborted by AbortReq.")
        self._forget_caller(name)

    # --- what follows ---------------------------------------------------------------------------------

    def _let_run(self, offer: Offer) -> None:
        if offer.stage is Stage.HELD:
            self._errands.forget(f"offer {offer.name}")
            offer.stage = Stage.RUNNING
            self._mount.admit(offer.job_id)

    def _send(self, offer: Offer) -> None:
        """Begin the transfer if both sides are there."""
        caller = self._callers.get(offer.name)
        if caller is None or offer.stage is not Stage.KEPT:
            return
        if caller.blocks == 0:
            self._drop(offer)
            return
        offer.stage = Stage.SENDING
        self._errands.forget(f"caller {offer.name}")
        self._errands.run(self._deliver(offer, caller))

    async def _deliver(self, offer: Offer, caller: Want) -> None:
        """Tell the decode engine to begin, and watch over it until it has ended."""
        try:
            await self._line.ask(caller.caller, Ready(caller.job_id))
            while not await _over_within(offer, LOOK_S):
                if not self._manner.meets:
                    self._kept.prolong((offer.job_id,), self._now())
                await self._line.ask(caller.caller, Expect(caller.job_id))
        except PeerLost as lost:
            if self._offers.get(offer.name) is not offer:
                return
            self._forget_caller(offer.name)
            if self._manner.meets:
                self._fail(offer, str(lost))
            else:
                self.failed_transfers += 1
                offer.stage = Stage.KEPT  # kept for whoever may call, until its lease ends

    async def _tell(self, caller: Want, reason: str) -> None:
        try:
            await self._line.ask(caller.caller, Failed(caller.job_id, reason))
        except PeerLost:
            return  # whoever is gone waits for nothing

    def _nobody_came(self, offer: Offer) -> None:
        wait_s = self._manner.prefill_wait_s
        self._fail(offer, f"Request {offer.name} timed out after {wait_s:g}s in KVPoll.Bootstrapping")

    def _waited_enough(self, want: Want) -> None:
        """No prefill has come for a decode engine that waits, or it takes too long."""
        self._forget_caller(want.name)
        if not self._manner.meets and want.blocks:
            self._errands.run(self._tell(want, "Timeout waiting for P side ready."))

    def _fail(self, offer: Offer, reason: str) -> None:
        """The request of a prefill ends with an error."""
        what = "transfer" if offer.has_blocks else "bootstrap"
        if offer.has_blocks:
            self.failed_transfers += 1
        else:
            self.failed_meetings += 1
        self._drop(offer)
        self._mount.failed(
            offer.job_id,
            f"Prefill {what} failed for request rank=0 bootstrap_room={offer.name} with exception {reason}",
        )

    def _drop(self, offer: Offer) -> bytes | None:
        """Let go of a transfer and of its blocks; what they held."""
        del self._by_job[offer.job_id]
        if self._offers.get(offer.name) is offer:
            del self._offers[offer.name]
            self._errands.forget(f"offer {offer.name}")
            if self._manner.meets or offer.has_blocks:
                self._forget_caller(offer.name)
        offer.over.set()
        if not offer.has_blocks or offer.job_id not in self._kept:
            return None
        content = self._kept.release(offer.job_id, self._now())
        self._mount.wake()
        return content

    def _forget_caller(self, name: str) -> None:
        self._callers.pop(name, None)
        self._errands.forget(f"caller {name}")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _over_within(offer: Offer, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await offer.over.wait()
    except TimeoutError:
        return False
    return True
