"""Laws of the prefix index: what it answers, and what outcomes, reports and events do to it."""

from __future__ import annotations

import pytest

from router.core.errors import InternalError
from router.core.kv_event import BlocksCleared, BlocksRemoved, BlocksStored
from router.core.prefix_chain import seed_of
from router.core.prefix_holder import Claim
from router.core.prefix_index import PrefixIndex, Prompt
from router.core.prefix_ledger import Fit
from router.core.prefix_settings import PrefixSettings
from router.core.prompt_key import Partition
from router.core.trust import Trust, TrustSignal

PART = Partition("model", "", "")
TEXT = b"system: be kind. " * 10
IDS = tuple(range(100, 228))


def index_of(
    *workers: str, settings: PrefixSettings | None = None, capacity: int | None = None
) -> PrefixIndex:
    index = PrefixIndex(settings)
    for worker in workers:
        index.admit(worker, 0, capacity)
    return index


def dispatch(index: PrefixIndex, prompt: Prompt, worker: str, now: float = 0.0, tokens: int = 100) -> Claim:
    claim = index.insert(PART, prompt, worker, now, prompt_tokens=tokens)
    assert claim is not None
    return claim


def serve(index: PrefixIndex, prompt: Prompt, worker: str, now: float = 0.0, tokens: int = 100) -> Claim:
    claim = dispatch(index, prompt, worker, now, tokens)
    index.confirm(claim, now)
    return claim


def cached(index: PrefixIndex, prompt: Prompt, tokens: int = 100) -> dict[str, int]:
    return index.match(PART, prompt, tokens).tokens


def blocks(
    tokens: tuple[int, ...] = IDS, names: range = range(1, 9), parent: int | None = None
) -> BlocksStored:
    return BlocksStored(PART, tuple(names), parent, tokens, 16)


def followed(index: PrefixIndex, worker: str) -> None:
    index.follow(worker)
    index.stream(worker, TrustSignal.COMPLETE)
    assert index.trust(worker, text=False) is Trust.EXACT


# --- answers -----------------------------------------------------------------------------------------


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


# --- outcomes ----------------------------------------------------------------------------------------


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


# --- members -----------------------------------------------------------------------------------------


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


# --- reports -----------------------------------------------------------------------------------------


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


# --- events ------------------------------------------------------------------------------------------


def test_what_the_engine_said_counts_more_than_what_we_believe() -> None:
    index = index_of("a", "b")
    serve(index, IDS, "a")
    serve(index, IDS, "b")
    followed(index, "a")
    assert cached(index, IDS) == {"b": 127}
    assert index.apply("a", blocks(IDS[:64], range(1, 5))) is Fit.WELL
    assert cached(index, IDS) == {"a": 64, "b": 127}
    index.apply("a", BlocksRemoved((4, 3)))
    assert cached(index, IDS) == {"a": 32, "b": 127}


def test_text_is_never_exact() -> None:
    index = index_of("a")
    followed(index, "a")
    assert index.trust("a", text=True) is Trust.APPROXIMATE
    serve(index, TEXT, "a")
    assert cached(index, TEXT) == {"a": 99}


def test_a_dispatch_counts_until_the_events_speak_of_it() -> None:
    index = index_of("a")
    followed(index, "a")
    claim = dispatch(index, IDS, "a", 0.0)
    index.sweep(60.0)
    assert cached(index, IDS) == {"a": 127}  # still in flight
    index.confirm(claim, 61.0)
    index.sweep(65.0)
    assert cached(index, IDS) == {"a": 127}
    index.sweep(66.5)
    assert cached(index, IDS) == {}  # the engine would have said so by now


def test_a_dispatch_that_failed_is_not_predicted_any_more() -> None:
    index = index_of("a")
    followed(index, "a")
    index.withdraw(dispatch(index, IDS, "a"))
    assert cached(index, IDS) == {}
    assert index.used_bytes == 0


def test_lost_events_make_a_worker_approximate_and_right_ones_exact_again() -> None:
    index = index_of("a")
    followed(index, "a")
    index.apply("a", blocks())
    serve(index, IDS, "a")
    index.stream("a", TrustSignal.LOST)
    assert index.trust("a", text=False) is Trust.APPROXIMATE
    assert cached(index, IDS) == {"a": 127}  # by our own dispatches
    assert index.apply("a", blocks(IDS[64:], range(5, 9), parent=4)) is Fit.ORPHAN
    index.apply("a", blocks())
    for _ in range(20):
        index.report(serve(index, IDS, "a"), 128, 96)
    assert index.trust("a", text=False) is Trust.APPROXIMATE  # a block less than predicted
    for _ in range(40):
        index.report(serve(index, IDS, "a"), 128, 112)  # all blocks but the one of the last token
    assert index.trust("a", text=False) is Trust.EXACT


def test_while_events_are_silent_nothing_is_learned_from_them() -> None:
    index = index_of("a")
    followed(index, "a")
    index.stream("a", TrustSignal.SILENT)
    assert index.trust("a", text=False) is Trust.APPROXIMATE
    for _ in range(40):
        index.report(serve(index, IDS, "a"), 128, 0)
    holder = index.holder("a")
    assert holder is not None
    assert holder.events.samples == 0
    index.stream("a", TrustSignal.COMPLETE)
    assert index.trust("a", text=False) is Trust.EXACT


def test_a_worker_that_cleared_its_cache_is_known_exactly_and_holds_nothing() -> None:
    index = index_of("a", "b")
    for worker in "ab":
        serve(index, TEXT, worker)
        serve(index, IDS, worker)
    index.follow("a")
    index.apply("a", blocks())
    index.apply("a", BlocksCleared())
    assert index.trust("a", text=False) is Trust.EXACT
    assert list(cached(index, TEXT)) == list(cached(index, IDS)) == ["b"]


def test_a_ledger_for_which_there_is_no_room_leaves_beliefs() -> None:
    index = index_of("a", settings=PrefixSettings(max_bytes=6_000))
    followed(index, "a")
    assert index.apply("a", blocks()) is Fit.WELL
    assert index.apply("a", blocks(tuple(range(128)), range(11, 19))) is Fit.WELL
    assert index.apply("a", blocks(tuple(range(500, 628)), range(21, 29))) is Fit.FULL
    assert index.apply("a", blocks()) is Fit.FULL
    assert index.trust("a", text=False) is Trust.APPROXIMATE
    index.stream("a", TrustSignal.COMPLETE)
    assert index.trust("a", text=False) is Trust.APPROXIMATE
    index.sweep(0.0)
    assert index.store.event_blocks.used_bytes == 0


def test_without_tokens_events_only_bound_what_text_is_believed() -> None:
    index = index_of("a")
    index.follow("a", counts_only=True)
    index.stream("a", TrustSignal.COMPLETE)
    assert index.trust("a", text=False) is Trust.APPROXIMATE
    index.apply("a", blocks())  # 128 tokens: room for 512 bytes at four a token
    for number in range(8):
        serve(index, b"%d" % number + bytes(127), "a", float(number), tokens=32)
    index.sweep(8.0)
    assert [number for number in range(8) if cached(index, b"%d" % number + bytes(127))] == [4, 5, 6, 7]
    index.apply("a", BlocksRemoved((8, 7, 6, 5)))
    index.sweep(9.0)
    assert [number for number in range(8) if cached(index, b"%d" % number + bytes(127))] == [6, 7]


def test_events_of_a_worker_that_is_not_known_are_a_bug() -> None:
    with pytest.raises(InternalError, match="does not know"):
        index_of("a").apply("b", blocks())


def test_a_prompt_is_chained_once_for_its_match_and_its_insertion(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[Partition] = []

    def counted(partition: Partition) -> int:
        seeds.append(partition)
        return seed_of(partition)

    monkeypatch.setattr("router.core.prefix_chain.seed_of", counted)
    index = index_of("a")
    cached(index, IDS)
    dispatch(index, IDS, "a")
    assert len(seeds) == 1
