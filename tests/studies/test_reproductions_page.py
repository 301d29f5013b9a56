"""The page of reproductions, and the files that it is made from."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from router.studies.reproductions.catalogue import STUDIES
from router.studies.reproductions.page import render
from router.studies.reproductions.store import Kept, load, run, save
from router.studies.reproductions.study import (
    Claim,
    Findings,
    Measures,
    Part,
    Results,
    Row,
    Size,
    Study,
    mean,
)

_ROOT = Path(__file__).parents[2]


def _half(value: float) -> Measures:
    return {"half": value / 2}


def _parts(size: Size) -> dict[str, Part]:
    return {f"halves/{seed}": partial(_half, 2.0 * seed) for seed in range(1, size.pick(1, 3) + 1)}


def _find(results: Results) -> Findings:
    half = mean(results, "halves", "half")
    return Findings([Row("half", half, 4.0), Row("the same", half)], [Claim("it is small", half, most=1.5)])


STUDY = Study(
    name="halves",
    title="Halves",
    source="A book",
    setting="Numbers.",
    parts=_parts,
    find=_find,
    word="They differ.",
)


def _page(size: Size) -> str:
    return render({"halves": STUDY}, {"halves": Kept(study="halves", size=size, measures=run(STUDY, size))})


def test_the_page_is_the_one_that_the_stored_figures_make() -> None:
    stored = load(STUDIES, _ROOT / "studies" / "results")
    page = (_ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8")

    assert page == render(STUDIES, stored), "make it anew: python -m router.studies.reproductions --page"


def test_every_study_has_stored_figures() -> None:
    assert set(load(STUDIES, _ROOT / "studies" / "results")) == set(STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_stored_figures_are_of_the_parts_that_the_study_has(name: str) -> None:
    kept = load(STUDIES, _ROOT / "studies" / "results")[name]

    assert set(kept.measures) == set(STUDIES[name].parts(kept.size)), f"run it again: --only {name}"


def test_no_file_of_results_is_left_of_a_study_that_is_gone() -> None:
    assert {path.stem for path in (_ROOT / "studies" / "results").glob("*.json")} == set(STUDIES)


def test_a_row_shows_both_figures_and_their_ratio() -> None:
    assert "| half | 1 | 4 | 0.25 |" in _page(Size.SMALL)
    assert "| the same | 1 |  |  |" in _page(Size.SMALL)


def test_figures_are_means_over_the_seeds_and_the_page_says_how_many() -> None:
    page = _page(Size.FULL)

    assert "| half | 2 | 4 | 0.50 |" in page
    assert "(full, 3 seeds)" in page


def test_the_page_says_which_studies_are_small_when_others_are_not() -> None:
    results = {size: Kept(study="halves", size=size, measures=run(STUDY, size)) for size in Size}
    both = render({}, {"one": results[Size.SMALL], "other": results[Size.FULL]})

    assert "Of the small size here: `one`; all others are full." in both
    assert "Of the small size" not in render({}, {"one": results[Size.SMALL]})
    assert "Of the small size" not in render({}, {"one": results[Size.FULL]})


def test_a_claim_that_does_not_hold_is_marked() -> None:
    assert "- it is small: 1 (at most 1.5)" in _page(Size.SMALL)
    assert "- **Missed here:** it is small: 2 (at most 1.5)" in _page(Size.FULL)


def test_processes_change_nothing() -> None:
    assert run(STUDY, Size.FULL, jobs=2) == run(STUDY, Size.FULL, jobs=1)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    save(STUDY, Size.FULL, run(STUDY, Size.FULL), tmp_path)

    assert load({"halves": STUDY, "absent": STUDY}, tmp_path) == {
        "halves": Kept(study="halves", size=Size.FULL, measures=run(STUDY, Size.FULL))
    }


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "halves.json").write_text("{", encoding="utf-8")

    with pytest.raises(ValueError, match=r"halves\.json is no file of results"):
        load({"halves": STUDY}, tmp_path)


def test_a_figure_that_no_part_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="no part thirds/1"):
        mean({"halves/1": {"half": 1.0}}, "thirds", "half")
