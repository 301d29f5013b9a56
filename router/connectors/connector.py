"""How a prefill hands its KV to a decode: the interface that every connector implements.

Separate from the connectors so that each of them is one file that knows nothing of its siblings. Pure: bodies
in, bodies out; who sends them, when, and for how long is decided elsewhere.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from router.core.request import Api

BOOTSTRAP_PORT = 8998
"""Port of a producer's bootstrap server unless it was told another: vLLM's Mooncake connector and SGLang."""

_RANK_HEADER = b"x-data-parallel-rank"
_NO_CONTEXT_IS_SO_LONG = 2**31 - 1


class ConnectorError(ValueError):
    """An unknown connector, or an option that it does not have. The message says what is allowed."""


class Peer(msgspec.Struct, frozen=True):
    """The prefill worker, as the decode engine must reach it.

    Attributes:
        host: name or address, without brackets.
        bootstrap_port: None for the default of the engine.
        engine_id: what the producer's bootstrap server calls its rank; None where nobody asked.
        dp_rank: the data-parallel rank that prefills; None leaves the choice to the engine.
        dp_size: ranks behind this host, at least 1.
    """

    host: str
    bootstrap_port: int | None = None
    engine_id: str | None = None
    dp_rank: int | None = None
    dp_size: int = 1

    @property
    def url_host(self) -> str:
        """The host as it stands in a URL: an IPv6 address in brackets."""
        return f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host

    @property
    def rank_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """What sends a request to `dp_rank`, in vLLM (since 0.11) and in SGLang."""
        return () if self.dp_rank is None else ((_RANK_HEADER, b"%d" % self.dp_rank),)


class Pairing(msgspec.Struct, frozen=True):
    """What the legs of one attempt share. A new attempt has a new one: an engine that still knows the old
    names would hand over KV that is gone, or another prompt's.

    Attributes:
        model: as the legs name it.
        transfer_id: unique in the fleet.
        room: unique in the fleet, see `room_for`.
        peer: None where the connector needs no address.
    """

    api: Api
    model: str
    transfer_id: str
    room: int
    peer: Peer | None = None


class LegBody(msgspec.Struct, frozen=True):
    """The body of one leg.

    Attributes:
        headers: to be added to those of the request; names in lower case.
        target: path of its own; None for the path that the client called.
    """

    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    target: bytes | None = None

    def __repr__(self) -> str:
        target = "" if self.target is None else f"{self.target.decode()} "
        return f"<LegBody {target}[{len(self.body)} bytes]>"


class Handle(msgspec.Struct, frozen=True):
    """What a prefill leg gave. May be shown to one decode engine, once: a second read finds blocks that are
    freed, and answers 200 with another prompt's text.

    Attributes:
        params: raw JSON for the decode leg, opaque; b"" where the decode leg needs none.
        prompt_tokens: length of the prompt, as the engine counted it.
        cached_tokens: the part of it that the producer took from its own prefix cache.
        finish_reason: why the prefill ended, in the words of its API.
    """

    params: bytes
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None

    def __repr__(self) -> str:
        return f"<Handle [{len(self.params)} bytes | {self.prompt_tokens} tokens | {self.finish_reason}]>"


class Connector(Protocol):
    """One way of handing over KV.

    Attributes:
        name: as configured.
        concurrent: both legs are sent at once, so the pair is chosen up front.
        lease_s: how long a producer keeps KV that no decode engine has asked for; None where it keeps none
            for longer than its leg lives.
        asks_bootstrap: `Peer.engine_id` is wanted, from the producer's bootstrap server.
        decode_takes_whole: a decode engine serves a request without a hand-over by itself.
        sequences_on_handle: a request of several sequences may be split. Not where a handle names the KV of
            one, which is freed when the first of them has read it.
        needs_handle: the decode leg cannot be made before the prefill leg has answered.
    """

    @property
    def name(self) -> str: ...
    @property
    def concurrent(self) -> bool: ...
    @property
    def lease_s(self) -> float | None: ...
    @property
    def asks_bootstrap(self) -> bool: ...
    @property
    def decode_takes_whole(self) -> bool: ...
    @property
    def sequences_on_handle(self) -> bool: ...
    @property
    def needs_handle(self) -> bool: ...

    def prefill_leg(self, body: bytes, pairing: Pairing) -> LegBody:
        """The client's request, changed so that the engine computes the prompt and keeps it.

        Raises:
            BadRequest: the body is not a JSON object.
            InternalError: the pairing lacks what this connector needs.
        """
        ...

    def read_prefill(self, answer: bytes, pairing: Pairing) -> Handle | None:
        """What a prefill leg that answered 200 gave; None when no decode engine will get KV from it.

        None is an answer for which the request must be prefilled again or served whole, not an error of its
        own: vLLM up to 0.20, for one, keeps nothing of a prefill whose first token ends the text.
        """
        ...

    def decode_leg(self, body: bytes, pairing: Pairing, handle: Handle | None) -> LegBody:
        """The client's own request, with what lets the engine take the KV.

        Raises:
            BadRequest: the body is not a JSON object.
            InternalError: no handle where one is needed, or a pairing that lacks something.
        """
        ...

    def release_leg(self, pairing: Pairing, handle: Handle) -> LegBody | None:
        """A request that, sent to any decode engine of the producer's revision, makes the producer free KV
        that nobody will read. None where there is no such request."""
        ...


def rejected_decode(model: str, params: bytes) -> LegBody:
    """A decode leg that vLLM refuses, and whose KV it therefore tells the producer to free.

    Since 0.21 a request with `do_remote_prefill` that fails before it reaches the engine is handed to the
    connector as one that was aborted (0.32 frees the blocks within half a second, without a transfer). No
    context is as long as this bound on tokens, so the engine answers 400. It streams, so that an engine which
    took it after all, as one before 0.21 never does, is stopped by closing the connection.
    """
    body = {
        "model": model,
        "prompt": [0],
        "max_tokens": _NO_CONTEXT_IS_SO_LONG,
        "stream": True,
        "kv_transfer_params": msgspec.Raw(params),
    }
    return LegBody(msgspec.json.encode(body), target=b"/v1/completions")
