"""KV that is not of the prompt it is taken for gives an answer that nobody takes for the right one."""

from __future__ import annotations

from engines.model.engine import Fetch
from engines.model.generation import OutputLengths
from engines.model.handover import KeptBlocks
from engines.model.kv_cache import KvCache
from tests.engines.bench import Bench, bench


def answered(b: Bench, job_id: str, prompt: int | range, **knobs: object) -> str:
    b.add(job_id, prompt, **{"max_tokens": 6, **knobs})
    b.step()
    b.engine.drain_fetches()
    return job_id


def test_right_kv_gives_the_answer_of_an_engine_alone() -> None:
    b, alone = bench(), bench()
    answered(b, "d", 10, fetch=True)
    b.engine.fetched("d")
    answered(alone, "d", 10)
    b.rest()
    alone.rest()
    assert b.text("d") == alone.text("d") != ""


def test_no_token_of_a_garbled_answer_is_a_token_of_a_right_one() -> None:
    b, alone = bench(), bench()
    answered(b, "d", 10, fetch=True)
    b.engine.fetched("d", right=False)
    answered(alone, "d", 10)
    b.rest()
    alone.rest()
    assert b.text("d").isupper()
    assert b.outputs[0].timing.garbled
    wrong, right = ({token for one in x.outputs for token in one.token_ids} for x in (b, alone))
    assert not wrong & right


def test_a_garbled_answer_is_never_empty_where_the_right_one_is() -> None:
    lengths = OutputLengths(1.0, 0.0)
    b, alone = bench(output_lengths=lengths), bench(output_lengths=lengths)
    answered(alone, "d", 10)
    answered(b, "d", 10, fetch=True)
    b.engine.fetched("d", right=False)
    b.rest()
    assert (alone.text("d"), b.text("d") != "") == ("", True)


def test_wrong_kv_stays_in_the_cache_and_garbles_who_finds_it() -> None:
    b = bench()
    answered(b, "d", 10, fetch=True)
    b.engine.fetched("d", right=False)
    b.rest()
    answered(b, "next", 10)
    b.rest()
    assert b.text("next").isupper()
    assert b.engine.reset_prefix_cache()
    answered(b, "after", 10)
    b.rest()
    assert b.text("after").islower()


def test_wrong_kv_is_gone_when_its_blocks_hold_something_else() -> None:
    b = bench(num_blocks=11, max_model_len=40)
    answered(b, "d", 10, fetch=True)
    b.engine.fetched("d", right=False)
    b.rest()
    answered(b, "other", range(500, 539), max_tokens=1)
    b.rest()
    answered(b, "again", 10)
    b.rest()
    assert b.text("again").islower()


def fetch_of(blocks: int, held: int) -> Fetch:
    return Fetch("d", blocks, held, b"mine")


def test_kv_of_another_prompt_is_wrong_and_of_the_same_one_right() -> None:
    assert fetch_of(3, 0).is_right(b"mine")
    assert not fetch_of(3, 0).is_right(b"yours")
    assert not fetch_of(1, 2).is_right(b"yours")


def test_stale_kv_is_wrong_unless_all_but_the_last_block_are_here() -> None:
    assert not fetch_of(3, 0).is_right(None)
    assert not fetch_of(1, 0).is_right(None)
    assert not fetch_of(2, 4).is_right(None)
    assert fetch_of(1, 2).is_right(None)


def test_kept_blocks_of_a_garbled_prefill_are_known_to_be_wrong() -> None:
    kv = KvCache(10, 4)
    kept = KeptBlocks(kv, 30.0)
    blocks = kv.allocate(2)
    kv.spoil(blocks)
    kept.keep("p", blocks, b"mine", 0.0)
    assert kept.release("p", 1.0) not in {b"mine", None}
