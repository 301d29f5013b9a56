"""Embeddings, scores, rerank, pooling, classify: numbers that depend on the texts alone."""

from __future__ import annotations

import base64
import struct
from math import isclose, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mock.pooling import DIMENSIONS, relevance, unit_vector
from engines.model.text import encode
from router.virtual.clock import run
from tests.engines.mock_stage import Reply, stage


def ask(path: str, body: object) -> Reply:
    async def main() -> Reply:
        async with stage(max_model_len=512) as act:
            reply = await act.ask(path, body)
            assert act.process.engine.idle
            return reply

    return run(main())


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20), st.integers(1, 700))
def test_vectors_have_length_one_and_the_size_asked_for(ids: list[int], dimensions: int) -> None:
    vector = unit_vector(ids, dimensions)
    assert len(vector) == dimensions
    assert isclose(sqrt(sum(value * value for value in vector)), 1.0, rel_tol=1e-9)
    assert vector == unit_vector(list(ids), dimensions)


def test_embeddings_have_the_api_shape_in_input_order() -> None:
    body = ask("/v1/embeddings", {"input": ["one", "two", "one"]}).json()
    assert list(body) == ["id", "object", "created", "model", "data", "usage"]
    vectors = [entry["embedding"] for entry in body["data"]]
    assert [entry["index"] for entry in body["data"]] == [0, 1, 2]
    assert vectors[0] == vectors[2] != vectors[1]
    assert len(vectors[0]) == DIMENSIONS
    assert body["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("given_input", ["the text", encode("the text"), [encode("the text")], ["the text"]])
def test_a_text_and_its_tokens_have_the_same_vector(given_input: object) -> None:
    vector = ask("/v1/embeddings", {"input": given_input}).json()["data"][0]["embedding"]
    assert vector == unit_vector(encode("the text"), DIMENSIONS)


def test_base64_holds_the_same_numbers_as_32_bit_floats() -> None:
    raw = ask("/v1/embeddings", {"input": "x", "encoding_format": "base64", "dimensions": 8}).json()
    numbers = struct.unpack("<8f", base64.b64decode(raw["data"][0]["embedding"]))
    assert numbers == pytest.approx(unit_vector(encode("x"), 8), rel=1e-6)


def test_rerank_sorts_by_relevance_and_keeps_the_top() -> None:
    documents = ["nothing of it", "the quick brown fox", {"text": "quick"}]
    body = ask("/v1/rerank", {"query": "quick fox", "documents": documents, "top_n": 2}).json()
    assert [result["index"] for result in body["results"]] == [1, 2]
    assert body["results"][0]["document"]["text"] == "the quick brown fox"
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert body == {
        **ask("/rerank", {"query": "quick fox", "documents": documents, "top_n": 2}).json(),
        "id": body["id"],
    }


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_score_pairs_one_with_many_or_each_with_each(path: str) -> None:
    body = ask(path, {"text_1": "quick", "text_2": ["quick", "slow"]}).json()
    assert [entry["score"] for entry in body["data"]] == [
        relevance("quick", "quick"),
        relevance("quick", "slow"),
    ]
    pairs = ask(path, {"queries": ["a", "b"], "documents": ["a", "b"]}).json()
    assert len(pairs["data"]) == 2
    assert ask(path, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}).status == 400
    assert ask(path, {"text_1": "a"}).status == 400


@given(st.text(max_size=30), st.text(max_size=30))
def test_relevance_is_a_share(query: str, document: str) -> None:
    assert 0 < relevance(query, document) < 1


def test_pooling_and_classify_answer_per_input() -> None:
    pooled = ask("/pooling", {"input": ["a", "b"]}).json()
    assert [entry["object"] for entry in pooled["data"]] == ["pooling", "pooling"]
    classes = ask("/classify", {"input": ["a", "b"]}).json()["data"]
    assert all(sum(entry["probs"]) == pytest.approx(1.0) for entry in classes)
    assert {entry["label"] for entry in classes} <= {"LABEL_0", "LABEL_1"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", {}, 400),
        ("/v1/embeddings", {"input": ""}, 400),
        ("/v1/embeddings", {"input": "x" * 4000}, 400),
        ("/v1/embeddings", {"input": "x", "model": "nope"}, 404),
        ("/v1/embeddings", {"input": "x", "dimensions": 0.5}, 400),
        ("/v1/embeddings", {"input": "x", "dimensions": 99999}, 400),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int8"}, 400),
        ("/v1/rerank", {"query": "x", "documents": []}, 400),
        ("/v1/rerank", {"query": "x", "documents": [5]}, 400),
        ("/v1/rerank", {"documents": ["x"]}, 400),
    ],
)
def test_what_cannot_be_served_is_refused(path: str, body: Any, status: int) -> None:
    assert ask(path, body).status == status


def test_a_prompt_takes_its_time_and_is_counted() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.ask("/v1/embeddings", {"input": "word " * 400})
            assert act.process.engine.counters.prompt_tokens == 500
            assert act.process.account.finished["stop"] == 1

    run(main())
