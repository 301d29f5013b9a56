"""The prefill leg: sent as its connector says, read whole, never relayed.

Separate because it is the same whether the decode leg follows it or runs beside it.
"""

from __future__ import annotations

from router.admission import Job
from router.connectors import Connector, Handle, Pairing
from router.core.deadlines import Due
from router.core.retry import Failure
from router.fleet import Member
from router.journey import Journey
from router.sending import LegFailed, Outgoing, Sender

_MAX_ANSWER_BYTES = 16 * 1024 * 1024


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
        """
        leg = connector.prefill_leg(job.held.data, pairing)
        outgoing = Outgoing(leg.body, due.at, due.wait.value, leg.headers)
        with await self._sender.open(job, member, journey, outgoing) as exchange:
            data = await exchange.read_all(max_bytes=_MAX_ANSWER_BYTES, until=due.at, phase=due.wait.value)
        handle = connector.read_prefill(data, pairing)
        if handle is None:
            raise LegFailed(Failure.NO_HANDLE, member.name)
        return handle
