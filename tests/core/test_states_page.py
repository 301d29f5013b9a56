"""The page of the tables is the tables."""

from __future__ import annotations

from tests.core.write_states import PAGE, render


def test_the_page_is_printed_from_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run python -m tests.core.write_states"
