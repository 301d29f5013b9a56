"""Laws of the prompts: exact lengths, equal where the trace shares, different everywhere else."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.studies.replay.prompts import BYTES_PER_WORD, WORDS, Prompts, Tokenizer, words
from router.studies.traces import TraceEntry


def entry(prompt_tokens: int, blocks: tuple[str, ...] = (), line: int = 1) -> TraceEntry:
    return TraceEntry(arrival_s=0, prompt_tokens=prompt_tokens, output_tokens=1, blocks=blocks, line=line)


def prompts(seed: int = 0, block_tokens: int = 16, **tokenizer: float) -> Prompts:
    return Prompts(seed=seed, block_tokens=block_tokens, tokenizer=Tokenizer(**tokenizer))


def test_there_are_256_words_of_three_letters() -> None:
    assert len(set(WORDS)) == 256
    assert {len(word) for word in WORDS} == {3}


@given(st.text(max_size=20), st.integers(0, 500), st.integers(0, 500))
def test_a_shorter_text_begins_a_longer_one_of_the_same_key(key: str, one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert words(key, long).startswith(words(key, short))
    assert len(words(key, long).encode()) == BYTES_PER_WORD * long
    assert set(words(key, long).split()) <= set(WORDS)


@given(
    st.integers(1, 3_000),
    st.integers(0, 12),
    st.integers(0, 40),
    st.integers(1, 64),
)
def test_a_prompt_has_exactly_the_tokens_asked_for(
    prompt_tokens: int, blocks: int, overhead: int, block_tokens: int
) -> None:
    """On a tokenizer of four bytes a token, counting the overhead; at least one word is always sent."""
    names = tuple(map(str, range(blocks)))
    text = prompts(block_tokens=block_tokens, overhead_tokens=overhead).write(entry(prompt_tokens, names))
    told = overhead + len(text.encode()) // 4
    assert told == max(prompt_tokens, overhead + 1)


@given(st.integers(20, 3_000), st.floats(0.25, 4.0), st.floats(0, 12))
def test_another_tokenizer_is_met_within_a_word(
    prompt_tokens: int, tokens_per_word: float, overhead: float
) -> None:
    tokenizer = Tokenizer(overhead_tokens=overhead, tokens_per_word=tokens_per_word)
    told = overhead + tokenizer.words_for(prompt_tokens) * tokens_per_word
    assert abs(told - prompt_tokens) <= tokens_per_word / 2 + 1


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_prompts_share_exactly_their_common_leading_blocks(one: list[str], other: list[str]) -> None:
    size = 16
    # Names of prefixes, as traces have them: a block's name says all that is before it.
    first, second = (
        [f"{'/'.join(names[: place + 1])}" for place in range(len(names))] for names in (one, other)
    )
    common = sum(1 for _ in _common(first, second))
    write = prompts(block_tokens=size).write
    left = write(entry(size * len(one) + 20, tuple(first), line=1)).split()
    right = write(entry(size * len(other) + 20, tuple(second), line=2)).split()
    assert left[: common * size] == right[: common * size]
    assert left[common * size : common * size + 16] != right[common * size : common * size + 16]


def _common(one: list[str], other: list[str]) -> list[str]:
    shared = []
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared.append(left)
    return shared


def test_a_block_that_is_partly_filled_is_the_beginning_of_the_full_one() -> None:
    write = prompts(block_tokens=100).write
    assert write(entry(400, ("a", "b"))).startswith(write(entry(150, ("a", "b"), line=2)))


def test_blocks_keep_together_when_words_are_not_tokens() -> None:
    """Rounding happens at block ends, so that it depends on the block and not on what follows."""
    write = prompts(block_tokens=17, tokens_per_word=1.3).write
    short, long = write(entry(40, ("a", "b"), line=1)), write(entry(400, ("a", "b", "c"), line=2))
    shared = round(34 / 1.3)
    assert short.split()[:shared] == long.split()[:shared]


def test_what_no_block_covers_differs_by_line_and_by_seed() -> None:
    texts = [prompts(seed).write(entry(64, (), line)) for seed in range(3) for line in range(1, 4)]
    assert len(set(texts)) == len(texts)


def test_blocks_differ_by_seed_so_that_a_new_seed_finds_cold_caches() -> None:
    texts = [prompts(seed).write(entry(32, ("a", "b"))) for seed in range(4)]
    assert all(one[:8] != other[:8] for one, other in pairwise(sorted(texts)))


@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_seed_writes_the_same_bytes(seed: int) -> None:
    one = entry(500, ("a", "b"), line=9)
    assert prompts(seed).write(one) == prompts(seed).write(one)
