"""Data-parallel ranks of one engine, as they are written: `http://host:port@3`.

Separate from the workers because a rank is half of an address: it names a part of the engine that listens
there, and never goes into a URL that anybody opens.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import Field

MAX_RANKS: Final = 1024

DpSize = Annotated[int, Field(ge=1, le=MAX_RANKS)]
RankOffset = Annotated[int, Field(ge=0, le=1_000_000)]

NO_GROUP: Final = "none"
"""A barrier group that nobody is in, for ranks that do not wait for each other."""

_RANKED: Final = re.compile(r"(?P<address>.*?)/*@(?P<rank>\d{1,9})/*", re.DOTALL)


def split_rank(url: str) -> tuple[str, int | None]:
    """A URL without its rank and without slashes at its end, and the rank; None when it names none.

    Raises:
        ValueError: no engine has so many ranks.
    """
    found = _RANKED.fullmatch(url)
    if found is None:
        return url.rstrip("/"), None
    rank = int(found["rank"])
    if rank >= MAX_RANKS:
        raise ValueError(f"its rank is {rank}; ranks go from 0 to {MAX_RANKS - 1}")
    return found["address"], rank


def with_rank(text: str, rank: int | None) -> str:
    """An address or a name with the rank that `split_rank` finds in it; as it was without one."""
    return text if rank is None else f"{text}@{rank}"
