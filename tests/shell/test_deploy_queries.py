"""Laws that hold the dashboard and the alerts to what the router exports.

First by reading: every metric and every label that a query names is in an exposition of `Metrics`. Then,
where Prometheus is installed, by running: a real one that has scraped that exposition evaluates every query.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from router.telemetry.metrics import CONTENT_TYPE
from tests.shell.busy_metrics import busy, live
from tests.shell.deploy_queries import (
    RULES,
    Query,
    alert_queries,
    exported,
    panel_queries,
    read,
    variable_queries,
)

OF_PROMETHEUS = {"up": {"job", "instance"}}
ADDED_BY_PROMETHEUS = {"job", "instance"}

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs prometheus and promtool; on Debian: apt-get install --no-install-recommends prometheus",
)


@pytest.mark.parametrize(
    ("query", "metrics", "grouped"),
    [
        ("a", {"a": set()}, set()),
        ('rate(a_total{code=~"5..",worker!="x{y}"}[5m])', {"a_total": {"code", "worker"}}, set()),
        ("sum by (le, model) (rate(a_bucket[1m]))", {"a_bucket": set()}, {"le", "model"}),
        ("sum(a) without (instance) / ignoring (x) group_left (y) b", {"a": set(), "b": set()},
         {"instance", "x", "y"}),
        ("a > bool 0.05 * b offset 5m or vector(0)", {"a": set(), "b": set()}, set()),
        ("histogram_quantile(0.9, sum by (le) (rate(h_bucket[$__interval])))", {"h_bucket": set()}, {"le"}),
        ('a{x="1"} # made_up\n== 1', {"a": {"x"}}, set()),
        ("1e3 + .5 - a ^ 2", {"a": set()}, set()),
    ],
)  # fmt: skip
def test_the_reader_finds_every_metric_and_label(
    query: str, metrics: dict[str, set[str]], grouped: set[str]
) -> None:
    assert read(query) == Query(metrics, grouped)


def test_a_selector_without_a_name_is_refused() -> None:
    with pytest.raises(AssertionError, match="cannot be checked"):
        read('{__name__=~"pointsman.*"}')


# --- what is asked, and what there is ------------------------------------------------------------------


def strangers(query: str, known: Mapping[str, set[str]]) -> list[str]:
    """What a query names and nobody exports."""
    found = read(query)
    wrong = [name for name in found.metrics if name not in known]
    labels = set.union(*(known.get(name, set()) for name in found.metrics)) | ADDED_BY_PROMETHEUS
    for name, matched in found.metrics.items():
        wrong += [f"{name}{{{label}}}" for label in matched - known.get(name, set()) - ADDED_BY_PROMETHEUS]
    return wrong + sorted(found.grouped - labels)


def test_every_query_names_only_what_the_router_exports() -> None:
    known = {**exported(), **OF_PROMETHEUS}
    queries = [expr for _, expr, _ in panel_queries()] + variable_queries() + alert_queries()
    assert len(queries) > 50
    assert {query: wrong for query in queries if (wrong := strangers(query, known))} == {}


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("rate(pointsman_request_total[5m])", ["pointsman_request_total"]),
        ('pointsman_queue_depth{models="m"}', ["pointsman_queue_depth{models}"]),
        ("sum by (pod) (pointsman_queue_depth)", ["pod"]),
        ("pointsman_ttft_seconds", ["pointsman_ttft_seconds"]),
    ],
)
def test_a_made_up_name_would_be_noticed(query: str, wrong: list[str]) -> None:
    assert strangers(query, exported()) == wrong


def test_every_gauge_that_must_be_zero_when_idle_is_on_the_dashboard() -> None:
    shown = {name for _, expr, _ in panel_queries() for name in read(expr).metrics}
    assert shown >= {
        "pointsman_requests_in_flight",
        "pointsman_worker_requests_in_flight",
        "pointsman_worker_kv_tokens",
        "pointsman_prompt_pool_entries",
        "pointsman_queue_depth",
    }


# --- a real Prometheus --------------------------------------------------------------------------------


@needs_prometheus
@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules.test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(words: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *words], cwd=RULES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_promtool_finds_nothing_wrong_with_our_names() -> None:
    metrics = busy()
    live(metrics)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics.exposition(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.fixture(scope="module")
def exporter() -> Iterator[int]:
    """Serves /metrics on a free port, and lives a moment before each scrape."""
    metrics = busy()

    class Exposition(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            live(metrics)
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(metrics.exposition())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Exposition) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def prometheus(exporter: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A Prometheus with our rules that has scraped the exporter a few times."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = folder / "prometheus.yml"
    config.write_text(
        yaml.safe_dump(
            {
                # A scrape that takes longer than the interval ends all series: leave room for a busy machine.
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(RULES)],
                "scrape_configs": [
                    {"job_name": "pointsman", "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]}
                ],
            }
        )
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = folder / "log"
    with log.open("wb") as stderr, subprocess.Popen(
        [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ],
        stdout=stderr, stderr=stderr,
    ) as process, httpx.Client(base_url=f"http://{address}/api/v1", trust_env=False) as client:  # fmt: skip
        try:
            wait_for_scrapes(client, process, log)
            yield client
        finally:
            process.terminate()


def wait_for_scrapes(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Prometheus tells nobody when it has scraped: ask until it has, for at most a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            found = evaluate(client, "count_over_time(pointsman_build_info[1m]) >= 4")
        except httpx.HTTPError:  # not there yet, or 503 while it loads its data
            found = []
        if found:
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text() + client.get("/targets").text)


def evaluate(client: httpx.Client, query: str) -> list[dict[str, Any]]:
    query = query.replace("$__rate_interval", "1m")
    query = re.sub(r"\$\w+", ".*", query)
    answer = client.get("/query", params={"query": query})
    assert answer.status_code in (200, 503), answer.text
    answer.raise_for_status()
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


@needs_prometheus
def test_every_panel_has_data_and_its_legend_is_filled(prometheus: httpx.Client) -> None:
    assert all(evaluate(prometheus, query) for query in variable_queries())
    for title, expr, legend in panel_queries():
        result = evaluate(prometheus, expr)
        assert result, f"{title}: {expr} has no data"
        for label in re.findall(r"{{(\w+)}}", legend):
            assert all(label in series["metric"] for series in result), f"{title}: no {label} in {expr}"


@needs_prometheus
def test_a_quotient_on_the_dashboard_is_a_number(prometheus: httpx.Client) -> None:
    for title, expr, _ in panel_queries():
        if "/" in expr:
            values = [series["value"][1] for series in evaluate(prometheus, expr)]
            assert "NaN" not in values, f"{title}: {expr}"


@needs_prometheus
def test_prometheus_evaluates_every_alert(prometheus: httpx.Client) -> None:
    rules = [rule for group in prometheus.get("/rules").json()["data"]["groups"] for rule in group["rules"]]
    assert len(rules) == len(alert_queries())
    assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] == "err"} == {}
