"""Laws of a request as routing sees it."""

from __future__ import annotations

import dataclasses

import pytest

from router.core.request import Api, Request


def test_a_request_is_frozen() -> None:
    made = Request(id="r", sequence=1, model="m", arrived=0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.attempt = 1  # type: ignore[misc]


def test_what_a_client_did_not_say_is_absent() -> None:
    made = Request(id="r", sequence=1, model="m", arrived=0.0)
    absent = (made.max_tokens, made.min_tokens, made.deadline, made.pinned, made.affinity, made.key)
    assert absent == (None,) * 6
    assert (made.attempt, made.sequences, made.priority, made.avoid) == (0, 1, 0, frozenset())
    assert not made.trusted


@pytest.mark.parametrize(("api", "generates"), [(api, api is not Api.OTHER) for api in Api])
def test_only_calls_that_write_token_by_token_generate(api: Api, generates: bool) -> None:
    assert api.generates is generates


def test_headers_that_nobody_sent_are_shared_and_cannot_be_written() -> None:
    first = Request(id="a", sequence=1, model="m", arrived=0.0)
    second = Request(id="b", sequence=2, model="m", arrived=0.0)
    assert first.headers is second.headers
    with pytest.raises(TypeError):
        first.headers["x"] = "y"  # type: ignore[index]


def test_a_repr_shows_no_header_and_no_prompt() -> None:
    made = Request(id="r", sequence=1, model="m", arrived=0.0, headers={"authorization": "secret"})
    assert "secret" not in repr(made)
