"""Laws of a request as routing sees it."""

from __future__ import annotations

import pytest

from router.core.prompt_key import PromptKey
from router.core.request import Api, Request


def test_a_request_is_frozen() -> None:
    made = Request(id="r", sequence=1, model="m", arrived=0.0)
    with pytest.raises(AttributeError):
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


def test_a_repr_tells_the_request_and_nothing_of_its_prompt_or_keys() -> None:
    key = PromptKey.of_text("m", "a secret prompt")
    assert key.canonical
    made = Request(
        id="r", sequence=1, model="m", arrived=0.0, prompt_tokens=9, affinity="a secret session", key=key
    )
    assert repr(made) == "<Request r other m [9 tokens | whole]>"
