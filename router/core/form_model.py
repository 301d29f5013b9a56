"""The field `model` of a multipart form, found while the form passes by.

Separate because it reads what strangers wrote: by the form's own boundary and not by a look at the text,
since a file or a prompt may say anything, and in one pass, since a form may come in pieces of a byte.
"""

from __future__ import annotations

import re

_MAX_PART_HEAD_BYTES = 8 * 1024
_MAX_MODEL_BYTES = 512
_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
"""RFC 2046 allows 70 characters."""
_DISPOSITION = re.compile(rb"(?:^|\r\n)content-disposition:[ \t]*form-data([^\r]*)", re.IGNORECASE)
_PARAMETER = re.compile(rb';\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;]*))')


class FormModel:
    """Reads the beginning of a form until its model is known.

    State: `head`, the bytes so far; where the next border between parts may be, and whether the part before
    it is the one that is looked for.

    Attributes:
        model: the value of the first field of this name that is no file; None until it is complete.
        over: the form ended; there is no model if none was found.
    """

    __slots__ = ("_at", "_border", "_opening", "_searched", "_wanted", "head", "model", "over")

    def __init__(self, content_type: bytes) -> None:
        found = _BOUNDARY.search(content_type)
        boundary = (found[1] or found[2]) if found is not None else None
        self.head = bytearray()
        self.model: str | None = None
        self.over = boundary is None  # engines refuse a form without a boundary
        self._border = b"\r\n--" + (boundary or b"")
        self._opening = True
        self._wanted = False
        self._at = 0
        self._searched = 0

    def feed(self, data: bytes) -> None:
        """Reads on. Bytes after the model are kept in `head`, unread."""
        self.head += data
        while self.model is None and not self.over and self._next_part():
            pass

    def _next_part(self) -> bool:
        """Reads the end of one part and the head of the next; False while they have not come whole."""
        border = self._border
        # The first border may stand at the very beginning, without a line break before it.
        if self._opening and len(self.head) >= len(border) and self.head.startswith(border[2:]):
            start, after = 0, len(border) - 2
        else:
            start = self._find(border)
            after = start + len(border)
        if start < 0:
            return False
        if self._wanted and start - self._at <= _MAX_MODEL_BYTES:
            self.model = self.head[self._at : start].decode("utf-8", "replace")
            return True
        return self._read_head(start, after)

    def _read_head(self, start: int, after: int) -> bool:
        if self.head.startswith(b"--", after):
            self.over = True
            return True
        end = self.head.find(b"\r\n\r\n", after, after + _MAX_PART_HEAD_BYTES)
        if end < 0:
            self.over = len(self.head) >= after + _MAX_PART_HEAD_BYTES
            self._searched = start
            return self.over
        self._opening = False
        self._wanted = _is_model(bytes(self.head[after:end]))
        self._at = end + 4
        self._searched = end + 2  # an empty value shares its line break with the end of the head
        return True

    def _find(self, border: bytes) -> int:
        """Where the next border begins, -1 while it has not come; what was searched is not searched again."""
        found = self.head.find(border, self._searched)
        if found < 0:
            self._searched = max(self._searched, len(self.head) - len(border) + 1)
        return found

    def __repr__(self) -> str:
        return f"<FormModel {self.model!r} [{len(self.head)} bytes{' | over' if self.over else ''}]>"


def _is_model(part_head: bytes) -> bool:
    """Whether a part is the plain field `model`. A file of that name is a file."""
    disposition = _DISPOSITION.search(part_head)
    if disposition is None:
        return False
    named = {
        name.lower(): quoted if quoted is not None else plain
        for name, quoted, plain in (found.groups() for found in _PARAMETER.finditer(disposition[1]))
    }
    return named.get(b"name") == b"model" and b"filename" not in named and b"filename*" not in named
