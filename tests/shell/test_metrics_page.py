"""Laws of docs/metrics.md: it is as new as the program, and nothing is missing in it."""

from __future__ import annotations

from collections import Counter

from tests.shell.deploy_queries import exported
from tests.shell.write_metrics import PAGE, render, sections


def test_the_page_of_metrics_is_not_old() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run python -m tests.shell.write_metrics"


def test_every_metric_is_on_the_page_once() -> None:
    named = Counter(family.name for _, families in sections() for family in families)
    assert set(named.values()) == {1}
    ours = {name for name in exported() if name.startswith("pointsman_")} - {"pointsman_build_info"}
    parts = ("_bucket", "_count", "_sum")
    assert {name for name in ours if name not in named and not name.endswith(parts)} == set()


def test_every_metric_says_what_it_means_in_a_sentence() -> None:
    meanings = [family.description for _, families in sections() for family in families]
    assert [text for text in meanings if not text.endswith(".") or len(text) > 140] == []
