"""`POST /route/explain`: where a request would go, for whoever asks why.

Separate from the other admin routes because its body is a client's: nothing of it may be kept or logged.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from router.explaining import Explaining, Question


class Ask(BaseModel):
    """Body of POST /route/explain, when it says more than the request itself."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    body: dict[str, Any]
    path: str | None = None
    headers: dict[str, str] | None = None
    policy: str | None = None


def add_explain(routes: APIRouter, explaining: Explaining) -> None:
    """Adds the route; whoever owns `routes` guards it."""

    @routes.post("/route/explain")
    async def explain(asked: Ask | dict[str, Any]) -> dict[str, Any]:
        if isinstance(asked, Ask):
            return await explaining.explain(Question(asked.body, asked.path, asked.headers, asked.policy))
        return await explaining.explain(Question(asked))
