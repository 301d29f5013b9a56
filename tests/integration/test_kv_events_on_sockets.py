"""Two engines publish their KV events on ZMQ sockets; the router in front of them knows what they hold."""

from __future__ import annotations

import contextlib

from tests.integration.programs import MODEL, Engine, Programs, Router, ask, until

IDS = list(range(1_000, 1_128))
EVENTS = (
    "--time-scale", "0.05", "--kv-tokens", "2048",
    "--kv-events-endpoint", "tcp://*:0", "--kv-events-replay-endpoint", "tcp://*:0",
)  # fmt: skip
SECTIONS = {"pools": {"demo": {"model": MODEL, "policy": "cache_aware"}}}


def complete(router: Router, ids: list[int]) -> str:
    """Who completed a prompt of token ids."""
    body = {"model": MODEL, "prompt": ids, "max_tokens": 2}
    answer = ask(f"{router.url}/v1/completions", method="POST", body=body)
    assert answer.status == 200, answer.body
    return answer.headers["x-pointsman-worker"]


def figure(router: Router, engine: Engine, name: str, label: str = "") -> float | None:
    """A figure of one worker; None when it has none."""
    found = [
        value
        for series, value in router.metrics().items()
        if series.startswith(f"pointsman_worker_{name}{{")
        and f'worker="{engine.name}"' in series
        and label in series
    ]
    return found[0] if found else None


def started(programs: Programs) -> Router:
    """A router whose workers all publish, after it heard of prompts of token ids."""
    engines = [programs.engines(*EVENTS)[1][0] for _ in range(2)]
    workers = [engine.url for engine in engines]
    router = programs.router(engines, {"pools": {"demo": {**SECTIONS["pools"]["demo"], "workers": workers}}})
    for engine in engines:
        until(lambda engine=engine: figure(router, engine, "kv_events_up") == 1, "its events arrive")  # type: ignore[misc]
    complete(router, IDS[:16])
    for engine in engines:
        until(lambda engine=engine: figure(router, engine, "prefix_trust") == 2, "it is known exactly")  # type: ignore[misc]
    return router


def test_a_prefix_brings_its_requests_together_until_its_engine_evicts_it(programs: Programs) -> None:
    router = started(programs)
    holder = complete(router, IDS)
    assert [complete(router, IDS) for _ in range(5)] == [holder] * 5
    engine = next(one for one in router.engines if one.name == holder)
    until(lambda: (figure(router, engine, "prefix_resident_tokens") or 0) >= 128, "its events tell of it")
    removed = figure(router, engine, "kv_events_blocks_removed_total")
    assert removed == 0
    for start in range(10_000, 16_000, 128):
        other = list(range(start, start + 128))
        ask(f"{engine.url}/v1/completions", method="POST",
            body={"model": MODEL, "prompt": other, "max_tokens": 2})  # fmt: skip
    until(
        lambda: (figure(router, engine, "kv_events_blocks_removed_total") or 0) > 8, "it tells of evictions"
    )
    until(lambda: (figure(router, engine, "prefix_resident_tokens") or 0) <= 2048, "no more than fits")
    error = figure(router, engine, "prefix_error_ratio", 'by="events"')
    assert error is not None
    assert error < 0.1


def test_events_that_are_lost_are_replayed_and_those_of_a_new_process_are_followed(
    programs: Programs,
) -> None:
    router = started(programs)
    engine = router.engines[0]
    engine.fault(kind="drop_events", count=1)
    for start in (20_000, 21_000):
        ask(f"{engine.url}/v1/completions", method="POST",
            body={"model": MODEL, "prompt": list(range(start, start + 64)), "max_tokens": 2})  # fmt: skip
    until(lambda: figure(router, engine, "kv_events_filled_total") == 1, "the gap is filled")
    until(lambda: figure(router, engine, "prefix_trust") == 2, "it is known exactly")
    with contextlib.suppress(ConnectionResetError):  # of the request for it, too
        engine.fault(kind="crash", delay_s=1.0)
    until(lambda: (figure(router, engine, "kv_events_disconnects_total") or 0) >= 1, "the connection is gone")
    until(lambda: (figure(router, engine, "incarnation") or 0) >= 1, "it is another process")
    until(lambda: figure(router, engine, "prefix_trust") == 2, "that one is known exactly")
    assert figure(router, engine, "prefix_resident_tokens") == 0
    router.assert_idle()
