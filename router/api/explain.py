"""`POST /route/explain`: where a request would go, for whoever asks why.

Separate from the other admin routes because its body is a client's: nothing of it may be kept or logged.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.explaining import Explaining, Question


class Ask(BaseModel):
    """Body of POST /route/explain, when it says more than the request itself."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    body: dict[str, Any]
    path: str | None = Field(default=None, min_length=1)
    headers: dict[str, str] | None = None
    policy: str | None = Field(default=None, min_length=1)


def add_explain(routes: APIRouter, explaining: Explaining) -> None:
    """Adds the route; whoever owns `routes` guards it."""

    @routes.post("/route/explain")
    async def explain(asked: dict[str, Any]) -> dict[str, Any]:
        return await explaining.explain(_question(asked))


def _question(asked: dict[str, Any]) -> Question:
    """What was asked: no request of a client has a field `body`, so what has one says more than the request.

    Raises RequestValidationError for more than there is to be said.
    """
    if "body" not in asked:
        return Question(asked)
    try:
        ask = Ask.model_validate(asked)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in details]) from None
    return Question(ask.body, ask.path, ask.headers, ask.policy)
