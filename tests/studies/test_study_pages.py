"""A report is one file that reads by itself: well formed, without a network, with everything that was run."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.__main__ import main
from router.studies.compare import Plan, cells
from router.studies.compare_table import CAUSES, COLUMNS, MEANINGS
from router.studies.curves import SHARES, curves, loads
from router.studies.html.axis import Axis, around, by_factors, from_zero, shares, written
from router.studies.html.page import standalone
from router.studies.html.plots import over_rates, over_workers, styles_of
from router.studies.html.report import comparison
from router.studies.html.style import STYLES
from router.studies.html.svg import PLOT, Row, Series, rows
from router.studies.html.svg import lines as drawn
from router.studies.lines import lines
from router.studies.resized import answering, natural_size, resized
from router.studies.setups import SETUPS, Choosing
from router.studies.simulation.barrier_watch import Sample
from router.studies.simulation.record import CallRecord
from router.studies.workloads import WORKLOADS, describe

VOID = {"meta", "path", "circle", "rect", "line"}
NAMED = ("round_robin", "least_requests", "cache_aware")

CAME = {"chat_short": describe(WORKLOADS["chat_short"].calls(40, 30.0, 1))}


class Reader(HTMLParser):
    """Every element closes in order; nothing is fetched and nothing runs."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        assert tag not in {"script", "link", "img", "iframe"}
        assert not {name for name, _ in attrs} & {"href", "src", "onclick"}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID, tag

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)
        assert "nan" not in svg
        assert "inf" not in svg.replace("information", "")
    assert "url(" not in page
    assert "@import" not in page
    return reader


def plan(**what: object) -> Plan:
    knobs = {
        "policies": [(name, {}) for name in NAMED],
        "workloads": ["chat_short"],
        "seeds": 2,
        "calls": 40,
    }
    return Plan(**knobs | what)  # type: ignore[arg-type]  # any field


def test_a_comparison_is_one_page_with_a_table_and_plots() -> None:
    made = cells(plan().tasks())
    reader = read(comparison("Title & <more>", made, CAME, ["a note"]))
    # What came; what each policy is worth, and why.
    assert reader.count["table"] == 3
    # What each policy gains in goodput and in time, and four distributions.
    assert reader.count["figure"] == 6
    for word in (*NAMED, "Title & <more>", "a note", "calibrated_a40", "1, 2", "Pointsman"):
        assert word in reader.text, word


def test_several_rates_are_followed_by_goodput_and_latency() -> None:
    made = cells(plan(levels=[4.0, 30.0], seeds=1).tasks())
    reader = read(comparison("rates", made, CAME))
    assert reader.count["table"] == 5
    found = lines(made)
    titles = [plot.title for plot in over_rates(found, styles_of(NAMED))]
    assert titles == ["Goodput", "Mean end-to-end time", "Time to first token, p99"]
    assert [line.rate for line in found] == [4.0] * 3 + [30.0] * 3
    assert "At 30 calls per second" in reader.text


def test_several_sizes_are_followed_by_cache_hits_first() -> None:
    made = cells(plan(workloads=["toolbench"], workers=[2, 6], seeds=1).tasks())
    found = lines(made)
    assert [line.workers for line in found] == [2] * 3 + [6] * 3
    # The rate of a setup belongs to its fleet of four.
    assert [line.rate for line in found] == [13.0] * 3 + [39.0] * 3
    titles = [plot.title for plot in over_workers(found, styles_of(NAMED))]
    assert titles[0] == "Cache hits"
    assert "2 workers" in read(comparison("sizes", made, CAME)).text


def test_loads_of_a_barrier_group_are_drawn_for_each_policy() -> None:
    made = cells(plan(workloads=["balanceroute_azure"], calls=30).tasks())
    reader = read(comparison("barriers", made, CAME))
    assert reader.count["figure"] == 6 + len(NAMED)
    assert "KV tokens in use at each worker over time" in reader.text


def test_a_run_that_answers_nothing_still_has_a_page() -> None:
    made = cells(plan(seeds=1, calls=1).tasks())
    read(comparison("one call", made, CAME))


def test_the_command_writes_the_page_and_the_search_for_collapse_one_too(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["--requests", "30", "--seeds", "1", "--jobs", "1", "--html", str(page)]
    assert (
        main(["compare", "--workloads", "chat_short", "--policies", "random", "--rates", "3,6", *words]) == 0
    )
    assert "At 6 calls per second" in read(page.read_text()).text
    words = ["--workload", "classic_heavy_tail", "--requests", "300", "--html", str(page)]
    assert main(["saturate", *words]) == 0
    reader = read(page.read_text())
    assert "round_robin on classic_heavy_tail holds 90 % up to" in reader.text
    assert reader.count["figure"] == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rates", "1,fast"], "--rates is '1,fast': numbers above 0 with commas between them"),
        (["--rates", "1", "--rate", "2"], "--rate and --rates contradict each other"),
        (["--workers", "2.5"], "--workers is '2.5': whole numbers"),
        (["--json", "no/such/folder/x.json"], "there is no folder no/such/folder"),
    ],
)
def test_flags_of_levels_and_files_are_checked_before_anything_runs(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 2
    assert sentence in capsys.readouterr().err


# --- fleets of another size -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("size", [1, 3, 9])
def test_a_fleet_has_the_size_that_was_asked_for(name: str, size: int) -> None:
    setup = SETUPS[name]
    if setup.plain:
        assert natural_size(setup) == 16
        return
    fleet = setup.plan(Choosing(policy="round_robin"))
    other = resized(fleet, size)
    assert answering(other) == size
    names = [worker.name for pool in other.pools for worker in pool.workers]
    assert len(names) == len(set(names))
    assert resized(fleet, answering(fleet)) == fleet


# --- curves ---------------------------------------------------------------------------------------------


def record(number: int, seconds: float, outcome: str = "ok") -> CallRecord:
    return CallRecord(
        number=number,
        arrived=0.0,
        prompt_tokens=1,
        first=seconds,
        done=2 * seconds,
        tokens=11,
        outcome=outcome,
    )


@given(times=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=300))
def test_a_curve_has_the_same_length_whatever_the_run(times: list[float]) -> None:
    made = curves([record(number, seconds) for number, seconds in enumerate(times)])
    for curve in (made.ttft_s, made.tpot_s, made.e2e_s):
        assert len(curve) == len(SHARES)
        assert curve == sorted(curve)
    assert made.ttft_s[0] == pytest.approx(min(times), rel=1e-3)
    assert made.ttft_s[-1] == pytest.approx(max(times), rel=1e-3)
    assert curves([record(0, 1.0, "failed")]).e2e_s == []


@given(count=st.integers(1, 5_000))
def test_loads_are_thinned_and_keep_both_ends(count: int) -> None:
    samples = [Sample(float(at), (at, 2 * at)) for at in range(count)]
    [made] = loads({"a": samples}).values()
    assert len(made.at_s) == min(count, 120)
    assert [row[0] for row in made.kv_tokens] == [0, 0]
    assert [row[-1] for row in made.kv_tokens] == [count - 1, 2 * (count - 1)]
    assert loads({"a": []}) == {}


# --- the drawing ----------------------------------------------------------------------------------------


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6), log=st.booleans())
def test_ticks_are_a_few_round_values_on_the_axis(low: float, width: float, log: bool) -> None:
    axis = Axis(
        label="x",
        low=abs(low) + 1e-3 if log else low,
        high=(abs(low) if log else low) + width + 2e-3,
        log=log,
    )
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 13
    assert ticks == sorted(ticks)
    assert all(0.0 <= axis.place(tick) <= 1.0 for tick in ticks)
    assert axis.place(axis.low) == 0.0
    assert axis.place(axis.high) == pytest.approx(1.0)


@given(values=st.lists(st.floats(1e-6, 1e9), max_size=9))
def test_every_value_has_a_place_on_every_axis(values: list[float]) -> None:
    for axis in (from_zero("x", values), around("x", values), by_factors("x", values)):
        assert axis.high > axis.low
        assert all(0.0 <= axis.place(value) <= 1.0 for value in [*values, math.inf, 0.0])
        assert axis.ticks()


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.05, "0.05"), (2_500.0, "2500"), (25_000.0, "25k"), (1.5e6, "1.5M")]
)
def test_ticks_are_written_short(value: float, text: str) -> None:
    assert written(value) == text


def test_a_plot_stands_alone_with_its_style_and_its_names() -> None:
    points = [(0.0, 0.0), (1.0, 50.0)]
    series = [Series(name=f"p{n}", points=points, style=n, halves=[None, 2.0], dots=True) for n in range(5)]
    svg = drawn(series, from_zero("x", [1.0]), shares("%"), "five lines")
    alone = standalone(svg, [each.name for each in series])
    root = ET.fromstring(alone)
    height = int(root.attrib["viewBox"].split()[3])
    assert height > PLOT.height
    assert "prefers-color-scheme" in alone
    assert ">p4<" in alone
    ET.fromstring(standalone(svg))


def test_names_are_escaped_and_styles_never_run_out() -> None:
    svg = rows([Row(name="<a&b>", value=1.0, half=0.5, style=STYLES + 3)], around("s", [1.0]), "rows")
    assert "&lt;a&amp;b&gt;" in svg
    assert 'class="s s3"' in svg


@pytest.mark.parametrize("length", [1, 20, 44, 45, 400])
def test_a_long_name_leaves_room_for_its_plot_and_is_never_cut_without_a_sign(length: int) -> None:
    name = "n" * length
    svg = rows([Row(name=name, value=1.0, half=0.5, style=0)], around("s", [1.0]), "rows")
    root = ET.fromstring(svg)
    texts = {
        each.text or "": float(each.attrib["x"]) for each in root.iter("{http://www.w3.org/2000/svg}text")
    }
    [shown] = [text for text in texts if text.startswith("n")]
    assert (shown == name) is (length <= 44)
    assert shown == name or shown.endswith("…")
    assert texts[shown] >= 7 * len(shown), "a name of about this width begins left of the picture"
    assert int(root.attrib["viewBox"].split()[2]) - texts[shown] > 200
    assert f"<title>{name}" in svg


def test_a_page_says_what_its_figures_are_and_keeps_names_in_sight() -> None:
    page = comparison("meanings", cells(plan(seeds=1).tasks()), CAME)
    reader = read(page)
    assert reader.count["details"] == 1
    for column in (*COLUMNS, *CAUSES):
        word = column.name.split()[0].rstrip("×%")
        if word not in {"p95", "p99", "−", "tokens/s", "preemptions"}:
            assert word in " ".join(f"{name}, {meaning}" for name, meaning in MEANINGS), word
    assert "position: sticky" in page
