"""Laws of the radix tree of prefixes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import InternalError
from router.core.prefix_tree import (
    Book,
    PrefixTree,
    common_length,
)
from router.core.prompt_key import Partition
from tests.core.tree_examples import PART, common, held_by, sure

OTHER = Partition("model", "", "salt")


# --- matching --------------------------------------------------------------------------------------------


def test_every_holder_is_found_with_its_own_length() -> None:
    tree, one, two, three = PrefixTree(), Book(1), Book(2), Book(4)
    sure(tree, one, b"system: be kind. user: hello")
    sure(tree, two, b"system: be kind. user: what")
    sure(tree, three, b"system: be brief.")
    assert held_by(tree, b"system: be kind. user: hello there") == {1: 28, 2: 23, 4: 11}
    assert held_by(tree, b"nothing") == {}
    assert held_by(tree, b"") == {}


def test_workers_that_are_gone_are_masked_out() -> None:
    tree, one, two = PrefixTree(), Book(1), Book(2)
    sure(tree, one, b"abc")
    sure(tree, two, b"abc")
    assert held_by(tree, b"abc", live=2) == {2: 3}
    assert held_by(tree, b"abc", live=0) == {}


def test_partitions_share_nothing() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"abc")
    assert held_by(tree, b"abc", OTHER) == {}


def test_a_prompt_within_a_longer_one_is_held_whole() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"abcdef")
    assert held_by(tree, b"abc") == {1: 3}
    assert tree.nodes == 1


def test_bytes_are_the_unit_of_every_text() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, "größer".encode())
    assert held_by(tree, "größte".encode()) == {1: len("größ".encode())}


def test_nobody_holds_an_empty_text() -> None:
    with pytest.raises(InternalError, match="nothing cannot"):
        PrefixTree().insert(PART, b"", Book(1), 0.0)


@given(
    shared=st.binary(max_size=400),
    one=st.binary(max_size=20),
    other=st.binary(max_size=400),
    at=st.integers(0, 9),
)
def test_common_length_is_that_of_a_byte_by_byte_comparison(
    shared: bytes, one: bytes, other: bytes, at: int
) -> None:
    data, edge = bytes(at) + shared + one, shared + other
    slow = common(data[at:], edge)
    assert common_length(data, at, edge) == slow


# --- outcomes --------------------------------------------------------------------------------------------


def test_a_dispatched_prompt_is_believed_at_once() -> None:
    tree, book = PrefixTree(), Book(1)
    tree.insert(PART, b"abc", book, 0.0)
    assert held_by(tree, b"abcd") == {1: 3}


def test_a_withdrawn_prompt_leaves_what_was_there_before() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"system. first")
    tree.withdraw(tree.insert(PART, b"system. second", book, 1.0).end, book)
    assert held_by(tree, b"system. second") == {1: 8}
    assert held_by(tree, b"system. first") == {1: 13}
    assert tree.nodes == 1


def test_a_withdrawn_prompt_stays_while_another_of_the_same_text_runs() -> None:
    tree, book = PrefixTree(), Book(1)
    first, second = (tree.insert(PART, b"abc", book, 0.0).end for _ in range(2))
    tree.withdraw(first, book)
    assert held_by(tree, b"abc") == {1: 3}
    tree.withdraw(second, book)
    assert held_by(tree, b"abc") == {}
    assert tree.used_bytes == 0


def test_a_prompt_that_was_confirmed_once_is_not_withdrawn_by_a_later_failure() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"abc")
    tree.withdraw(tree.insert(PART, b"abc", book, 1.0).end, book)
    assert held_by(tree, b"abc") == {1: 3}


def test_an_outcome_after_eviction_changes_nothing() -> None:
    tree, book = PrefixTree(), Book(1)
    kept, lost = (tree.insert(PART, text, book, 0.0).end for text in (b"abc", b"xyz"))
    tree.evict(book)
    tree.evict(book)
    tree.confirm(kept, book, 1.0)
    tree.withdraw(lost, book)
    assert tree.extend(kept, b"d", book, 1.0) is None
    assert tree.used_bytes == book.held_bytes == 0


def test_an_outcome_that_comes_twice_is_a_bug() -> None:
    tree, book = PrefixTree(), Book(1)
    end = sure(tree, book, b"abc")
    with pytest.raises(InternalError, match="more often"):
        tree.confirm(end, book, 1.0)
    with pytest.raises(InternalError, match="more often"):
        tree.withdraw(end, book)


def test_an_answer_continues_the_text_of_its_prompt() -> None:
    tree, book = PrefixTree(), Book(1)
    end = sure(tree, book, b"question ")
    sure(tree, Book(2), b"question also asked")  # splits nothing away from under the end
    longer = tree.extend(end, b"answer", book, 1.0)
    assert longer is not None
    tree.confirm(longer.end, book, 1.0)
    assert held_by(tree, b"question answer next") == {1: 15, 2: 10}


def test_an_insertion_says_what_was_held_before_it() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"turn one.", now=5.0)
    found = tree.insert(PART, b"turn one. turn two.", book, 6.0)
    assert (found.held, found.sure, found.sure_touched) == (9, 9, 5.0)
    again = tree.insert(PART, b"turn one. turn two or three.", book, 7.0)
    assert (again.held, again.sure, again.sure_touched) == (18, 9, 5.0)


def test_a_prefix_in_flight_is_held_but_not_sure() -> None:
    tree, book = PrefixTree(), Book(1)
    tree.insert(PART, b"abc", book, 0.0)
    found = tree.insert(PART, b"abcd", book, 0.0)
    assert (found.held, found.sure) == (3, 0)


# --- shape -----------------------------------------------------------------------------------------------


def test_the_turns_of_a_conversation_become_one_node() -> None:
    tree, book, text = PrefixTree(), Book(1), b""
    for turn in range(20):
        text += b"turn %d. " % turn
        sure(tree, book, text, now=turn)
    assert tree.nodes == 1
    assert len(book.ends) == 1
    assert held_by(tree, text) == {1: len(text)}


def test_a_node_is_joined_again_when_its_branch_is_gone() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"abc-one")
    for number in range(50):
        tree.withdraw(tree.insert(PART, b"abc-%d" % number, book, 1.0).end, book)
        assert tree.nodes == 1


def test_a_node_that_others_hold_apart_is_not_joined() -> None:
    tree, one, two = PrefixTree(), Book(1), Book(2)
    sure(tree, one, b"abcdef")
    sure(tree, two, b"abc")
    assert held_by(tree, b"abcdef") == {1: 6, 2: 3}
    assert tree.nodes == 2


# --- eviction --------------------------------------------------------------------------------------------


def test_the_least_recently_used_end_goes_first() -> None:
    tree, book = PrefixTree(), Book(1)
    for now, text in enumerate((b"first", b"second", b"third", b"first")):
        sure(tree, book, text, now=now)
    tree.evict(book)
    assert held_by(tree, b"second") == {}
    assert held_by(tree, b"first") == {1: 5}
    assert book.oldest == 2


def test_eviction_takes_leaves_before_what_they_stand_on() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"system. one", now=0.0)
    sure(tree, book, b"system. two", now=1.0)
    tree.evict(book)
    assert held_by(tree, b"system. one") == {1: 8}
    tree.evict(book)
    assert tree.used_bytes == 0


def test_a_prefix_is_as_old_as_its_youngest_continuation() -> None:
    tree, one, two = PrefixTree(), Book(1), Book(2)
    for book in (two, one):
        sure(tree, book, b"system. one", now=0.0)
        sure(tree, book, b"system. two", now=1.0)
    sure(tree, one, b"other", now=2.0)
    tree.evict(one)
    tree.evict(one)
    assert (held_by(tree, b"system. two"), one.oldest) == ({1: 8, 2: 11}, 1.0)
    tree.evict(one)
    assert (held_by(tree, b"system. two"), one.oldest) == ({2: 11}, 2.0)


def test_evicting_one_worker_leaves_the_text_to_the_others() -> None:
    tree, one, two = PrefixTree(), Book(1), Book(2)
    sure(tree, one, b"abc")
    sure(tree, two, b"abc")
    tree.evict(one)
    assert held_by(tree, b"abc") == {2: 3}
    assert one.held_bytes == 0
