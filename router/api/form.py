"""Multipart bodies: too large to hold, so only their beginning is looked at, for the model.

Clients write plain fields before files, so the model is found in the first bytes. The body passes through
unread and cannot be sent a second time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from router.api.intake import pieces_of
from router.call import Call
from router.core.errors import BadRequest, BodyTooLarge
from router.core.form_model import FormModel

_HEAD_BYTES = 64 * 1024


def is_multipart(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"content-type", b"").lower().startswith(b"multipart/")


class Form:
    """One multipart body on its way through.

    Raises BodyTooLarge when it declares to be, and BadRequest when it is compressed: it is not unpacked here,
    and engines do not unpack what they get.
    """

    def __init__(self, call: Call, max_bytes: int) -> None:
        if call.by_name.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            raise BadRequest("A form is taken without Content-Encoding only.")
        declared = call.by_name.get(b"content-length", b"")
        self.content_length = int(declared) if declared.isdigit() else None
        self._max_bytes = max_bytes
        if self.content_length is not None and self.content_length > max_bytes:
            raise self._too_large()
        self._rest = pieces_of(call.receive)
        self._start = FormModel(call.by_name.get(b"content-type", b""))
        self._ended = False

    async def read_head(self) -> None:
        """Reads until the model is found, the body ends, or enough was looked at."""
        start = self._start
        while start.model is None and not start.over and len(start.head) < _HEAD_BYTES:
            piece = await anext(self._rest, None)
            if piece is None:
                self._ended = True
                return
            start.feed(piece)

    @property
    def model(self) -> str | None:
        return self._start.model

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body. Raises BodyTooLarge when it turns out to be, ClientGone when the client leaves."""
        head = bytes(self._start.head)
        size = len(head)
        if head:
            yield head
        if self._ended:
            return
        async for piece in self._rest:
            size += len(piece)
            if size > self._max_bytes:
                raise self._too_large()
            yield piece

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The form is larger than this router accepts ({self._max_bytes} bytes).")
