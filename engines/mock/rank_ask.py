"""Which data-parallel rank a request asks for: where both dialects read it, and what they refuse.

Separate because it belongs to the request as a whole and to no API.
"""

from __future__ import annotations

from engines.mock.errors import Refusal, bad_request
from engines.mock.fields import Fields
from engines.mock.settings import MockSettings

HEADER = "x-data-parallel-rank"
"""Both dialects have it; in SGLang it outweighs the body."""


def rank_asked(header: str | None, fields: Fields | None, settings: MockSettings) -> int | None:
    """The rank that a request asks for; None leaves it to the engine.

    Args:
        header: the value of `X-data-parallel-rank`.
        fields: the body, where it is JSON.

    Raises:
        Refusal: 400 for a rank that is not here, and in SGLang for a header that is no number.
    """
    if settings.dialect == "vllm":
        return _vllm(header, settings.dp_size)
    return _sglang(header, fields or Fields({}), settings.dp_size)


def _vllm(header: str | None, ranks: int) -> int | None:
    """A header that is no number is not there (vLLM 0.32)."""
    rank = None if header is None else _number(header)
    if rank is not None and not 0 <= rank < ranks:
        raise bad_request(f"data_parallel_rank {rank} is out of range [0, {ranks}).")
    return rank


def _sglang(header: str | None, fields: Fields, ranks: int) -> int | None:
    rank = fields.integer("routed_dp_rank")
    if rank is None:
        rank = fields.integer("data_parallel_rank")
    if header is not None:
        rank = _number(header)
        if rank is None:
            raise Refusal(
                400,
                "400",
                f"Invalid X-Data-Parallel-Rank header: must be an integer, got '{header}'",
            )
    if rank is not None and not 0 <= rank < ranks:
        raise bad_request(f"routed_dp_rank={rank} out of range [0, {ranks})")
    return rank


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
