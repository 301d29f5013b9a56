"""One line of the request log: what became of a request, without a word of its text.

Separate from the writing (`request_log`) because replay and offline studies read these and never write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

import msgspec

from router.core.prompt_key import BLOCK_CHARACTERS
from router.telemetry.log_lines import LogKind

FORMAT = "pointsman-request-log"
FORMAT_VERSION = 1


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of every file.

    Attributes:
        salt_id: names the salt without giving it away. Hashes of two files can be compared when it is equal.
    """

    format: str = FORMAT
    version: int = FORMAT_VERSION
    block_characters: int = BLOCK_CHARACTERS
    salt_id: str = ""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was not chosen, and what it would have cost in the policy's unit."""

    worker: str
    cost: float


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One choice of a worker for the request: one for each leg and each attempt.

    Attributes:
        role: what the worker was to do: prefill, decode or both.
        others: the best three that were not chosen, cheapest first.
    """

    worker: str
    role: str = "both"
    policy: str
    reason: str
    cost: float
    others: tuple[Candidate, ...] = ()


class Phases(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds, each None when the request never came to it.

    Attributes:
        queued_s: waiting in the router for a worker.
        prefill_s: the prefill leg, when there was one.
        transfer_s: from the end of the prefill leg to the first data event of the decode leg.
        ttft_s: arrival to the first data event, or to the body when not streamed.
        total_s: arrival to the end.
    """

    queued_s: float | None = None
    prefill_s: float | None = None
    transfer_s: float | None = None
    ttft_s: float | None = None
    total_s: float


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request.

    Attributes:
        arrival: Unix time of its first byte (s).
        id: the router's id of the request.
        tenant: name of the client's key, "" without keys.
        model: as the client named it.
        api: label of the route: "chat", "completions", "embeddings" …
        prompt_tokens: None when nobody knew.
        prompt_tokens_from: how they are known: told by the engine, exact from token ids, or estimated.
        max_tokens: the client's bound per sequence, None when it gave none.
        n: output sequences.
        priority: engine priority, lower first.
        output_tokens: all sequences together, None when nothing was generated or known.
        cached_tokens: prompt tokens found in the engine's cache, None when it did not say.
        blocks: salted chained hashes of the canonical prompt (`PromptKey.blocks`), so that replay can share
            prefixes without knowing them.
        affinity: salted hash of what keeps the conversation together, None when the client gave nothing.
        placements: every choice, in order; the last one served the request.
        outcome: of the last lease ("ok", "cancelled", "failed" …), or "refused" when there was none.
        status: HTTP status that the client got, 499 when it left.
        error: code of the error body, None without an error.
        finish_reason: the engine's, of the first sequence.
    """

    arrival: float
    id: str
    tenant: str = ""
    model: str
    api: str
    stream: bool
    prompt_tokens: int | None = None
    prompt_tokens_from: Literal["engine", "ids", "estimate"] | None = None
    max_tokens: int | None = None
    n: int = 1
    priority: int = 0
    output_tokens: int | None = None
    cached_tokens: int | None = None
    blocks: tuple[str, ...] = ()
    affinity: str | None = None
    placements: tuple[Placement, ...] = ()
    phases: Phases
    outcome: str
    status: int
    error: str | None = None
    finish_reason: str | None = None


_LOG = LogKind(
    "request log",
    FORMAT,
    FORMAT_VERSION,
    msgspec.json.Decoder(Header),
    msgspec.json.Decoder(RequestRecord),
)


def read_header(path: str | os.PathLike[str]) -> Header:
    """The header of a request log. ValueError when the file is not one, or of a later version."""
    return _LOG.header_of(path)


def read_records(path: str | os.PathLike[str]) -> Iterator[RequestRecord]:
    """The records of a request log, in the order in which the requests ended. Fields of later versions are
    ignored. Raises as `LogKind.numbered`."""
    return _LOG.records_of(path)


def read_numbered(path: str | os.PathLike[str]) -> Iterator[tuple[int, RequestRecord]]:
    """The same, each with the number of its line."""
    return _LOG.numbered(path)
