"""The paths that clients may reach: a list of what is allowed, and nothing else.

Engines serve their own administration beside inference (adapters, sleep, cache resets). Whoever forwards any
path hands that to every client, so a path that is not here is 404 unless the operator named it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from router.core.request import Api


class Shape(enum.Enum):
    """How a route is served."""

    JSON = "json"
    """A JSON body that names a model."""
    FORM = "form"
    """Multipart (or JSON): streamed through, the model found in its first part."""
    STORED = "stored"
    """No body; the id in the path says which worker owns the object."""


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the engines.

    Attributes:
        label: bounded name for metrics and logs.
        stored_id: the object's id, for STORED.
    """

    label: str
    api: Api
    shape: Shape
    methods: frozenset[str]
    stored_id: str | None = None

    @property
    def error_api(self) -> Api:
        """Whose shape errors have: counting tokens generates nothing, but is a part of Messages."""
        return Api.MESSAGES if self.label == "count_tokens" else self.api


_POST = frozenset({"POST"})
_BOTH_PREFIXES = ("/v1", "")


def _json(label: str, api: Api = Api.OTHER) -> Route:
    return Route(label, api, Shape.JSON, _POST)


def _form(label: str) -> Route:
    return Route(label, Api.OTHER, Shape.FORM, _POST)


ROUTES: dict[str, Route] = {
    "/v1/chat/completions": _json("chat", Api.CHAT),
    "/v1/completions": _json("completions", Api.COMPLETIONS),
    "/v1/responses": _json("responses", Api.RESPONSES),
    "/v1/messages": _json("messages", Api.MESSAGES),
    "/v1/messages/count_tokens": _json("count_tokens"),
    "/v1/embeddings": _json("embeddings"),
    "/v2/rerank": _json("rerank"),
    "/v1/audio/speech": _json("speech"),
    "/v1/audio/transcriptions": _form("transcriptions"),
    "/v1/audio/translations": _form("translations"),
    "/v1/images/generations": _json("images"),
    "/v1/images/edits": _form("image_edits"),
    "/v1/images/variations": _form("image_variations"),
} | {
    f"{prefix}/{name}": _json(name)
    for prefix in _BOTH_PREFIXES
    for name in ("rerank", "score", "pooling", "classify", "tokenize", "detokenize")
}

_STORED_RESPONSES = "/v1/responses/"
_STORED_METHODS = {"": frozenset({"GET", "DELETE"}), "cancel": _POST, "input_items": frozenset({"GET"})}
_MAX_ID = 256


def find_route(path: str, passthrough: Iterable[str] = ()) -> Route | None:
    """The route of a path (without query), None when it is not allowed."""
    route = ROUTES.get(path)
    if route is not None:
        return route
    if path.startswith(_STORED_RESPONSES):
        return _stored(path[len(_STORED_RESPONSES) :])
    if path in passthrough:
        return _form("passthrough")
    return None


def _stored(rest: str) -> Route | None:
    stored_id, _, verb = rest.partition("/")
    plain = stored_id.replace("_", "").replace("-", "")
    if verb not in _STORED_METHODS or not plain.isalnum() or not plain.isascii() or len(stored_id) > _MAX_ID:
        return None
    label = f"responses_{verb}" if verb else "responses_stored"
    return Route(label, Api.RESPONSES, Shape.STORED, _STORED_METHODS[verb], stored_id)
