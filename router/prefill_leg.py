"""The prefill leg: sent as its connector says, read whole, never relayed.

Separate because it is the same whether the decode leg follows it or runs beside it.
"""

from __future__ import annotations

import asyncio

from router.admission import Job
from router.connectors import Connector, Handle, Pairing
from router.core.deadlines import Due
from router.core.errors import UpstreamBroken
from router.core.retry import Failure
from router.fleet import Member
from router.journey import Journey
from router.sending import LegFailed, Outgoing, Sender
from router.upstream.exchange import AnsweredMeanwhile

_MAX_ANSWER_BYTES = 16 * 1024 * 1024
_NO_HANDLE = "The prefill worker answered without the KV that a decode worker needs."


class PrefilledMeanwhile(asyncio.CancelledError):
    """The client left in the very turn in which the prefill was answered: somebody must let go of its KV.

    Attributes:
        handle: what the engine gave.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__()
        self.handle = handle


class PrefillLegs:
    """Runs prefill legs. No state."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def run(
        self, job: Job, connector: Connector, member: Member, pairing: Pairing, journey: Journey, due: Due
    ) -> Handle:
        """What the engine gave, by `due`.

        Raises:
            LegFailed: the engine refused, or answered well and gave nothing that could be handed over.
            UpstreamError: it did not answer in time, or not at all.
            PrefilledMeanwhile: cancelled, and it had answered.
        """
        leg = connector.prefill_leg(job.held.data, pairing)
        outgoing = Outgoing(leg.body, due.at, due.wait.value, leg.headers)
        try:
            with await self._sender.open(job, member, journey, outgoing) as exchange:
                data = await exchange.read_all(
                    max_bytes=_MAX_ANSWER_BYTES, until=due.at, phase=due.wait.value
                )
        except AnsweredMeanwhile as answered:
            late = connector.read_prefill(answered.body, pairing) if answered.status < 300 else None
            if late is None:
                raise
            raise PrefilledMeanwhile(late) from None
        handle = connector.read_prefill(data, pairing)
        if handle is None:
            raise LegFailed(Failure.NO_HANDLE, member.name, error=UpstreamBroken(_NO_HANDLE))
        return handle
