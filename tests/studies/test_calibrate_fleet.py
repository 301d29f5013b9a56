"""Laws of which engines are measured, how they are reached, and which of them at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.core.worker import Role
from router.settings import Settings
from router.studies.calibrate.fleet import Engine, FleetError, MeasuredFleet, fleet_of, settings_from_router
from router.studies.calibrate.jobs import Job, run_apart
from router.virtual.clock import run


def fleet(**pools: Any) -> MeasuredFleet:
    return fleet_of(Settings.model_validate({"pools": pools}))


def names(found: MeasuredFleet) -> list[str]:
    return [engine.name for engine in found.engines]


def header(engine: Engine, name: bytes) -> bytes | None:
    return dict(engine.headers).get(name)


def test_a_worker_is_reached_as_the_router_reaches_it() -> None:
    found = fleet_of(
        Settings.model_validate(
            {
                "auth": {"api_key": "common"},
                "pools": {
                    "chat": {
                        "slots": 8,
                        "workers": ["http://a:1/base", {"url": "http://b:2", "name": "b", "api_key": "own"}],
                    }
                },
            }
        )
    )
    first, second = found.engines
    assert (first.name, first.origin.url, first.slots) == ("a:1/base", "http://a:1/base", 8)
    assert header(first, b"authorization") == b"Bearer common"
    assert header(second, b"authorization") == b"Bearer own"
    assert "own" not in repr(second)


def test_workers_of_a_file_are_measured_too(tmp_path: Path) -> None:
    more = tmp_path / "workers"
    more.write_text("http://c:3\n", encoding="utf-8")
    assert names(fleet(chat={"workers": ["http://a:1"], "workers_file": str(more)})) == ["a:1", "c:3"]


def test_nobody_to_measure_is_a_sentence_that_says_how_to_name_them() -> None:
    with pytest.raises(FleetError, match="--worker-urls"):
        fleet(chat={})


def test_names_that_are_looked_up_are_asked_of_the_router() -> None:
    with pytest.raises(FleetError, match="with --url"):
        fleet(chat={"workers": ["dns+http://engines:8000"]})


def test_ranks_of_one_engine_are_told_apart_and_share_its_hardware() -> None:
    found = fleet(chat={"workers": [{"url": "http://a:1", "dp_size": 2}]})
    assert [header(engine, b"x-data-parallel-rank") for engine in found.engines] == [b"0", b"1"]
    assert len({engine.hardware for engine in found.engines}) == 1
    assert {engine.dp_size for engine in found.engines} == {2}


def test_every_decode_worker_is_coupled_with_every_prefill_worker() -> None:
    found = fleet(
        p={"role": "prefill", "workers": ["http://p:1", "http://q:1"]},
        d={
            "role": "decode",
            "connector": "mooncake",
            "workers": ["http://d:1", {"url": "http://w:1", "role": "both"}],
        },
    )
    assert [(c.prefill.name, c.decode.name, c.connector.name) for c in found.couples] == [
        ("p:1", "d:1", "mooncake"),
        ("q:1", "d:1", "mooncake"),
    ]
    whole = found.engines[-1]
    assert (whole.name, whole.role, found.coupled(whole)) == ("w:1", Role.BOTH, None)


SAID: dict[str, Any] = {
    "workers": [
        {"name": "p", "url": "http://p:1", "role": "prefill", "pool": "p", "models": ["m"], "slots": None},
        {"name": "d", "url": "http://d:1", "role": "decode", "pool": "d", "models": ["m"], "slots": 64},
    ]
}


def test_a_running_router_tells_its_workers() -> None:
    found = fleet_of(
        settings_from_router(SAID, Settings.model_validate({"auth": {"api_key": "k"}}), "mooncake")
    )
    assert names(found) == ["p", "d"]
    (couple,) = found.couples
    assert couple.connector.name == "mooncake"
    assert couple.decode.slots == 64
    assert header(couple.decode, b"authorization") == b"Bearer k"


def test_a_router_that_does_not_know_its_models_yet_is_measured_by_the_first_of_each_list() -> None:
    said = {"workers": [{**SAID["workers"][1], "role": "both", "pool": "x", "models": []}]}
    (engine,) = fleet_of(settings_from_router(said, Settings())).engines
    assert engine.model is None


def test_a_worker_that_has_not_told_its_models_yet_serves_what_the_others_do() -> None:
    said = {"workers": [SAID["workers"][0], {**SAID["workers"][1], "models": []}]}
    found = fleet_of(settings_from_router(said, Settings()))
    assert [engine.model for engine in found.engines] == ["m", "m"]
    assert len(found.couples) == 1


def test_half_a_pair_is_a_sentence() -> None:
    with pytest.raises(FleetError, match="needs a pool of role decode") as caught:
        settings_from_router({"workers": SAID["workers"][:1]}, Settings())
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize("said", [{}, {"workers": [{}]}, {"workers": [None]}, {"workers": None}])
def test_what_is_no_router_is_a_sentence(said: Any) -> None:
    with pytest.raises(FleetError, match="admin API"):
        settings_from_router(said, Settings())


def played(*hardware: str, one_at_a_time: bool = False) -> list[tuple[str, float]]:
    """When each of some jobs of one second began, in order."""
    began: list[tuple[str, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()

        async def work(name: str) -> None:
            began.append((name, loop.time() - start))
            await asyncio.sleep(1.0)

        jobs = [Job(frozenset(name), lambda name=name: work(name)) for name in hardware]  # type: ignore[misc]
        await run_apart(jobs, one_at_a_time=one_at_a_time)

    run(main())
    return began


def test_jobs_that_share_no_hardware_run_side_by_side() -> None:
    assert played("ab", "cd") == [("ab", 0.0), ("cd", 0.0)]


def test_no_two_jobs_run_on_one_piece_of_hardware() -> None:
    assert played("ab", "bc", "cd") == [("ab", 0.0), ("cd", 0.0), ("bc", 1.0)]


def test_one_at_a_time_is_one_at_a_time() -> None:
    assert played("a", "b", "c", one_at_a_time=True) == [("a", 0.0), ("b", 1.0), ("c", 2.0)]


def test_no_jobs_are_done_at_once() -> None:
    assert played() == []


def test_a_job_that_fails_ends_the_others() -> None:
    ended: list[str] = []

    async def main() -> None:
        async def fail() -> None:
            await asyncio.sleep(0.5)
            raise LookupError("this one")

        async def last() -> None:
            try:
                await asyncio.sleep(100.0)
            finally:
                ended.append("last")

        with pytest.raises(LookupError, match="this one"):
            await run_apart([Job(frozenset("a"), last), Job(frozenset("b"), fail)])

    run(main())
    assert ended == ["last"]
