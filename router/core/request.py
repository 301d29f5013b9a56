"""What the control plane may know about one call. Bytes and sockets stay in the shell."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from router.core.prompt_key import PromptKey

if TYPE_CHECKING:
    from router.core.handover import Handover


class Api(enum.Enum):
    """The family of the path, which decides how bodies, streams and errors look."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OTHER = "other"
    """Everything that generates nothing token by token: embeddings, rerank, tokenize, audio …"""

    @property
    def generates(self) -> bool:
        return self is not Api.OTHER


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call, as routing sees it. Frozen: what changes on the way lives in the lease.

    A msgspec struct, which is made and copied several times faster than a frozen dataclass of this size.

    Attributes:
        id: the router's id of the call, unique while it lives.
        sequence: arrival number of this process; breaks ties together with the seed.
        model: as the client named it.
        prompt_tokens: of all prompts together, charged once; exact when `prompt_tokens_exact`.
        max_tokens: the client's bound on output tokens per sequence, None when it gave none.
        min_tokens, ignore_eos: what the client demands of the output length.
        sequences: output sequences the engine will decode (n, times the number of prompts), at least 1.
        body_bytes: what the router holds for it while it waits.
        deadline: absolute time (s, same clock as every `now`) after which waiting is pointless.
        avoid: names of workers that this call has already failed on.
        pinned: the only worker that may take it (a stored response lives there), None for any.
        attempt: 0 for the first placement, counted up by retries.
        affinity: what keeps a conversation together, None when the client gave nothing to go by.
        split: prefilled at one worker and decoded at another; False: one worker does all of it.
        both: only a worker that may prefill and decode can take it.
        handover: its KV, once it is prefilled; it waits for a decode worker then.
        key: the canonical prompt key; None for calls without a prompt.
        slo: service class named by the client, "" for the default one.
        policy: name of the one that shall choose its workers where that fits; None: those of the pools.
        priority: engine priority, lower first; 0 is neutral.
        trusted: whether the client's key may use control fields.
    """

    id: str
    sequence: int
    model: str
    arrived: float
    api: Api = Api.OTHER
    stream: bool = False
    prompt_tokens: int = 0
    prompt_tokens_exact: bool = False
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    sequences: int = 1
    body_bytes: int = 0
    deadline: float | None = None
    avoid: frozenset[str] = frozenset()
    split: bool = False
    both: bool = False
    handover: Handover | None = None
    pinned: str | None = None
    attempt: int = 0
    affinity: str | None = None
    tenant: str = ""
    slo: str = ""
    priority: int = 0
    trusted: bool = False
    policy: str | None = None
    key: PromptKey | None = None

    def __repr__(self) -> str:
        kind = "stream" if self.stream else "whole"
        return f"<Request {self.id} {self.api.value} {self.model} [{self.prompt_tokens} tokens | {kind}]>"
