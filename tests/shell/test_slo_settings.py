"""Laws of the targets as they are written down, and of the counter that they move."""

from __future__ import annotations

import pytest

from router.core.slo import LOOSE, TIGHT, Targets
from router.settings.configuration import Settings
from router.telemetry.families import Families
from router.telemetry.metrics import RequestSeries


def test_without_targets_nothing_is_promised() -> None:
    assert Settings().slo.configured == {}
    assert Settings().slo.default_class == LOOSE


def test_a_class_may_have_one_target_or_both() -> None:
    slo = Settings(slo={"tight": {"ttft_s": 0.2, "tpot_s": 0.04}, "loose": {"ttft_s": 1}}).slo
    assert slo.configured == {TIGHT: Targets(0.2, 0.04), LOOSE: Targets(1.0, None)}


@pytest.mark.parametrize("name", ["ttft_s", "tpot_s"])
def test_tight_is_not_looser_than_loose(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"slo\.tight\.{name} is 2, which is looser than slo\.loose\.{name}, 1"
    ):
        Settings(slo={"tight": {name: 2}, "loose": {name: 1}})


def test_goodput_is_counted_by_class() -> None:
    families = Families()
    series = RequestSeries(families, "chat", "m")
    for met in (True, True, False):
        series.judged("tight", met=met)
    text = "".join(families.slo.render())
    assert 'pointsman_slo_requests_total{model="m",class="tight",met="yes"} 2' in text
    assert 'pointsman_slo_requests_total{model="m",class="tight",met="no"} 1' in text
