"""Sentences for what is refused: the key, the value, where it came from, and what is allowed.

Separate because pydantic's messages are written for programmers; these are read by whoever starts the router.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from router.settings.keys import all_keys, find_key, names_of, path_of, section_at

Loc = tuple[int | str, ...]

_SECRET_WORDS: Final = ("api_key", "client_api_keys", "sha256")
_LONGEST_VALUE: Final = 80

ONE_PROCESS: Final = (
    "pointsman runs as one process, because the accounts of all workers live in it; "
    "for more, start several routers behind a load balancer"
)
_TWO_POOLS: Final = (
    "the two sides of a pair are two pools, one with role: prefill and one with role: decode, "
    "each with workers and a policy of its own"
)
_PAIRS_CONNECTOR: Final = "a pair has one connector; write pools.NAME.connector"

ABSENT: Final[Mapping[str, str]] = {
    "server.workers": ONE_PROCESS,
    "server.processes": ONE_PROCESS,
    "workers": "workers belong to a pool; write pools.NAME.workers",
    "pools.*.kv_connector": "the key is called connector",
    "pools.*.prefill": _TWO_POOLS,
    "pools.*.decode": _TWO_POOLS,
    "pools.*.prefill_policy": _TWO_POOLS,
    "pools.*.decode_policy": _TWO_POOLS,
    "pools.*.workers[*].connector": _PAIRS_CONNECTOR,
    "pools.*.workers[*].kv_connector": _PAIRS_CONNECTOR,
}
"""Keys that users know from other routers, or from later versions, and why they are refused here."""


class SettingsError(Exception):
    """The configuration is refused. Nothing was started.

    Attributes:
        problems: one sentence each, all that was found.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def dotted(loc: Iterable[int | str]) -> str:
    """`pools.chat.workers[0].url` of a location."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".")


def closest(word: str, words: Iterable[str]) -> str | None:
    """The known word that was probably meant, None when nothing is near."""
    found = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return found[0] if found else None


def sentences(error: ValidationError, model: type[BaseModel], origin: Callable[[Loc], str]) -> list[str]:
    """One sentence for each thing that is wrong.

    Args:
        error: what pydantic found.
        model: what was validated, for allowed values and near keys.
        origin: where the value at a location was given: "--port", "environment POINTSMAN_…", a file.
    """
    return [line for details in error.errors(include_url=False) for line in _sentence(details, model, origin)]


def _sentence(details: ErrorDetails, model: type[BaseModel], origin: Callable[[Loc], str]) -> Iterator[str]:
    loc, kind = details["loc"], details["type"]
    if kind == "value_error" and not loc:  # a law between sections names its keys itself
        yield from details["msg"].removeprefix("Value error, ").splitlines()
        return
    key = dotted(loc)
    where = origin(loc)
    source = f" ({where})" if where else ""
    if kind == "extra_forbidden":
        yield _unknown_key(loc, model) + source
    elif kind == "missing":
        yield f"{key} is required{source}"
    elif isinstance(details["input"], Mapping):
        yield f"{key}{source}: {_allowed(details, model)}"
    else:
        yield f"{key} is {_shown(loc, details['input'])}{source}; {_allowed(details, model)}"


def _shown(loc: Loc, value: object) -> str:
    """The value, unless it may be a secret."""
    if any(word in str(part) for part in loc for word in _SECRET_WORDS):
        return "(hidden)"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _unknown_key(loc: Loc, model: type[BaseModel]) -> str:
    """Why a key is not there, or which one was meant."""
    key, reason = dotted(loc), ABSENT.get(path_of(model, loc))
    if reason is not None:
        return f"{key} is refused: {reason}"
    section = section_at(model, loc[:-1])
    names = names_of(section) if section else []
    near = closest(str(loc[-1]), names)
    meant = _same_word_elsewhere(loc, model) or (near and dotted((*loc[:-1], near)))
    return f"unknown key {key}, " + (f"did you mean {meant}?" if meant else f"known here: {', '.join(names)}")


def _same_word_elsewhere(loc: Loc, model: type[BaseModel]) -> str | None:
    """The full key of a word that was written without its section, such as `port`."""
    found = [
        key.path for key in all_keys(model) if key.path.rpartition(".")[2] == loc[0] and "*" not in key.path
    ]
    return found[0] if len(loc) == 1 and found else None


def _allowed(details: ErrorDetails, model: type[BaseModel]) -> str:
    """What would have been right, as a clause that begins with "it"."""
    kind = details["type"]
    if kind in ("value_error", "assertion_error"):
        return details["msg"].removeprefix("Value error, ")
    key = find_key(model, details["loc"])
    if key is None:
        return _SHAPES.get(kind, f"it is wrong: {details['msg']}")
    if key.choices:
        near = closest(str(details["input"]), key.choices)
        return f"it must be {key.kind}" + (f"; did you mean {near}?" if near else "")
    return f"it must be {key.allowed}"


_SHAPES: Final[Mapping[str, str]] = {
    "model_type": "it must be a mapping of keys",
    "model_attributes_type": "it must be a mapping of keys",
    "string_type": "it must be text; put it into quotes",
}
