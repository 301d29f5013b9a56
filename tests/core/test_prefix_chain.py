"""Laws of the chained hashes of token blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core.prefix_chain import chain, chained, pack, seed_of
from router.core.prompt_key import Partition

PART = Partition("model", "", "")
TOKENS = st.lists(st.integers(0, 3), max_size=40).map(tuple)


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_hashes_agree_exactly_as_far_as_whole_blocks_do(
    one: tuple[int, ...], two: tuple[int, ...], size: int
) -> None:
    first, second = chain(PART, one, size), chain(PART, two, size)
    assert len(first) == len(one) // size
    for index in range(min(len(first), len(second))):
        end = (index + 1) * size
        assert (first[index] == second[index]) == (one[:end] == two[:end])


def test_a_chain_is_its_blocks_hashed_one_behind_the_other() -> None:
    first = chained(seed_of(PART), pack((1, 2)))
    assert list(chain(PART, (1, 2, 3, 4, 5), 2)) == [first, chained(first, pack((3, 4)))]


def test_partitions_share_no_hash() -> None:
    tokens = tuple(range(64))
    parts = [PART, Partition("other", "", ""), Partition("model", "lora", ""), Partition("model", "", "salt")]
    hashes = [block for part in parts for block in chain(part, tokens, 16)]
    assert len(set(hashes)) == len(hashes) == 16


def test_ids_that_no_vocabulary_has_make_no_chain() -> None:
    assert not chain(PART, (1, -2, 3), 1)
    assert not chain(PART, (1 << 32,), 1)
    assert len(chain(PART, ((1 << 32) - 1,), 1)) == 1
