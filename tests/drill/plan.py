"""What happens in one drill: drawn from a seed, before anything runs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_CONNECTORS: Mapping[str, int] = {"nixl": 5, "mooncake": 2, "sglang": 2}
"""Connectors, and how often each is drawn."""
MODEL = "qwen2.5-3b"
LEASE_S = 12.0
WINDOW_S = 8.0
"""Requests come, and things break, within this time."""
PREFILLS = ("p1", "p2")
DECODES = ("d1", "d2", "d3")
ENGINES = (*PREFILLS, *DECODES)

_WORDS = ("signal", "points", "track", "siding", "shunt", "lever", "coach", "platform", "ballast", "guard")
_ENGINE_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "crash", "delay_s": 1.0},
    {"kind": "crash", "delay_s": 30.0},
    {"kind": "crash", "after_events": 3, "count": 1, "delay_s": 2.0},
    {"kind": "engine_death", "delay_s": 2.0},
    {"kind": "sigterm_abort", "delay_s": 3.0},
    {"kind": "sigterm_silence", "delay_s": 3.0},
    {"kind": "refuse", "delay_s": 2.0},
    {"kind": "slow", "factor": 40.0, "delay_s": 3.0},
)
_REQUEST_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "reset"},
    {"kind": "hang_headers"},
    {"kind": "hang_headers", "delay_s": 4.0},
    {"kind": "hang_stream", "after_events": 0},
    {"kind": "hang_stream", "after_events": 2},
    {"kind": "garbage"},
    {"kind": "status", "status": 500},
    {"kind": "status", "status": 503},
    {"kind": "status", "status": 429},
    {"kind": "error_first", "status": 500},
    {"kind": "close_early", "after_events": 0},
    {"kind": "close_early", "after_events": 2},
    {"kind": "comments"},
)
_HANDOVER_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "lose_handle"},
    {"kind": "transfer_slow", "delay_s": 3.0},
    {"kind": "transfer_slow", "delay_s": 20.0},
    {"kind": "transfer_failed"},
)


@dataclass(frozen=True, slots=True, repr=False)
class Wish:
    """One request of a client.

    Attributes:
        at: when it is sent (s after the start).
        leaves_after: the client gives up so long after that; None: it waits for the end.
    """

    at: float
    path: str
    body: Mapping[str, Any]
    leaves_after: float | None

    def __repr__(self) -> str:
        shown = {name: self.body.get(name) for name in ("stream", "max_tokens", "n", "seed")}
        return f"<Wish at {self.at:.2f} s {self.path} {shown} [{len(str(self.body))} characters]>"


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault of one engine."""

    at: float
    engine: str
    fault: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """One drill.

    Attributes:
        connector: how KV is handed over.
        decode_pool: settings of the decode pool that this seed tries.
    """

    seed: int
    wishes: tuple[Wish, ...]
    blows: tuple[Blow, ...]
    connector: str
    decode_pool: dict[str, Any] = field(default_factory=dict)


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(seed)
    wishes = tuple(_wish(chance) for _ in range(chance.randint(6, 16)))
    blows = tuple(_blow(chance) for _ in range(chance.randint(1, 5)))
    pool = _decode_pool(chance)
    connector = chance.choices(tuple(_CONNECTORS), tuple(_CONNECTORS.values()))[0]
    return Plan(
        seed,
        tuple(sorted(wishes, key=lambda wish: wish.at)),
        tuple(sorted(blows, key=lambda blow: blow.at)),
        connector,
        _fitting(pool, connector, chance),
    )


def _wish(chance: random.Random) -> Wish:
    text = " ".join(chance.choices(_WORDS, k=chance.choice((4, 60, 400))))
    body: dict[str, Any] = {
        "model": MODEL,
        "stream": chance.random() < 0.7,
        "max_tokens": chance.choice((1, 2, 8, 30, 120)),
        "seed": chance.randint(0, 3),
        "temperature": 0.8,
    }
    if chance.random() < 0.3:
        path = "/v1/completions"
        body["prompt"] = text
    else:
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": text}]
    if chance.random() < 0.1:
        body["n"] = 2
    leaves = chance.choice((0.0, 0.05, 0.2, 0.6, 2.0)) if chance.random() < 0.35 else None
    return Wish(chance.uniform(0.0, WINDOW_S), path, body, leaves)


def _blow(chance: random.Random) -> Blow:
    engine = chance.choice(ENGINES)
    kinds = chance.choice((_ENGINE_FAULTS, _REQUEST_FAULTS, _HANDOVER_FAULTS))
    fault = dict(chance.choice(kinds))
    if kinds is not _ENGINE_FAULTS:
        fault.setdefault("count", chance.choice((1, 2, 5)))
    if kinds is _REQUEST_FAULTS:
        fault["path"] = "/v1/c"  # not the probes: a sick engine is found out by its requests
    return Blow(chance.uniform(0.0, WINDOW_S), engine, fault)


def _decode_pool(chance: random.Random) -> dict[str, Any]:
    pool: dict[str, Any] = {"fallback": chance.choice(("aggregated", "strict"))}
    binding = chance.choice(("early", "early", "late", "adaptive"))
    if binding != "early":
        pool |= {"binding": binding, "slots": chance.choice((1, 4))}
    if chance.random() < 0.3:
        pool |= {"may_prefill": True, "pd_split_min_tokens": 64}
    return pool


def _fitting(pool: dict[str, Any], connector: str, chance: random.Random) -> dict[str, Any]:
    """The same settings as far as this connector has them, and its own."""
    if connector == "sglang":
        # The pair is chosen up front, and no engine of it serves a whole request.
        kept = {name: value for name, value in pool.items() if name == "fallback"}
        return {**kept, "connector": connector}
    lease = {"connector": connector, "kv_lease_s": LEASE_S}
    if connector == "nixl":
        return {**pool, **lease}
    if chance.random() < 0.5:
        return {**pool, **lease}
    return {"fallback": pool["fallback"], **lease, "mooncake_concurrent": True}
