"""Recorded decisions as a reader sees them in a terminal.

Separate from the command, which finds them and judges whether they can be made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from router.core.explain import Row
from router.core.explain import Table as Compared
from router.telemetry.decision import DecisionRecord, RoundRecord
from router.telemetry.verdicts import Verdicts, same_pick

_MOST_ROWS = 40
_MOST_WAITING = 40


def decision(record: DecisionRecord) -> RenderableType:
    """One choice: what was compared, the best first, with every term under its own heading."""
    chosen = _name(record.worker, record.prefill_worker)
    title = (
        f"{record.id} in pool {record.pool}, {_time(record.at)}: {chosen} by {record.policy}, {record.reason}"
    )
    parts: list[RenderableType] = [Text(title, style="bold")]
    if record.table is not None:
        parts += [Text(f"Total in {record.table.unit}."), _rows(record.table, record)]
        parts += _zeros(record.table)
    elif record.others:
        parts += [Text(f"Cost in {record.unit}."), _others(record)]
    parts.append(Text(_said(record)))
    return Group(*parts)


def _rows(table: Compared, record: DecisionRecord) -> Table:
    rows = sorted(table.rows, key=_rank)
    terms = [term for term in _terms(table) if any(row.terms.get(term) for row in rows)]
    shown = _table(["worker", "total", *terms, "tier", "reason"])
    for row in rows[:_MOST_ROWS]:
        chosen = (row.worker, row.prefill_worker) == (record.worker, record.prefill_worker)
        cells = [_name(row.worker, row.prefill_worker), _number(row.total)]
        cells += [_number(row.terms[term]) if term in row.terms else "–" for term in terms]
        cells += ["never" if row.tier is None else str(row.tier), row.reason]
        shown.add_row(*cells, style="bold" if chosen else None)
    return shown


def _terms(table: Compared) -> list[str]:
    return list(dict.fromkeys(term for row in table.rows for term in row.terms))


def _zeros(table: Compared) -> list[Text]:
    """Terms that have no column, since they are 0 for all: a table has room for the others then."""
    zeros = [term for term in _terms(table) if not any(row.terms.get(term) for row in table.rows)]
    return [Text(f"0 for all: {', '.join(zeros)}.")] if zeros else []


def _rank(row: Row) -> tuple[bool, int, float, float]:
    return row.tier is None, row.tier or 0, row.total, row.order


def _others(record: DecisionRecord) -> Table:
    shown = _table(["worker", "cost"])
    shown.add_row(_name(record.worker, record.prefill_worker), _number(record.cost), style="bold")
    for other in record.others:
        shown.add_row(_name(other.worker, other.prefill_worker), _number(other.cost))
    return shown


def _said(record: DecisionRecord) -> str:
    if record.round is not None:
        return f"Chosen in round {record.round}, together with others that waited."
    if record.table is None:
        return "Not of the sample that is kept whole, so it cannot be made again."
    if same_pick(record):
        params = ", ".join(f"{name} {value}" for name, value in (record.params or {}).items())
        return f"Made again from this table, it is the same. Seed {record.seed}" + (
            f", {params}." if params else "."
        )
    return "Made again from this table, it is another one."


def made_round(record: RoundRecord, *, same: bool) -> RenderableType:
    """One round: who waited, among whom, and where each went."""
    given = {choice.id: choice for choice in record.choices}
    title = f"Round {record.number} of pool {record.pool} by {record.policy}, {_time(record.at)}"
    waiting = _table(["request", "waited_s", "prompt_tokens", "sequences", "worker", "cost", "reason"])
    for one in record.waiting[:_MOST_WAITING]:
        choice = given.get(one.id)
        went = (
            ("–", "–", "left queued")
            if choice is None
            else (choice.worker, _number(choice.cost), choice.reason)
        )
        facts = (f"{record.now - one.came:.3f}", str(one.prompt_tokens), str(one.sequences))
        waiting.add_row(one.id, *facts, *went)
    workers = _table(["worker", "group", "kv_tokens", "kv_capacity_tokens", "free_slots", "offered"])
    for member in record.members[:_MOST_ROWS]:
        workers.add_row(
            member.name,
            member.barrier_group or str(member.group),
            str(member.kv_tokens),
            _known(member.kv_capacity_tokens),
            _known(member.free_slots),
            "yes" if member.offered else "no",
        )
    said = "Made again, it is the same." if same else "Made again, it is another one."
    return Group(Text(title, style="bold"), waiting, Text("The workers before it:"), workers, Text(said))


def summary(verdicts: Verdicts) -> RenderableType:
    """How many of each, and what differs."""
    table = _table(["pool", "policy", "reason", "decisions"])
    for (pool, policy, reason), count in sorted(verdicts.decisions.items()):
        table.add_row(pool, policy, reason, f"{count:,}")
    return Group(table, *(Text(line) for line in _sentences(verdicts)))


def _sentences(verdicts: Verdicts) -> Iterator[str]:
    again = verdicts.whole + verdicts.rounds
    total = verdicts.decisions.total()
    yield (
        f"{total:,} decisions, of which {verdicts.whole:,} are kept whole, and {verdicts.rounds:,} rounds. "
        f"Made again, {again - len(verdicts.differ):,} of {again:,} are the same."
    )
    yield from verdicts.differ


def _table(headings: Sequence[str]) -> Table:
    table = Table(pad_edge=False)
    for heading in headings:
        words = heading in ("worker", "reason", "request", "pool", "policy", "group")
        named = heading == "worker"
        table.add_column(heading, justify="left" if words else "right", no_wrap=named, overflow="fold")
    return table


def _name(worker: str, prefill_worker: str | None) -> str:
    return worker if prefill_worker is None else f"{prefill_worker} → {worker}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
