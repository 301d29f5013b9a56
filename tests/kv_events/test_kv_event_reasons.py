"""Why a worker is not known exactly: the first thing that stands in the way, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.trust import Trust
from router.kv_events.knowledge import Known
from router.kv_events.locate import Place
from router.kv_events.reasons import Facts, Reason, why_not_exact

GOOD = Facts(
    follows=True, shared_address=False, deaf=False, place=Place.FOUND, known=Known.WHOLLY, full=False,
    text=False, trust=Trust.APPROXIMATE,
)  # fmt: skip
TABLE: list[tuple[dict[str, object], Reason]] = [
    ({"follows": False}, Reason.OFF),
    ({"shared_address": True}, Reason.SHARED_ADDRESS),
    ({"place": Place.UNKNOWN}, Reason.NO_ENDPOINT),
    ({"place": Place.NOWHERE}, Reason.NO_ENDPOINT),
    ({"place": Place.NO_ROUTE}, Reason.NO_ENDPOINT),
    ({"place": Place.RANKS}, Reason.SEVERAL_RANKS),
    ({"deaf": True}, Reason.NO_PYZMQ),
    ({"known": None}, Reason.NOT_CONNECTED),
    ({"known": Known.NOTHING}, Reason.NOT_CONNECTED),
    ({"known": Known.NOTHING, "full": True}, Reason.NO_ROOM),
    ({"known": Known.PARTLY}, Reason.JOINED_LATE),
    ({"known": Known.PARTLY_STALE}, Reason.SILENT),
    ({"known": Known.WHOLLY_STALE}, Reason.SILENT),
    ({"text": True}, Reason.NO_TOKENIZER),
    ({}, Reason.DISAGREES),
]


@pytest.mark.parametrize(("fact", "reason"), TABLE)
def test_each_obstacle_has_its_word(fact: dict[str, object], reason: Reason) -> None:
    assert why_not_exact(replace(GOOD, **fact)) is reason  # type: ignore[arg-type]  # of a table


@pytest.mark.parametrize("fact", [fact for fact, _ in TABLE])
def test_one_who_is_known_exactly_needs_no_reason(fact: dict[str, object]) -> None:
    assert why_not_exact(replace(GOOD, **fact, trust=Trust.EXACT)) is None  # type: ignore[arg-type]


def test_every_word_can_be_said() -> None:
    assert {reason for _, reason in TABLE} == set(Reason)
