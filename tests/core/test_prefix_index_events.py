"""What the events of engines change in what is believed of their caches."""

from __future__ import annotations

import pytest

from router.core.errors import InternalError
from router.core.kv_event import BlocksCleared, BlocksRemoved
from router.core.prefix_chain import seed_of
from router.core.prefix_ledger import Fit
from router.core.prefix_settings import PrefixSettings
from router.core.prompt_key import Partition
from router.core.trust import Trust, TrustSignal
from tests.core.index_examples import IDS, TEXT, blocks, cached, dispatch, followed, index_of, serve


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
