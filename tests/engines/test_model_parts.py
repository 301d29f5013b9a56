"""Prompts of parts share blocks exactly as far as the texts that they stand for begin alike."""

from hypothesis import given
from hypothesis import strategies as st

from engines.model.parts import Part, PartsChain, PromptParts

PARTS = st.lists(st.builds(Part, st.integers(0, 2), st.integers(0, 9)), max_size=6)


def tokens(parts: list[Part]) -> list[tuple[int, int, int]]:
    """Each token as what it is: of which part, and the how-manieth in which."""
    return [(index, part.key, n) for index, part in enumerate(parts) for n in range(part.tokens)]


def merged(parts: list[Part]) -> list[Part]:
    return [part for part in parts if part.tokens]


def shared(one: list[object], other: list[object]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


@given(one=PARTS, other=PARTS, size=st.integers(1, 5))
def test_blocks_are_shared_as_far_as_the_parts_are_equal(
    one: list[Part], other: list[Part], size: int
) -> None:
    one, other = merged(one), merged(other)
    hashes = [PartsChain(PromptParts(parts, 99), size).hash_full_blocks() for parts in (one, other)]
    alike = shared(list(tokens(one)), list(tokens(other)))
    common = shared(list(hashes[0]), list(hashes[1]))
    assert common >= _whole_parts(one, other) // size
    assert common <= alike // size


def _whole_parts(one: list[Part], other: list[Part]) -> int:
    """Tokens of the leading parts that are equal in key and length."""
    return sum(part.tokens for part in one[: shared(list(one), list(other))])


@given(key=st.integers(), long=st.integers(20, 60), short=st.integers(10, 19), size=st.integers(1, 5))
def test_a_longer_text_of_one_key_goes_on_where_the_shorter_ends(
    key: int, long: int, short: int, size: int
) -> None:
    one = PartsChain(PromptParts([Part(key, long)], 1), size).hash_full_blocks()
    other = PartsChain(PromptParts([Part(key, short)], 1), size).hash_full_blocks()
    assert one[: short // size] == other


@given(parts=PARTS, answer=st.integers(1, 40), size=st.integers(1, 5))
def test_a_later_prompt_finds_the_blocks_of_the_answer_that_it_goes_on_from(
    parts: list[Part], answer: int, size: int
) -> None:
    parts = merged(parts)
    chain = PartsChain(PromptParts(parts, 7), size)
    chain.hash_full_blocks()
    for _ in range(answer):
        chain.append(0)
        chain.hash_full_blocks()
    later = PartsChain(PromptParts([*parts, Part(7, answer), Part(8, 10)], 9), size).hash_full_blocks()
    assert later[: len(chain.hashes)] == chain.hashes
    grown = PartsChain(PromptParts(parts, 7), size)
    grown.grow(answer)
    assert grown.hash_full_blocks() == chain.hashes


def test_two_answers_to_one_prompt_are_two_texts() -> None:
    prompt = PromptParts([Part(1, 8)], 7)
    chains = [PartsChain(prompt, 4, sequence=sequence) for sequence in (0, 1)]
    for chain in chains:
        chain.grow(8)
        chain.hash_full_blocks()
    assert chains[0].hashes[:2] == chains[1].hashes[:2]
    assert chains[0].hashes[2:] != chains[1].hashes[2:]


def test_a_salt_and_an_adapter_keep_prompts_apart() -> None:
    prompt = PromptParts([Part(1, 8)], 7)
    plain = PartsChain(prompt, 4).hash_full_blocks()
    assert PartsChain(prompt, 4, lora="a").hash_full_blocks() != plain
    assert PartsChain(prompt, 4, cache_salt="a").hash_full_blocks() != plain
