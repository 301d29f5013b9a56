"""Laws of the prefix index: what it answers, and what outcomes, reports and events do to it."""

from __future__ import annotations

import pytest

from router.core.prefix_index import Prompt
from router.core.prompt_key import Partition
from router.core.trust import Trust
from tests.core.index_examples import IDS, PART, TEXT, blocks, cached, dispatch, followed, index_of, serve

# --- answers ---------------------------------------------------------------------------------------------


def test_a_match_names_every_holder_with_its_share_of_the_prompt() -> None:
    index = index_of("a", "b", "c")
    serve(index, TEXT, "a")
    serve(index, TEXT[:85], "b")
    match = index.match(PART, TEXT, 200)
    assert match.tokens == {"a": 199, "b": 100}
    assert (match.on("b"), match.on("c"), match.longest) == (100, 0, 199)


def test_the_last_token_is_never_cached() -> None:
    index = index_of("a")
    serve(index, TEXT, "a")
    assert cached(index, TEXT, 2) == {"a": 1}
    assert cached(index, TEXT, 1) == {}
    assert cached(index, TEXT, 0) == {}


def test_token_ids_are_matched_in_whole_blocks() -> None:
    index = index_of("a", "b")
    serve(index, IDS, "a")
    serve(index, IDS[:40], "b")
    assert cached(index, (*IDS, 1)) == {"a": 128, "b": 32}
    assert cached(index, IDS) == {"a": 127, "b": 32}
    assert cached(index, IDS[:15]) == {}


def test_text_and_token_ids_are_never_taken_for_each_other() -> None:
    index = index_of("a")
    serve(index, TEXT, "a")
    assert cached(index, tuple(TEXT)) == {}


@pytest.mark.parametrize("prompt", [TEXT, IDS])
def test_model_lora_and_salt_keep_prompts_apart(prompt: Prompt) -> None:
    index = index_of("a")
    serve(index, prompt, "a")
    others = (Partition("other", "", ""), Partition("model", "lora", ""), Partition("model", "", "salt"))
    assert all(index.match(part, prompt, 100).tokens == {} for part in others)


@pytest.mark.parametrize("prompt", [b"", (), IDS[:15], (-1,) * 32])
def test_what_has_no_block_is_matched_and_inserted_without_effect(prompt: Prompt) -> None:
    index = index_of("a")
    assert cached(index, prompt) == {}
    assert index.insert(PART, prompt, "a", 0.0, prompt_tokens=len(prompt)) is None
    assert index.used_bytes == 0


def test_a_prompt_for_a_worker_that_is_not_known_is_not_believed() -> None:
    assert index_of("a").insert(PART, TEXT, "b", 0.0, prompt_tokens=1) is None


def test_a_match_changes_nothing() -> None:
    index = index_of("a", "b")
    serve(index, TEXT, "a")
    serve(index, IDS, "b")
    before = (index.used_bytes, list(index.store.text), list(index.store.blocks))
    for _ in range(2):
        assert cached(index, TEXT) == {"a": 99}
        assert cached(index, IDS) == {"b": 127}
    assert (index.used_bytes, list(index.store.text), list(index.store.blocks)) == before


# --- outcomes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [TEXT, IDS])
def test_a_dispatch_is_believed_until_it_is_withdrawn(prompt: Prompt) -> None:
    index = index_of("a")
    claim = dispatch(index, prompt, "a")
    assert list(cached(index, prompt)) == ["a"]
    index.withdraw(claim)
    assert cached(index, prompt) == {}
    assert index.used_bytes == 0


@pytest.mark.parametrize("prompt", [TEXT, IDS])
def test_a_claim_is_settled_once(prompt: Prompt) -> None:
    index = index_of("a")
    claim = serve(index, prompt, "a")
    index.withdraw(claim)
    index.confirm(claim, 1.0)
    assert list(cached(index, prompt)) == ["a"]
    holder = index.holder("a")
    assert holder is not None
    assert holder.pending_tokens == 0


def test_a_claim_knows_what_was_held_before() -> None:
    index = index_of("a")
    assert dispatch(index, TEXT[:85], "a").held_tokens == 0
    claim = dispatch(index, TEXT, "a")
    assert (claim.held_tokens, claim.sure_tokens) == (50, 0)
    ids = serve(index, IDS, "a"), dispatch(index, (*IDS, *range(32)), "a", 9.0)
    assert (ids[1].held_tokens, ids[1].sure_tokens, ids[1].sure_touched) == (128, 128, 0.0)


def test_an_answer_is_believed_behind_its_prompt() -> None:
    index = index_of("a")
    index.extend(serve(index, TEXT, "a"), b"answer", 1.0)
    assert cached(index, TEXT + b"answer, next question", 191) == {"a": 176}


def test_an_answer_to_a_prompt_that_was_cut_or_is_gone_is_not_believed() -> None:
    index = index_of("a", capacity=25)
    long = serve(index, TEXT, "a")
    index.extend(long, b"answer", 1.0)
    assert cached(index, TEXT, 170) == {"a": 80}
    ids = serve(index, IDS, "a")
    index.extend(ids, b"answer", 1.0)
    index.remove("a")
    index.extend(long, b"answer", 1.0)
    assert cached(index, TEXT) == {}


# --- members ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [TEXT, IDS])
def test_a_worker_that_is_removed_holds_nothing_from_then_on(prompt: Prompt) -> None:
    index = index_of("a", "b")
    serve(index, prompt, "a")
    serve(index, prompt, "b")
    index.remove("a")
    index.remove("a")
    assert list(cached(index, prompt)) == ["b"]
    assert index.trust("a", text=True) is Trust.LOAD_ONLY


@pytest.mark.parametrize("prompt", [TEXT, IDS])
def test_a_new_incarnation_begins_with_nothing(prompt: Prompt) -> None:
    index = index_of("a")
    old = dispatch(index, prompt, "a")
    index.admit("a", 1)
    assert cached(index, prompt) == {}
    index.confirm(old, 1.0)
    index.report(old, 100, 0)
    assert cached(index, prompt) == {}
    new = dispatch(index, prompt, "a")
    index.admit("a", 1, 5_000)
    assert list(cached(index, prompt)) == ["a"]
    index.withdraw(new)


def test_everything_is_gone_once_all_workers_are_and_the_sweep_was_made() -> None:
    index = index_of("a", "b")
    for number, worker in enumerate("ab" * 20):
        serve(index, TEXT + b"%d" % number, worker)
        serve(index, (*IDS, *range(number, number + 16)), worker)
    followed(index, "a")
    index.apply("a", blocks())
    serve(index, IDS, "a")
    index.remove("a")
    index.remove("b")
    steps = 0
    while index.store.to_sweep:
        taken = index.sweep(0.0, 10)
        assert taken <= 10
        steps += taken
    assert index.used_bytes == 0
    assert steps > 40
    assert repr(index) == "<PrefixIndex [0 workers | <PrefixStore [0% of 268435456 bytes | 0 to sweep]>]>"


def test_slots_of_workers_that_come_and_go_are_used_again() -> None:
    index = index_of()
    for number in range(200):
        index.admit("a", number)
        serve(index, TEXT, "a", float(number))
        index.sweep(float(number))
    assert index.store.slots.live.bit_length() <= 3


# --- reports ---------------------------------------------------------------------------------------------


def test_what_the_engine_reports_is_compared_with_what_was_believed() -> None:
    index = index_of("a")
    serve(index, TEXT, "a")
    index.report(serve(index, TEXT, "a", 1.0), 200, 150)
    holder = index.holder("a")
    assert holder is not None
    assert holder.beliefs.bias == pytest.approx((192 - 150) / 200)  # whole blocks, not the last token
    index.report(serve(index, TEXT, "a", 1.0), 200, None)
    index.report(serve(index, TEXT, "a", 1.0), 0, 0)
    assert holder.beliefs.samples == 1


def test_the_length_of_text_is_learned_from_reports() -> None:
    index = index_of("a", capacity=1_000)
    for _ in range(200):
        index.report(serve(index, TEXT, "a"), len(TEXT) // 2, None)
    assert index.store.bytes_per_token == pytest.approx(2.0, rel=0.01)
    index.report(serve(index, TEXT, "a"), 1, None)  # 170 bytes a token are no text
    assert index.store.bytes_per_token == pytest.approx(2.0, rel=0.01)


def test_a_worker_whose_reports_belie_us_counts_by_load_alone_and_climbs_back() -> None:
    index = index_of("a")
    serve(index, TEXT, "a")
    for _ in range(20):
        index.report(serve(index, TEXT, "a"), 100, 0)
    assert index.trust("a", text=True) is Trust.LOAD_ONLY
    assert cached(index, TEXT) == {}
    for _ in range(60):
        index.report(serve(index, TEXT, "a"), 100, 96)
    assert index.trust("a", text=True) is Trust.APPROXIMATE
    assert cached(index, TEXT) == {"a": 99}


def test_a_worker_that_lost_its_cache_loses_what_it_used_before() -> None:
    index = index_of("a", "b")
    for number in range(12):
        for worker in "ab":
            serve(index, b"%02d" % number + TEXT, worker, float(number))
    for number in range(6, 12):  # the cache of "a" was reset: nothing of what it surely had is there
        index.report(dispatch(index, b"%02d" % number + TEXT, "a", 20.0), 100, 0)
    index.sweep(21.0)
    assert cached(index, b"00" + TEXT) == {"b": 99}
    assert cached(index, b"05" + TEXT) == {"b": 99}
    assert cached(index, b"11" + TEXT) == {"a": 99, "b": 99}


def test_a_single_loss_has_other_reasons() -> None:
    index = index_of("a")
    serve(index, b"old" + TEXT, "a", 0.0)
    serve(index, TEXT, "a", 1.0)
    for _ in range(2):
        index.report(dispatch(index, TEXT, "a", 2.0), 100, 0)
    index.sweep(3.0)
    assert cached(index, b"old" + TEXT) == {"a": 99}
