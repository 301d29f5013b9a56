"""Data-parallel ranks, as they are written down: `url@rank`, `dp_size`, and the group that they imply."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from router.core.binding import Mode
from router.settings.configuration import Settings
from router.settings.pools import PoolSettings
from router.settings.ranks import MAX_RANKS, split_rank, with_rank
from router.settings.workers import WorkerSettings, parse_workers

HOST = "http://h:1"


def pool(*workers: Any, **fields: Any) -> PoolSettings:
    return PoolSettings.model_validate({"workers": list(workers), **fields})


def names(made: PoolSettings) -> list[str]:
    return [rank.name for rank in made.each_rank]


# --- addresses -----------------------------------------------------------------------------------------


@given(st.sampled_from([HOST, "https://[::1]:8000/base", "dns+http://h:1"]), st.integers(0, MAX_RANKS - 1))
def test_a_rank_is_written_behind_its_url_and_found_there(url: str, rank: int) -> None:
    assert split_rank(with_rank(url, rank)) == (url, rank)
    assert split_rank(with_rank(url, None)) == (url, None)
    made = WorkerSettings(url=with_rank(url, rank))
    assert (made.rank, made.origin_url) == (rank, url.removeprefix("dns+"))


@pytest.mark.parametrize(
    ("url", "name", "origin"),
    [
        ("http://h:1@0", "h:1@0", HOST),
        ("http://h:1/@07/", "h:1@7", HOST),
        ("http://h:1/base/@2", "h:1/base@2", "http://h:1/base"),
        ("http://[::1]:1@3", "[::1]:1@3", "http://[::1]:1"),
        ("http://h:1/", "h:1", HOST),
    ],
)
def test_a_rank_is_named_after_its_address_and_number(url: str, name: str, origin: str) -> None:
    made = WorkerSettings(url=url)
    assert (made.name, made.origin_url) == (name, origin)


def test_workers_files_know_ranks_too() -> None:
    assert [one.rank for one in parse_workers("http://h:1@0\nhttp://h:1@1\nhttp://g:1\n")] == [0, 1, None]


def test_an_engine_cannot_be_one_worker_and_several() -> None:
    with pytest.raises(ValidationError, match="http://h:1@0 is a rank of http://h:1, which is a worker, too"):
        pool(HOST, f"{HOST}@0")


def test_the_ranks_of_one_engine_are_in_one_pool() -> None:
    with pytest.raises(ValidationError, match="pools a and b both have a worker of url http://h:1"):
        Settings.model_validate({"pools": {"a": {"workers": [f"{HOST}@0"]}, "b": {"workers": [f"{HOST}@1"]}}})


# --- one entry for several ranks ---------------------------------------------------------------------------


def test_an_entry_of_several_ranks_is_a_worker_for_each_of_them() -> None:
    made = pool({"url": HOST, "dp_size": 2, "slots": 4, "dp_rank_offset": 8})
    assert names(made) == ["h:1@0", "h:1@1"]
    assert [(one.url, one.rank, one.slots, one.dp_rank_offset) for one in made.each_rank] == [
        ("http://h:1@0", 0, 4, 8),
        ("http://h:1@1", 1, 4, 8),
    ]


def test_a_pool_says_it_for_all_engines_that_say_nothing() -> None:
    made = pool(HOST, {"url": "http://g:1", "dp_size": 1, "name": "g"}, "http://f:1@5", dp_size=3)
    assert names(made) == ["h:1@0", "h:1@1", "h:1@2", "g", "f:1@5"]
    assert made.dp_size_of(made.workers[2]) == 3


def test_an_engine_of_one_rank_is_a_plain_worker() -> None:
    (only,) = pool(HOST, dp_size=1).each_rank
    assert (only.name, only.rank) == ("h:1", None)


# --- groups and binding --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        ({}, [HOST, HOST, None]),
        ({"barrier_group": "g"}, ["g", "g", "g"]),
        ({"barrier_group": "none"}, [None, None, None]),
    ],
)
def test_ranks_of_one_url_are_a_group_unless_told_otherwise(
    fields: dict[str, str], groups: list[str | None]
) -> None:
    made = pool(f"{HOST}@0", f"{HOST}@1", "http://g:1", **fields)
    assert [made.barrier_group_of(one) for one in made.each_rank] == groups


def test_one_worker_may_leave_the_group_of_its_pool() -> None:
    made = pool({"url": HOST, "barrier_group": "none"}, "http://g:1", barrier_group="g")
    assert [made.barrier_group_of(one) for one in made.each_rank] == [None, "g"]


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"dp_size": 2}, Mode.EARLY),  # nobody can tell when a slot is free
        ({"dp_size": 2, "slots": 8}, Mode.LATE),
        ({"dp_size": 2, "slots": 8, "barrier_group": "none"}, Mode.EARLY),
        ({"slots": 8}, Mode.EARLY),
    ],
)
def test_requests_wait_for_slots_of_ranks_whose_slots_are_known(fields: dict[str, Any], mode: Mode) -> None:
    assert pool(HOST, policy="least_requests", **fields).mode is mode


@pytest.mark.parametrize("binding", ["auto", "late", "early"])
@pytest.mark.parametrize("policy", ["balance_route_0", "balance_route_h"])
def test_balance_route_needs_slots_however_it_binds(policy: str, binding: str) -> None:
    fields = {"policy": policy, "binding": binding}
    with pytest.raises(ValidationError, match=r"workers\[0\] has no slots"):
        Settings.model_validate({"pools": {"p": {"workers": [HOST], **fields}}})
    Settings.model_validate({"pools": {"p": {"workers": [HOST], "slots": 2, **fields}}})


@pytest.mark.parametrize("policy", ["balance_route_0", "balance_route_h"])
def test_balance_route_is_refused_where_prompts_are_prefilled(policy: str) -> None:
    with pytest.raises(ValidationError, match="which is for the roles both, decode, not prefill"):
        Settings.model_validate(
            {
                "pools": {
                    "p": {"role": "prefill", "policy": policy, "slots": 2, "workers": [HOST]},
                    "d": {"role": "decode", "workers": ["http://g:1"]},
                }
            }
        )


def test_a_lone_rank_that_prefills_for_sglang_says_of_how_many_it_is() -> None:
    def pair(worker: Any) -> dict[str, Any]:
        return {
            "p": {"role": "prefill", "connector": "sglang", "workers": [worker]},
            "d": {"role": "decode", "workers": ["http://g:1"]},
        }

    with pytest.raises(ValidationError, match=r"pools.p.workers\[0\] is rank 3 of an engine, but not of how"):
        Settings.model_validate({"pools": pair("http://h:1@3")})
    Settings.model_validate({"pools": pair({"url": "http://h:1@3", "dp_size": 4})})
