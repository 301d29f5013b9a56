"""What two engines say to each other where the prefill engine pushes the KV: vLLM's Mooncake and SGLang.

Separate from what either side does with it. Both know a transfer by a name that the router gave them, so a
decode engine may call before the prefill engine has heard of it. The messages are the mock's own: they stand
for the metadata, the transfer and its end.
"""

from __future__ import annotations

import msgspec

from engines.mock.errors import bad_request
from engines.mock.peers import Address


class Introduce(msgspec.Struct, tag="introduce"):
    """Asks a bootstrap server which engine is behind it."""


class Want(msgspec.Struct, tag="want"):
    """A decode engine has room for the KV of a transfer.

    Attributes:
        engine_id: whom it takes the receiver for; None: whoever it is.
        job_id: of the job that waits for it, in the caller's words.
        blocks: how many are to come. 0: the job is gone, and nobody needs them.
        host, port: where the caller is told that they are ready.
    """

    name: str
    engine_id: str | None
    job_id: str
    blocks: int
    host: str
    port: int

    @property
    def caller(self) -> Address:
        return Address(self.host, self.port)


class Ready(msgspec.Struct, tag="ready"):
    """The prefill is done; the transfer may begin.

    Attributes:
        job_id: as the decode engine called it.
    """

    job_id: str


class Failed(msgspec.Struct, tag="failed"):
    """There will be no transfer."""

    job_id: str
    reason: str


class Expect(msgspec.Struct, tag="expect"):
    """Asks a decode engine whether it still wants the KV. Its reply has no error if so."""

    job_id: str


class Taken(msgspec.Struct, tag="taken"):
    """The KV of a transfer has arrived."""

    name: str
    job_id: str


class Left(msgspec.Struct, tag="left"):
    """The decode engine does not want the KV of a transfer any more."""

    name: str
    job_id: str


Message = Introduce | Want | Ready | Failed | Expect | Taken | Left


class Reply(msgspec.Struct):
    """What a peer answers.

    Attributes:
        engine_id: of the engine that answers.
        host, port: where its own side channel is.
        error: why it could not be done.
        content: what the blocks of a transfer that was taken held, as hex.
        cached_tokens: of its prompt, in the prefix cache of the prefill engine.
    """

    engine_id: str
    host: str
    port: int
    error: str | None = None
    content: str | None = None
    cached_tokens: int | None = None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


_MESSAGES = msgspec.json.Decoder(Message)
_REPLIES = msgspec.json.Decoder(Reply)
encode = msgspec.json.Encoder().encode


def decode_message(data: bytes) -> Message:
    """Parse a message.

    Raises:
        Refusal: 400 for what is none.
    """
    try:
        return _MESSAGES.decode(data)
    except msgspec.DecodeError as error:
        raise bad_request(f"This is no message of an engine: {error}.") from None


def decode_reply(data: bytes) -> Reply:
    """Parse a reply.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _REPLIES.decode(data)
