"""Calibrated workers whose accounts follow from the leases that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from router.core.calibration import Calibration
from router.core.lease import Lease
from router.core.request import Api, Request
from router.core.step_model import StepModel, TransferModel
from router.core.worker import WorkerView
from tests.policies.examples import NOW, FrozenWorker, request

A40 = StepModel(
    prefill_base_s=4e-3,
    prefill_per_token_s=60e-6,
    step_base_s=15.5e-3,
    step_per_sequence_s=0.12e-3,
    step_per_kv_token_s=0.12e-6,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorker(FrozenWorker):
    """A view that also knows its residents, and what it takes to get KV there."""

    residents: Sequence[Lease] = ()
    barrier_peers: Sequence[WorkerView] = ()
    transfers: Mapping[str, TransferModel] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)


def chat(sequence: int = 0, /, **what: object) -> Request:
    """A request that generates."""
    return request(sequence, **({"api": Api.CHAT} | what))


def resident(prompt: int, written: int = 0, expected: int = 200, **what: object) -> Lease:
    """A lease that decodes, unless told that it is not prefilled."""
    wanted = chat(prompt_tokens=prompt, sequences=what.pop("sequences", 1))
    fields: dict[str, object] = {"granted": NOW, "prefilled": True, "generated_tokens": written} | what
    return Lease(wanted, "w", 0, prompt_tokens=prompt, expected_tokens=expected, **fields)  # type: ignore[arg-type]  # an example names only what it is about


def known(name: str, *residents: Lease, **what: object) -> KnownWorker:
    """A calibrated worker that holds these."""
    fields: dict[str, object] = {
        "step": A40,
        "residents": residents,
        "in_flight": len(residents),
        "sequences": sum(lease.request.sequences for lease in residents),
        "kv_tokens": sum(lease.kv_tokens for lease in residents),
        "remaining_tokens": sum(lease.remaining_tokens for lease in residents),
        "queued_tokens": sum(lease.prompt_tokens for lease in residents if not lease.prefilled),
    }
    return KnownWorker(name=name, **(fields | what))  # type: ignore[arg-type]  # as above
