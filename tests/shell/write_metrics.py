"""Writes docs/metrics.md anew, from what there is: `python -m tests.shell.write_metrics`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from router.telemetry.calibration_gauges import calibration_gauges
from router.telemetry.choosing_gauges import choosing_gauges
from router.telemetry.exposition import SampleFamily
from router.telemetry.families import RequestFamilies, RouterFamilies, WorkerFamilies
from router.telemetry.forecast_gauges import forecast_gauges
from router.telemetry.gauges import gauges
from router.telemetry.handover_families import HandoverFamilies
from router.telemetry.prefix_gauges import PrefixSnapshot, prefix_gauges
from router.telemetry.round_families import RoundFamilies
from router.telemetry.samples import Snapshot
from router.telemetry.series import CounterFamily, HistogramFamily
from tests.shell.deploy_queries import alerts

AnyFamily = SampleFamily | CounterFamily | HistogramFamily

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

_HEAD = """# Metrics and alerts

Made from the program and from `deploy/prometheus/rules.yml` by `python -m tests.shell.write_metrics`; a test
fails when this copy is old. Do not edit it.

`/metrics` answers in Prometheus' text format on the admin port, on the port of clients, and on
`server.prometheus_port`. Besides these there are `pointsman_build_info` and the `process_*` of Prometheus'
client. What is not known is absent, never 0. A gauge of load is 0 when nothing runs. Of a histogram there are
`_bucket`, `_sum` and `_count`. The dashboard in `deploy/grafana/` shows them, and says what to do.
"""

_ALERTS = """## Alerts

`page` wakes somebody, `ticket` waits for the morning. Names in quotes are panels of the dashboard.

| alert | severity | what is wrong | what to do |
|---|---|---|---|
"""


def render() -> str:
    """The whole page."""
    parts = ["\n".join(_section(title, families)) for title, families in sections()]
    return "\n".join([_HEAD, *parts, _ALERTS + "".join(map(_alert, alerts()))])


def sections() -> Iterator[tuple[str, list[AnyFamily]]]:
    """All families, by what they are about, in the order of the dashboard."""
    choosing = list(choosing_gauges(()))
    prefixes = list(prefix_gauges(PrefixSnapshot()))
    forecasts = list(forecast_gauges(()))
    calibration = list(calibration_gauges((), 0.0))
    told = {family.name for family in chain(choosing, prefixes, forecasts, calibration)}
    others = [
        family for family in gauges(Snapshot(now=0.0, ready=True, in_flight=0)) if family.name not in told
    ]
    of_workers = [family for family in others if family.name.startswith("pointsman_worker_")]
    of_router = [family for family in others if family not in of_workers]
    yield "Requests", [*vars(RequestFamilies()).values()]
    yield "The router and its queues", [*of_router, *vars(RouterFamilies()).values()]
    yield "Workers", [*of_workers, *vars(WorkerFamilies()).values()]
    yield "Choices", [*choosing]
    yield "Prefill and decode", [*vars(HandoverFamilies()).values()]
    yield "Prefix index and KV events", [*prefixes]
    yield "Rounds of BalanceRoute", [*vars(RoundFamilies()).values()]
    yield "Foretold lengths", [*forecasts]
    yield "Calibration", [*calibration]


def _section(title: str, families: Iterable[AnyFamily]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        meaning = family.description.replace("|", "\\|")
        yield f"| `{family.name}` | {_kind(family)} | {labels} | {meaning} |"
    yield ""


def _kind(family: AnyFamily) -> str:
    if isinstance(family, SampleFamily):
        return family.kind
    return "histogram" if isinstance(family, HistogramFamily) else "counter"


def _alert(rule: dict[str, dict[str, str]]) -> str:
    told = [rule["labels"]["severity"], rule["annotations"]["summary"], rule["annotations"]["action"]]
    words = [re.sub(r"{{ \$labels\.(\w+) }}", r"*\1*", text) for text in told]
    words = [re.sub(r"{{ \$value[^}]*}}", "*so*", text) for text in words]
    return f"| `{rule['alert']}` | {' | '.join(words)} |\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
