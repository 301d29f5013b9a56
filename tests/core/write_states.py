"""Writes docs/states.md anew, from the tables themselves: `python -m tests.core.write_states`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from router.core.health import HEALTH, Sign, State
from router.core.phase import FINAL, PHASES, Phase, Step
from router.core.retry import OF_A_HANDLE, OUTCOMES, SENT_IN_VAIN, SPLIT_TRIES, TRIES, Again, Failure, Leg
from router.core.trust import TRUST, Trust, TrustSignal
from router.kv_events.knowledge import KNOWLEDGE, Known, Learned

PAGE = Path(__file__).parents[2] / "docs" / "states.md"

_HEAD = """# The tables

Made from `router/core/{health,phase,retry,trust}.py` and `router/kv_events/knowledge.py` by
`python -m tests.core.write_states`; a test fails when this copy is old. Do not edit it.
"""
_HEALTH = """## Health of a worker

Only a ready worker gets new requests; one that a stored response lives on is also asked while it drains.
Signs that are not drawn change nothing in that state. A bad or stalled sign is not applied when it would
leave less than half of the workers in rotation.
"""
_PHASES = """## Life of a request

A step that is not in the table is a bug of the router and raises `InternalError`. Cancel, expire and fail
lead out of every phase that is not final, and are not drawn.
"""
_RETRIES = """## What is tried again

Before commit, elsewhere, at once. Kinds that say "shared" have one try between them.
"""
_SPLIT_RETRIES = """## What is tried again of a split request

Before commit, at once. "other_worker" is the same leg elsewhere, and a handle that is held stays good for it;
"new_prefill" begins again with a new handle, once in all. A decode leg goes elsewhere with the same handle
only when not a byte of it was sent: a handle that a decode engine may have seen is never used again.
"""

_TRUST = """## How far the prefix index is relied upon for a worker

By what was learned about our knowledge of it ([kv-events.md](kv-events.md)). It begins approximate.
"""
_KNOWLEDGE = """## What is known of a worker's blocks from its events

And, behind an arrow, what the prefix index is told. A worker that is not followed is not in this table.
"""


def render() -> str:
    """The whole page."""
    parts = [_HEAD, _HEALTH, _health(), _PHASES, _phases(), _RETRIES, _retries(), _SPLIT_RETRIES]
    parts += [_split_retries(), _TRUST, _trust(), _KNOWLEDGE, _knowledge()]
    return "\n".join(parts)


def _diagram(start: str, edges: Mapping[tuple[str, str], Iterable[str]], ends: Iterable[str]) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    lines += [f"    {before} --> {after}: {', '.join(names)}" for (before, after), names in edges.items()]
    lines += [f"    {end} --> [*]" for end in ends]
    return "\n".join([*lines, "```", ""])


def _health() -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    for state in State:
        for sign in Sign:
            after = HEALTH[state, sign]
            if after is not state:
                edges.setdefault((state.value, after.value), []).append(sign.value)
    return _diagram(State.STARTING.value, edges, [State.GONE.value])


def _phases() -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    for phase in Phase:
        for step in Step:
            after = PHASES.get((phase, step))
            if after is not None and (after not in FINAL or step is Step.FINISH):
                edges.setdefault((phase.value, after.value), []).append(step.value)
    return _diagram(Phase.RECEIVED.value, edges, [Phase.DONE.value])


def _retries() -> str:
    lines = ["| failure | tries elsewhere | what it says of the worker |", "|---|---|---|"]
    for failure in Failure:
        if failure in OF_A_HANDLE:
            continue
        tries = f"{TRIES[failure]}, shared" if failure in SENT_IN_VAIN else str(TRIES[failure])
        lines.append(f"| {failure.value} | {tries} | {OUTCOMES[failure].value} |")
    return "\n".join([*lines, ""])


def _split_retries() -> str:
    lines = [
        "| failure | of the prefill leg | of the decode leg | what it says of the worker |",
        "|---|---|---|---|",
    ]
    for failure in Failure:
        legs = " | ".join(_again(*SPLIT_TRIES[leg, failure]) for leg in Leg)
        lines.append(f"| {failure.value} | {legs} | {OUTCOMES[failure].value} |")
    return "\n".join([*lines, ""])


def _again(again: Again, tries: int) -> str:
    return again.value if again is not Again.OTHER_WORKER else f"{again.value}, {tries}"


def _trust() -> str:
    rungs = list(Trust)
    lines = [f"| learned | {' | '.join(trust.value for trust in rungs)} |", "|---" * (len(rungs) + 1) + "|"]
    for signal in TrustSignal:
        cells = (TRUST[trust, signal].value if TRUST[trust, signal] is not trust else "" for trust in rungs)
        lines.append(f"| {signal.value} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _knowledge() -> str:
    states = list(Known)
    lines = [f"| learned | {' | '.join(known.value for known in states)} |", "|---" * (len(states) + 1) + "|"]
    lines += [
        f"| {learned.value} | {' | '.join(_step(known, learned) for known in states)} |"
        for learned in Learned
    ]
    return "\n".join([*lines, ""])


def _step(known: Known, learned: Learned) -> str:
    after, signal = KNOWLEDGE[known, learned]
    said = "" if signal is None else f" → {signal.value}"
    return f"{'' if after is known else after.value}{said}".strip()


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
