"""Laws of the key portion: the deepest part longer than all before it, before and after insertion."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core.prefix_index import PrefixIndex, Prompt
from router.core.prefix_portion import Portion
from router.core.prompt_key import Partition

PART = Partition("model", "", "")
SYSTEM, DOCUMENT = b"s" * 13, b"d" * 21_000
QUESTIONS = [bytes([65 + n]) * 1_987 for n in range(4)]


def holding(*prompts: Prompt) -> PrefixIndex:
    index = PrefixIndex()
    index.admit("a", 0)
    for prompt in prompts:
        index.insert(PART, prompt, "a", 0.0, prompt_tokens=len(prompt))
    return index


def portion(index: PrefixIndex, prompt: Prompt, part: Partition = PART) -> Portion:
    found = index.portion(part, prompt, len(prompt))
    assert found is not None
    return found


def test_the_document_behind_a_short_system_prompt_is_the_key_portion() -> None:
    index = holding(SYSTEM + b"x" * 900, SYSTEM + DOCUMENT + QUESTIONS[0])
    first, second = (portion(index, SYSTEM + DOCUMENT + q) for q in QUESTIONS[:2])
    # The first question stands alone in the tree until a second one parts from it.
    assert second == Portion(second.key, 21_013, 21_000)
    assert first.tokens == 23_000
    index = holding(SYSTEM + b"x" * 900, *(SYSTEM + DOCUMENT + q for q in QUESTIONS[:2]))
    assert {portion(index, SYSTEM + DOCUMENT + q) for q in QUESTIONS} == {second}


def test_a_long_system_prompt_is_the_key_portion_of_all_short_questions() -> None:
    system = b"s" * 4_500
    index = holding(*(system + q[:200] for q in QUESTIONS))
    keys = {portion(index, system + q[:200]) for q in QUESTIONS}
    assert len(keys) == 1
    assert keys.pop().own_tokens == 4_500


def test_a_prompt_that_shares_little_is_its_own_key_portion() -> None:
    assert portion(holding(), DOCUMENT).tokens == 21_000
    behind = portion(holding(SYSTEM + b"x"), SYSTEM + DOCUMENT)
    assert (behind.tokens, behind.own_tokens) == (21_013, 21_000)


def test_a_part_as_long_as_all_before_it_is_not_longer() -> None:
    index = holding(b"a" * 50 + b"b" * 50, b"a" * 50 + b"c" * 50)
    assert portion(index, b"a" * 50 + b"b" * 50).tokens == 50


def test_partitions_share_no_key() -> None:
    index = holding()
    assert portion(index, DOCUMENT).key != portion(index, DOCUMENT, Partition("other", "", "")).key


def test_token_ids_are_cut_into_whole_blocks() -> None:
    shared = tuple(range(160))
    index = holding(shared + (1,) * 40, shared + (2,) * 40)
    assert portion(index, shared + (3,) * 40) == Portion(portion(index, shared).key, 160, 160)


def test_what_is_shorter_than_a_block_or_empty_has_none() -> None:
    assert holding().portion(PART, (1, 2, 3), 3) is None
    assert holding().portion(PART, b"", 0) is None


prompts = st.binary(min_size=1, max_size=24).map(lambda raw: bytes(b % 3 for b in raw))
ids = st.lists(st.integers(0, 1), min_size=16, max_size=80).map(lambda n: tuple(n[: len(n) // 16 * 16]))


@given(known=st.lists(prompts | ids, max_size=8), one=prompts | ids)
def test_the_portion_is_the_same_before_and_after_its_prompt_is_inserted(
    known: list[Prompt], one: Prompt
) -> None:
    before = portion(holding(*known), one)
    assert portion(holding(*known, one), one) == before
    assert 0 < before.own_tokens <= before.tokens <= len(one)
    assert before.own_tokens > before.tokens - before.own_tokens
