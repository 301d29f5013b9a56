"""The tables of the page on disaggregation are those of the code."""

from __future__ import annotations

import pytest

from tests.core.write_disaggregation import PAGE, TABLES, render


def test_the_tables_are_printed_from_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == render(page), "run python -m tests.core.write_disaggregation"


@pytest.mark.parametrize("name", TABLES)
def test_a_page_without_a_table_is_found_out(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8").replace(f"<!-- table: {name} -->", "")
    with pytest.raises(ValueError, match=name):
        render(page)
