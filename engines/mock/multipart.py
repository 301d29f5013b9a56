"""Just enough of multipart/form-data to read an upload.

Separate because it is a format of its own (RFC 7578); the mock needs no library for one route.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.mock.errors import bad_body

_BOUNDARY = re.compile(r'boundary="?([^";,]{1,70})"?', re.IGNORECASE)
_NAME = re.compile(rb'\bname="([^"]*)"')
_FILENAME = re.compile(rb'\bfilename="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form.

    Attributes:
        filename: None for a field that is no file.
    """

    name: str
    filename: str | None
    data: bytes


def parse_form(content_type: str | None, body: bytes) -> dict[str, Part]:
    """Return a form's parts by name; of equal names the last stays.

    Raises:
        Refusal: 400 for anything that is no form.
    """
    found = _BOUNDARY.search(content_type or "")
    if found is None or not (content_type or "").lower().startswith("multipart/form-data"):
        raise bad_body("1 validation error: the body must be multipart/form-data with a boundary")
    pieces = (b"\r\n" + body).split(b"\r\n--" + found.group(1).encode("latin-1"))
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise bad_body("1 validation error: the form has no closing boundary")
    parts = {}
    for piece in pieces[1:-1]:
        head, gap, data = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if not gap or name is None:
            raise bad_body("1 validation error: a part of the form has no name")
        filename = _FILENAME.search(head)
        part = Part(
            name.group(1).decode(errors="replace"),
            None if filename is None else filename.group(1).decode(errors="replace"),
            data,
        )
        parts[part.name] = part
    return parts
