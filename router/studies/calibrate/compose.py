"""Puts together what was measured: the file, and the conclusions in it.

Separate from the session, which is about when things happen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from router.core.worker import Role
from router.settings.calibration_file import (
    CalibrationFile,
    GateResult,
    KvShare,
    PrefillLaw,
    SloMeasured,
    StepLaw,
    TransferMeasured,
    WorkerMeasured,
)
from router.studies.calibrate.bench import Found, output_tokens
from router.studies.calibrate.grid import Effort, full_sequences, operating_sequences
from router.studies.calibrate.subject import Subject
from router.studies.calibrate.verdict import OperatingPoint, kv_share, slo_of


@dataclass(slots=True)
class Measured:
    """One engine, and what is known of it so far."""

    subject: Subject
    point: OperatingPoint
    found: Found = field(default_factory=Found)
    prefill: PrefillLaw | None = None
    step: StepLaw | None = None

    @property
    def benched(self) -> bool:
        """Whether it is measured by itself: an engine that only prefills for others is measured with them."""
        return self.subject.alone or self.subject.engine.role is Role.DECODE

    @property
    def answers(self) -> bool:
        """Whether clients get their tokens from it."""
        return self.subject.engine.role is not Role.PREFILL

    def prefill_p50_s(self) -> float | None:
        """Of the prompt that TTFT is promised for; None when it does not prefill."""
        if self.prefill is None:
            return None
        tokens = self.point.prompt_tokens
        nearest = min(self.found.prefills, key=lambda one: abs(one.tokens - tokens))
        if abs(nearest.tokens - tokens) <= max(1, tokens // 100):
            return nearest.seconds
        return self.prefill.seconds(tokens)

    def tpot_p50_s(self) -> float | None:
        """At the operating point: measured where that batch could be, otherwise by the law."""
        point, law = self.point, self.step
        if law is None:
            return None
        kv_tokens = point.sequences * point.context_tokens
        for sample in self.found.steps:
            near = abs(sample.kv_tokens / kv_tokens - 1) < 0.2  # it grows while it is measured
            if sample.sequences == point.sequences and near:
                return sample.tpot_p50_s
        return law.seconds(point.sequences, kv_tokens) / law.tokens_per_step


def points_of(
    subjects: Sequence[Subject], effort: Effort, prompt_tokens: int, context_tokens: int
) -> dict[str, OperatingPoint]:
    """The operating point of each model: what the smallest of its engines can hold."""
    points = {}
    output = output_tokens(effort)
    for model in dict.fromkeys(subject.model for subject in subjects):
        mine = [one for one in subjects if one.model == model]
        answering = [one for one in mine if one.engine.role is not Role.PREFILL] or mine
        context = max(1, min(context_tokens, *(one.room.longest(output) for one in answering)))
        points[model] = OperatingPoint(
            sequences=min(operating_sequences(one.room, context, output) for one in answering),
            context_tokens=context,
            prompt_tokens=max(1, min(prompt_tokens, *(one.room.longest(1) for one in mine))),
        )
    return points


def compose(
    measured: datetime,
    workers: Sequence[Measured],
    transfers: Sequence[TransferMeasured],
    gates: Sequence[GateResult],
    notes: Sequence[str],
) -> CalibrationFile:
    """The file."""
    ordered = sorted(transfers, key=lambda one: (one.prefill, one.decode))
    return CalibrationFile(
        measured=measured,
        workers={one.subject.engine.name: _worker(one) for one in workers},
        transfers=tuple(ordered),
        slo=dict(_slos(workers, ordered)),
        kv_share=tuple(_shares(workers)),
        gates=tuple(gates),
        notes=tuple(dict.fromkeys(notes)),
    )


def _worker(one: Measured) -> WorkerMeasured:
    subject = one.subject
    return WorkerMeasured(
        url=subject.engine.url,
        role=subject.engine.role,
        model=subject.model,
        engine_version=subject.version,
        kv_capacity_tokens=subject.room.kv_tokens,
        prefill=one.prefill,
        step=one.step,
        bytes_per_token=subject.bytes_per_token,
    )


def _shares(workers: Sequence[Measured]) -> Iterator[KvShare]:
    for one in workers:
        if one.step is not None and one.answers:
            sequences = full_sequences(one.subject.room, one.point.context_tokens)
            yield kv_share(one.subject.engine.name, one.step, sequences, one.point.context_tokens)


def _slos(
    workers: Sequence[Measured], transfers: Sequence[TransferMeasured]
) -> Iterator[tuple[str, SloMeasured]]:
    """Of each model by its median worker: half of the workers are faster than what is promised rests on."""
    by_name = {one.subject.engine.name: one for one in workers}
    for model in dict.fromkeys(one.subject.model for one in workers):
        mine = [one for one in workers if one.subject.model == model]
        tpots = [tpot for one in mine if one.answers and (tpot := one.tpot_p50_s()) is not None]
        ttfts = list(_ttfts(mine, [t for t in transfers if by_name[t.decode] in mine], by_name))
        if tpots and ttfts:
            yield model, slo_of(mine[0].point, median(ttfts), median(tpots))


def _ttfts(
    workers: Sequence[Measured], transfers: Sequence[TransferMeasured], by_name: dict[str, Measured]
) -> Iterator[float]:
    """Prefill, hand-over if any, and the step that it has to wait for, by worker or pair."""
    for one in workers:
        prefill_s, step_s = one.prefill_p50_s(), one.tpot_p50_s()
        if one.subject.engine.role is Role.BOTH and prefill_s is not None and step_s is not None:
            yield prefill_s + step_s
    for way in transfers:
        prefill_s, step_s = by_name[way.prefill].prefill_p50_s(), by_name[way.decode].tpot_p50_s()
        if prefill_s is not None and step_s is not None:
            yield prefill_s + way.model.transfer_s(by_name[way.prefill].point.prompt_tokens) + step_s
