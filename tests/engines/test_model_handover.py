"""KV from one engine to another: leases, fetches, and what becomes of wrong KV."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.model.engine import EngineFault, Kept
from engines.model.generation import OutputLengths
from engines.model.handover import KeptBlocks, TransferLink
from engines.model.kv_cache import KvCache
from tests.engines.bench import bench, prefilled

# --- what a prefill engine keeps -------------------------------------------------------------------------


def test_a_finished_prefill_keeps_its_blocks_and_runs_no_more() -> None:
    b = bench()
    kept = prefilled(b, prompt=10)
    assert kept == Kept((1, 2, 3), 10)
    assert (b.engine.running, b.engine.idle, b.used) == (0, True, 3)
    assert b.engine.kv_usage == pytest.approx(3 / 100)


def test_kept_blocks_of_one_prefix_are_shared_and_each_lease_holds_them() -> None:
    b = bench()
    first, second = prefilled(b, "p", 10), prefilled(b, "q", 10)
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    b.engine.kept.release("p", b.now)
    assert b.used == 3
    b.engine.kept.release("q", b.now)
    assert b.used == 0


def test_a_stop_token_retains_and_an_abort_does_not() -> None:
    b = bench()
    for name in "sa":
        b.add(name, 10, max_tokens=5, retain=True)
    b.step()
    assert b.engine.stop("s", b.now) is not None
    assert b.engine.abort("a")
    assert len(b.engine.kept) == 1


def test_an_answer_that_ends_by_itself_retains_too() -> None:
    b = bench(output_lengths=OutputLengths(1.0, 0.0))
    prefilled(b, max_tokens=8)
    assert b.outputs[0].finish_reason == "stop"
    assert len(b.engine.kept) == 1


def test_a_lease_ends_at_its_time_and_is_counted() -> None:
    b = bench(kv_lease_s=12.0)
    prefilled(b)
    end = b.engine.kept.next_end
    assert end == b.now + 12.0
    assert b.engine.kept.expire(end - 0.001) == 0
    assert b.engine.kept.expire(end) == 1
    assert (b.used, b.engine.kept.expired, b.engine.kept.next_end) == (0, 1, None)


@pytest.mark.parametrize(("lease_s", "after_s"), [(30.0, 20.0), (12.0, 8.0), (10.0, 6.0)])
def test_a_heartbeat_gives_two_thirds_of_a_lease_from_now(lease_s: float, after_s: float) -> None:
    b = bench(kv_lease_s=lease_s)
    prefilled(b)
    at = b.now + lease_s - 1.0
    b.engine.kept.prolong(["p", "nobody"], at)
    assert b.engine.kept.next_end == at + after_s


def test_a_heartbeat_never_shortens_a_lease() -> None:
    b = bench(kv_lease_s=30.0)
    prefilled(b)
    b.engine.kept.prolong(["p"], b.now)
    assert b.engine.kept.next_end == b.now + 30.0


def test_a_release_frees_once_and_a_second_one_is_counted_as_late() -> None:
    b = bench()
    prefilled(b)
    assert b.engine.kept.release("p", b.now) is not None
    assert b.engine.kept.release("p", b.now) is None
    assert (b.used, b.engine.kept.late_releases, b.engine.kept.expired) == (0, 1, 0)


def test_a_release_at_the_very_end_of_a_lease_is_too_late() -> None:
    b = bench(kv_lease_s=12.0)
    prefilled(b)
    assert b.engine.kept.release("p", b.now + 12.0) is None
    assert (b.engine.kept.late_releases, b.engine.kept.expired) == (1, 1)


def test_a_cut_lease_ends_early_whatever_heartbeats_come() -> None:
    b = bench()
    prefilled(b)
    b.engine.kept.cut("p", 2.0, b.now)
    b.engine.kept.prolong(["p"], b.now + 1.0)
    assert b.engine.kept.expire(b.now + 2.0) == 1


def test_kept_blocks_hold_a_job_up_until_they_are_free() -> None:
    b = bench(num_blocks=11, max_model_len=40)
    prefilled(b, prompt=range(500, 536))
    b.add("big", range(30), max_tokens=2)
    assert b.step() == []
    b.engine.kept.release("p", b.now)
    assert b.step() == [("big", 30)]


# --- what a decode engine fetches ------------------------------------------------------------------------


def test_a_fetching_job_holds_its_blocks_and_is_no_part_of_the_batch() -> None:
    b = bench()
    b.add("d", 10, max_tokens=3, fetch=True)
    assert b.step() == []
    assert (b.engine.running, b.engine.waiting, b.used) == (0, 1, 3)
    assert b.engine.waiting_by_reason == {"capacity": 0, "deferred": 1}
    assert b.engine.kv_fetch_by_stage == {"waiting_to_start": 0, "in_progress": 1, "completed_waiting": 0}
    fetch = b.fetch()
    assert (fetch.job_id, fetch.blocks, fetch.held, fetch.tells_only) == ("d", 3, 0, False)
    assert b.engine.drain_fetches() == []


def test_after_the_fetch_only_the_last_token_is_computed() -> None:
    b = bench()
    b.add("d", 10, max_tokens=2, fetch=True)
    b.step()
    b.engine.fetched("d")
    assert b.engine.kv_fetch_by_stage["completed_waiting"] == 1
    assert b.engine.waiting_by_reason == {"capacity": 0, "deferred": 1}
    assert b.step() == [("d", 1)]
    assert [one.job_id for one in b.outputs] == ["d"]
    b.rest()
    assert b.used == 0


def test_fetched_kv_is_counted_as_external_and_not_as_computed() -> None:
    b = bench()
    b.add("d", 10, max_tokens=2, fetch=True)
    b.step()
    counters = b.engine.counters
    assert (counters.external_queries_tokens, counters.external_hits_tokens) == (10, 10)
    assert counters.prompt_tokens_external == 0
    b.engine.fetched("d")
    b.rest()
    assert (counters.prompt_tokens, counters.prompt_tokens_external, counters.prompt_tokens_cached) == (
        10, 10, 10,
    )  # fmt: skip
    assert b.outputs[0].timing.reported_cached_tokens == 10


def test_only_blocks_that_are_not_here_are_fetched() -> None:
    b = bench()
    b.add("before", 10, max_tokens=1)
    b.rest()
    b.add("d", 10, max_tokens=2, fetch=True)
    b.step()
    fetch = b.fetch()
    assert (fetch.blocks, fetch.held) == (1, 2)
    assert (b.engine.counters.external_hits_tokens, b.engine.counters.external_queries_tokens) == (2, 12)


def test_the_cached_tokens_of_the_prefill_engine_are_reported() -> None:
    b = bench()
    b.add("d", 10, max_tokens=2, fetch=True, remote_cached_tokens=8)
    b.step()
    b.engine.fetched("d")
    b.rest()
    assert b.outputs[0].timing.reported_cached_tokens == 8


def test_fetched_full_blocks_are_in_the_cache_from_then_on() -> None:
    b = bench()
    b.add("d", 12, max_tokens=1, fetch=True)
    b.step()
    b.engine.fetched("d")
    b.rest()
    b.add("next", range(16), max_tokens=1)
    assert b.step() == [("next", 4)]


def test_a_fetch_waits_for_a_place_in_the_batch_and_for_blocks() -> None:
    b = bench(max_num_seqs=1)
    b.add("r", 10, max_tokens=3)
    b.step()
    b.add("d", range(100, 110), max_tokens=2, fetch=True)
    b.step()
    assert b.engine.kv_fetch_by_stage["waiting_to_start"] == 1
    assert b.engine.waiting_by_reason == {"capacity": 1, "deferred": 0}
    assert b.engine.drain_fetches() == []
    b.rest()
    assert b.fetch().job_id == "d"


def test_a_fetching_job_leaves_its_place_in_the_batch_to_others() -> None:
    b = bench(max_num_seqs=1)
    b.add("d", 10, max_tokens=2, fetch=True)
    b.add("r", range(100, 110), max_tokens=2)
    assert b.step() == [("r", 10)]
    b.engine.fetched("d")
    assert b.step() == [("r", 1)]
    assert b.step() == [("d", 1)]


def test_a_fetched_job_comes_before_those_that_wait() -> None:
    b = bench(max_num_seqs=1)
    b.add("d", 10, max_tokens=2, fetch=True)
    b.add("r", range(100, 110), max_tokens=1)
    b.add("w", range(200, 210), max_tokens=1)
    b.step()
    b.engine.fetched("d")
    assert b.step() == [("d", 1)]


def test_blocks_promised_to_a_running_prefill_are_not_given_to_a_fetch() -> None:
    b = bench(num_blocks=11, max_model_len=40, max_num_batched_tokens=8)
    b.add("r", range(100, 128), max_tokens=1)
    b.step()
    b.add("d", 16, max_tokens=1, fetch=True)
    b.step()
    assert b.engine.drain_fetches() == []
    b.rest()
    assert b.fetch().job_id == "d"


def test_a_fetch_is_done_once_and_a_preempted_job_computes_its_prompt() -> None:
    b = bench(num_blocks=9, max_model_len=32)
    b.add("r", range(100, 112), max_tokens=12)
    b.step()
    b.add("d", 15, max_tokens=10, fetch=True)
    b.step()
    b.engine.fetched("d")
    b.engine.drain_fetches()
    b.rest()
    assert b.engine.counters.preemptions > 0
    assert b.engine.drain_fetches() == []
    assert b.used == 0


def test_a_preempted_batch_gives_its_place_to_a_fetched_job_at_once() -> None:
    b = bench(num_blocks=9, max_model_len=32)
    b.add("d", 16, max_tokens=1, fetch=True)
    b.step()
    b.add("r", range(100, 115), max_tokens=10)
    b.step()
    b.step()
    b.engine.fetched("d")
    b.rest()
    assert b.engine.idle
    assert b.used == 0


def test_prompt_logprobs_compute_everything_and_only_tell() -> None:
    b = bench()
    b.add("before", 10, max_tokens=1)
    b.rest()
    b.add("d", 10, max_tokens=1, fetch=True, skip_cache=True)
    assert b.step() == [("d", 10)]
    fetch = b.fetch()
    assert (fetch.job_id, fetch.tells_only) == ("d", True)
    assert b.engine.counters.external_hits_tokens == 0


def test_a_job_that_leaves_the_queue_only_tells() -> None:
    b = bench(max_num_seqs=1)
    b.add("r", range(100, 110), max_tokens=3)
    b.step()
    b.add("d", 10, fetch=True)
    assert b.engine.abort("d")
    assert b.fetch().tells_only
    b.rest()
    assert b.used == 0


def test_a_job_that_leaves_while_its_kv_comes_holds_its_blocks_until_the_end() -> None:
    b = bench()
    b.add("d", 10, fetch=True)
    b.step()
    b.fetch()
    assert b.engine.abort("d")
    assert (b.engine.idle, b.used, b.engine.waiting) == (True, 3, 0)
    b.engine.fetched("d")
    assert b.used == 0
    assert b.engine.drain_fetches() == []


def test_a_job_that_leaves_after_its_kv_came_frees_at_once() -> None:
    b = bench(max_num_seqs=1)
    b.add("d", 10, fetch=True)
    b.step()
    b.add("r", range(100, 110), max_tokens=3)
    b.step()
    b.engine.fetched("d")
    assert b.engine.abort("d")
    assert b.used == 3
    b.rest()
    assert b.used == 0


def test_a_failed_fetch_loses_the_job() -> None:
    b = bench()
    b.add("d", 10, fetch=True)
    b.step()
    assert b.engine.fetch_failed("d")
    assert (b.engine.idle, b.used) == (True, 0)


def test_a_failed_fetch_computes_here_under_the_recompute_policy() -> None:
    b = bench(recompute_failed_loads=True)
    b.add("d", 10, max_tokens=1, fetch=True)
    b.add("w", range(100, 110), max_tokens=1)
    b.step()
    b.engine.drain_fetches()
    assert not b.engine.fetch_failed("d")
    assert b.step() == [("d", 10)]
    assert b.engine.drain_fetches() == []


def test_a_fetch_that_fails_after_its_job_left_only_frees() -> None:
    b = bench()
    b.add("d", 10, fetch=True)
    b.step()
    b.engine.abort("d")
    assert not b.engine.fetch_failed("d")
    assert b.used == 0


def test_the_end_of_a_fetch_that_never_began_is_a_fault_of_the_driver() -> None:
    b = bench()
    for end in (b.engine.fetched, b.engine.fetch_failed):
        with pytest.raises(EngineFault, match="no KV is on its way for a job x"):
            end("x")


# --- time ------------------------------------------------------------------------------------------------


def test_a_transfer_takes_its_latency_and_its_bytes_over_the_bandwidth() -> None:
    link = TransferLink(block_bytes=1000, bytes_per_s=1e6, latency_s=0.5)
    assert link.seconds(0) == 0.5
    assert link.seconds(250) == 0.75


@pytest.mark.parametrize("wrong", [{"block_bytes": 0}, {"bytes_per_s": 0.0}, {"latency_s": -1.0}])
def test_an_impossible_link_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a link needs"):
        TransferLink(**{"block_bytes": 1, "bytes_per_s": 1.0, "latency_s": 0.0, **wrong})  # type: ignore[arg-type]  # any field


@given(st.lists(st.tuples(st.floats(0, 20), st.sampled_from(["beat", "release", "expire"])), max_size=12))
def test_a_lease_lasts_until_the_later_of_its_length_and_two_thirds_from_the_last_beat(
    events: list[tuple[float, str]],
) -> None:
    kv = KvCache(4, 4)
    kept = KeptBlocks(kv, 30.0)
    kept.keep("p", kv.allocate(1), b"x", 0.0)
    now, end, held = 0.0, 30.0, True
    for gap, event in events:
        now += gap
        held = held and now < end
        if event == "beat":
            kept.expire(now)
            kept.prolong(["p"], now)
            end = max(end, now + 20.0)
        elif event == "release":
            assert (kept.release("p", now) is not None) == held
            held = False
        else:
            kept.expire(now)
        assert (kv.used_blocks == 1) == held
