"""Block hashes are vLLM's, so a router can recompute them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.model.block_hash import BlockChain, published

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=80)


def hashes(token_ids: list[int], block_size: int, **keys: str | None) -> list[int]:
    chain = BlockChain(token_ids, block_size, lora=keys.get("lora"), cache_salt=keys.get("cache_salt"))
    return [published(block_hash) for block_hash in chain.hash_full_blocks()]


def test_hashes_equal_those_that_vllm_published() -> None:
    # vLLM 0.32 on CPU, default hash algorithm and seed, prompt of the token ids 3, 4, 5 … in blocks of 32.
    assert hashes(list(range(3, 103)), 32) == [
        8704213067995889238,
        2115308636467158532,
        12073348321367507687,
    ]


def test_salted_hashes_equal_those_that_vllm_published() -> None:
    assert hashes(list(range(3, 103)), 32, cache_salt="tenantA") == [
        862638966678280603,
        16465721633558812482,
        482243045899682936,
    ]


def test_the_tail_of_a_partial_block_has_no_hash() -> None:
    assert len(hashes(list(range(31)), 16)) == 1
    assert hashes([], 16) == []


@given(tokens, tokens, st.integers(1, 16))
def test_equal_hashes_mean_equal_tokens_up_to_there(first: list[int], second: list[int], size: int) -> None:
    for index, (one, other) in enumerate(zip(hashes(first, size), hashes(second, size), strict=False)):
        same = first[: (index + 1) * size] == second[: (index + 1) * size]
        assert (one == other) is same


@given(tokens, st.integers(1, 16), st.data())
def test_hashing_as_tokens_arrive_equals_hashing_at_once(
    token_ids: list[int], size: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(token_ids)))
    chain = BlockChain(token_ids[:cut], size)
    chain.hash_full_blocks()
    for token in token_ids[cut:]:
        chain.tokens.append(token)
        chain.hash_full_blocks()
    assert chain.hashes == BlockChain(token_ids, size).hash_full_blocks()


@pytest.mark.parametrize(
    "keys", [{"lora": "x"}, {"cache_salt": "x"}, {"lora": "y"}, {"lora": "", "cache_salt": "x"}]
)
def test_adapters_and_salts_separate_prefixes(keys: dict[str, str]) -> None:
    plain, keyed = hashes(list(range(64)), 16), hashes(list(range(64)), 16, **keys)
    assert not set(plain) & set(keyed)


def test_an_adapter_and_a_salt_of_the_same_name_differ() -> None:
    assert hashes([1, 2], 2, lora="x") != hashes([1, 2], 2, cache_salt="x")


def test_extra_keys_are_reported_as_events_carry_them() -> None:
    salted = BlockChain(range(8), 4, cache_salt="tenantA")
    assert [salted.extra_keys(index) for index in range(2)] == [("tenantA",), None]
    adapted = BlockChain(range(8), 4, lora="sql", cache_salt="s")
    assert [adapted.extra_keys(index) for index in range(2)] == [("sql", "s"), ("sql",)]
