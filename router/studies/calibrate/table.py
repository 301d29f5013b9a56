"""What was measured, as a reader sees it in a terminal. Shows a part of it; the file has all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from router.settings.calibration_file import (
    CalibrationFile,
    GateResult,
    PrefillLaw,
    Quality,
    SloMeasured,
    StepLaw,
    TransferMeasured,
    WorkerMeasured,
)
from router.studies.calibrate.verdict import says_of_balance_route

_SMALL = 0.001
POOR = 0.15
"""Mean error of a law above which a reader is told."""


def render(calibration: CalibrationFile) -> RenderableType:
    """Workers first, then pairs, then what follows from them."""
    parts: list[RenderableType] = [_prefills(calibration), _steps(calibration)]
    if calibration.transfers:
        parts.append(_transfers(calibration))
    parts.append(_facts(calibration))
    return Group(*parts)


def render_gates(gates: tuple[GateResult, ...]) -> RenderableType:
    """One line each."""
    return Group(*(Text(line) for line in _gates(gates)))


_Law = PrefillLaw | StepLaw | TransferMeasured


class _Term(NamedTuple):
    """A coefficient of a law: its heading with the unit, its field in the law and among the law's errors, and
    what makes that unit of seconds."""

    heading: str
    field: str
    scale: float


def _laws(title: str, terms: Sequence[_Term], last: str, laws: Iterable[tuple[str, _Law, str]]) -> Table:
    """A row for each law: whose it is, its terms, how far it is off, and what stands under `last`."""
    table = Table(title=title, title_justify="left", pad_edge=False)
    for heading in ("", *(term.heading for term in terms), last, "off by"):
        table.add_column(heading, justify="right")
    table.columns[0].justify, table.columns[0].no_wrap = "left", True
    for name, law, told in laws:
        table.add_row(name, *(_with_error(law, term) for term in terms), told, f"{law.mean_error:.1%}")
    return table


def _prefills(calibration: CalibrationFile) -> Table:
    return _laws(
        "Prefill of p tokens: base + p + p²",
        (
            _Term("base (ms)", "base_s", 1e3),
            _Term("µs/token", "per_token_s", 1e6),
            _Term("ns/token²", "per_token_squared_s", 1e9),
        ),
        "1k (ms)",
        [
            (name, law, f"{law.seconds(1000) * 1e3:,.1f}")
            for name, worker in calibration.workers.items()
            if (law := worker.prefill) is not None
        ],
    )


def _steps(calibration: CalibrationFile) -> Table:
    return _laws(
        "Decode step with n sequences over KV tokens: base + n + KV",
        (
            _Term("base (ms)", "base_s", 1e3),
            _Term("µs/seq.", "per_sequence_s", 1e6),
            _Term("µs/1k KV", "per_kv_token_s", 1e9),
        ),
        "most n, KV",
        [
            (name, law, f"{law.most_sequences}, {law.most_kv_tokens:,}")
            for name, worker in calibration.workers.items()
            if (law := worker.step) is not None
        ],
    )


def _transfers(calibration: CalibrationFile) -> Table:
    return _laws(
        "Hand-over of p tokens: base + p",
        (_Term("base (ms)", "base_s", 1e3), _Term("ms/1k tokens", "per_token_s", 1e6)),
        "first (ms)",
        [
            (f"{one.prefill} → {one.decode}", one, f"{one.first_s * 1e3:,.1f}")
            for one in calibration.transfers
        ],
    )


def _with_error(law: _Law, term: _Term) -> str:
    shown = _short(getattr(law, term.field) * term.scale, 3)
    error = getattr(law.errors, term.field)
    return shown if error is None else f"{shown} ± {_short(error * term.scale, 2)}"


def _short(value: float, digits: int) -> str:
    """So many digits that mean something, never in powers of ten."""
    if value >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if value == 0 or value >= _SMALL else f"<{_SMALL:g}"


def _facts(calibration: CalibrationFile) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for source in (_gate_facts, _texts, _slos, _verdict, _doubts):
        for name, fact in source(calibration):
            grid.add_row(name, Text(fact))
    return grid


def _gate_facts(calibration: CalibrationFile) -> Iterator[tuple[str, str]]:
    for line in _gates(calibration.gates):
        yield "gate", line


def _gates(gates: tuple[GateResult, ...]) -> Iterator[str]:
    for gate in gates:
        yield f"{gate.name}: passed" if gate.passed else f"{gate.name}: FAILED: {gate.said}"


def _texts(calibration: CalibrationFile) -> Iterator[tuple[str, str]]:
    for model in dict.fromkeys(worker.model for worker in calibration.workers.values()):
        ratios = [w.bytes_per_token for w in calibration.workers.values() if w.model == model]
        found = [ratio for ratio in ratios if ratio is not None]
        if found:
            yield "text", f"{model}: {sum(found) / len(found):.2f} bytes a token"


def _slos(calibration: CalibrationFile) -> Iterator[tuple[str, str]]:
    for model, slo in calibration.slo.items():
        yield "targets", f"{model}: tight {_targets(slo, 'tight')}; loose {_targets(slo, 'loose')}"
        yield (
            "",
            f"with {slo.sequences} sequences of {slo.context_tokens:,} tokens on each engine, "
            f"TTFT for prompts of {slo.prompt_tokens:,} tokens",
        )


def _targets(slo: SloMeasured, which: str) -> str:
    targets = slo.tight if which == "tight" else slo.loose
    return f"TTFT {targets.ttft_s * 1e3:,.0f} ms, TPOT {targets.tpot_s * 1e3:,.1f} ms"


def _verdict(calibration: CalibrationFile) -> Iterator[tuple[str, str]]:
    workers = calibration.workers
    sure = [
        one
        for one in calibration.kv_share
        if (law := workers[one.worker].step) is not None and law.mean_error <= POOR
    ]
    if sure:
        yield "verdict", says_of_balance_route(sure)
    elif calibration.kv_share:
        yield "verdict", "Whether BalanceRoute is for this fleet cannot be told: no step law fits well."


def _doubts(calibration: CalibrationFile) -> Iterator[tuple[str, str]]:
    for name, worker in calibration.workers.items():
        for what, law in (("prefill", worker.prefill), ("step", worker.step)):
            if law is not None and law.mean_error > POOR:
                yield "note", _poor(name, what, law)
        if worker.step is not None and _bundles(worker.step):
            yield "note", f"{name}: {_bundled(worker)}"
    for one in calibration.transfers:
        if one.mean_error > POOR:
            yield "note", _poor(f"{one.prefill} → {one.decode}", "hand-over", one)
    for note in calibration.notes:
        yield "note", note


def _poor(whose: str, what: str, law: Quality) -> str:
    off = f"{law.mean_error:.0%}"
    return f"{whose}: the {what} law is off by {off} on average; was something else running there?"


def _bundles(law: StepLaw) -> bool:
    return law.tokens_per_step > 1.05


def _bundled(worker: WorkerMeasured) -> str:
    rate = 1.0 if worker.step is None else worker.step.tokens_per_step
    return f"a step brings {rate:.2f} tokens, by speculative decoding"
