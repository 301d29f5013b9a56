"""Reads back what a log wrote: a header that says which kind it is, then a record per line.

Separate from the records, of which there are two kinds, and from writing, which never reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec


class _Kind(msgspec.Struct):
    """What the first line of every log says, whatever its kind adds. Headers have defaults for both, but no
    file may leave them out."""

    format: str
    version: int


_kind = msgspec.json.Decoder(_Kind)

_LONGEST = 16 << 20
"""Bytes of a line. A record of a prompt with 100,000 blocks has about 2 million."""

H = TypeVar("H")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LogKind(Generic[H, R]):
    """One kind of log.

    Attributes:
        name: as it is called in sentences: "request log".
        format, version: of its header; a later version is refused.
    """

    name: str
    format: str
    version: int
    header: msgspec.json.Decoder[H]
    record: msgspec.json.Decoder[R]

    def header_of(self, path: str | os.PathLike[str]) -> H:
        """The header of a file. ValueError when it is not of this kind, or of a later version."""
        with open(path, "rb") as file:
            return self._checked(path, file.readline(_LONGEST))

    def records_of(self, path: str | os.PathLike[str]) -> Iterator[R]:
        """The records of a file in its order, see `numbered`."""
        return (record for _, record in self.numbered(path))

    def numbered(self, path: str | os.PathLike[str]) -> Iterator[tuple[int, R]]:
        """The records of a file in its order, each with the number of its line, from 1.

        A last line without its newline is one that is being written, or that a crash cut: it is left out. So
        are further headers: logs that were rotated may be put together again. ValueError as `header_of`, or
        naming the line that is no record.
        """
        with open(path, "rb") as file:
            self._checked(path, file.readline(_LONGEST))
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST + 1), b""), start=2):
                if len(line) > _LONGEST:
                    raise ValueError(f"line {number} of {path} is longer than {_LONGEST:,} bytes")
                if not line.endswith(b"\n"):
                    return
                try:
                    yield number, self.record.decode(line)
                except (msgspec.DecodeError, RecursionError) as error:
                    if not self._is_header(path, line):
                        raise ValueError(f"line {number} of {path} is not a record: {error}") from error

    def _is_header(self, path: str | os.PathLike[str], line: bytes) -> bool:
        """Whether a line begins another log of this kind. ValueError for one of a later version."""
        try:
            found = _kind.decode(line)
        except (msgspec.DecodeError, RecursionError):
            return False
        if found.format == self.format:
            self._checked(path, line)
        return found.format == self.format

    def _checked(self, path: str | os.PathLike[str], line: bytes) -> H:
        name = self.name
        try:
            kind = _kind.decode(line)
            if kind.format != self.format:
                raise ValueError(f"{path} is not a {name}: its first line names the format {kind.format!r}")
            if kind.version > self.version:
                raise ValueError(
                    f"{path} is a {name} of version {kind.version}; this program reads up to {self.version}"
                )
            return self.header.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"{path} is not a {name}: its first line is no header ({error})") from error
