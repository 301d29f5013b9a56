"""What a policy was offered when it chose, kept until the choice is charged.

Separate because shadows and records are asked about the very same workers that the decision was made among.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import Worker


class Offer(msgspec.Struct, frozen=True):
    """Workers that a request could have had.

    Attributes:
        workers: to choose one of (decode workers, for a pair).
        prefills: to choose beside it, for a pair; None when one worker was asked for.
        barred: names of prefill and decode workers that may not be paired now.
    """

    workers: Sequence[Worker]
    prefills: Sequence[Worker] | None = None
    barred: Collection[tuple[str, str]] = ()


class Placed(msgspec.Struct, frozen=True):
    """A choice, and among whom it was made."""

    request: Request
    choice: Choice
    offer: Offer
