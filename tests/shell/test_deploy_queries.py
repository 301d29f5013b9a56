"""Laws that hold the dashboard and the alerts to what the router exports.

First by reading: every metric and every label that a query names is in an exposition of `Metrics`. Then,
where Prometheus is installed, by running: a real one that has scraped that exposition evaluates every query.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from router.telemetry.metrics import CONTENT_TYPE
from tests.shell.busy_metrics import busy, live

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus/rules.yml"
OF_PROMETHEUS = {"up": {"job", "instance"}}
ADDED_BY_PROMETHEUS = {"job", "instance"}

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs prometheus and promtool; on Debian: apt-get install --no-install-recommends prometheus",
)


# --- reading PromQL -----------------------------------------------------------------------------------

TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<string>"(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | `[^`]*`)
      | (?P<range>\[[^\]]*\])
      | (?P<number>(?:\d+\.?\d*(?:[eE][+-]?\d+)? | \.\d+)(?:ms|[smhdwy])?)
      | (?P<word>[a-zA-Z_:][a-zA-Z0-9_:]*)
      | (?P<sign>[-+*/%^=!~<>]+ | [(){},@])
      | (?P<space>\s+)""",
    re.VERBOSE,
)
LABEL_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
KEYWORDS = LABEL_LISTS | {"and", "or", "unless", "bool", "offset", "inf", "nan"}


class Token(NamedTuple):
    kind: str
    text: str


class Query(NamedTuple):
    """What a query names: metrics with the labels of their matchers, and labels to group by."""

    metrics: dict[str, set[str]]
    grouped: set[str]


def tokens(query: str) -> list[Token]:
    found, at = [], 0
    while at < len(query):
        match = TOKEN.match(query, at)
        assert match is not None, f"not PromQL at {query[at:]!r}"
        at = match.end()
        kind = match.lastgroup or ""
        if kind not in ("space", "comment"):
            found.append(Token(kind, match.group()))
    return found


def words_until(rest: list[Token], end: str) -> list[str]:
    """Takes the words before `end`, and `end`, off `rest`."""
    words = []
    while (token := rest.pop(0)).text != end:
        if token.kind == "word":
            words.append(token.text)
    return words


def read(query: str) -> Query:
    found = Query({}, set())
    rest = tokens(query)
    while rest:
        token = rest.pop(0)
        after = rest[0].text if rest else ""
        if token.kind != "word":
            assert token.text != "{", "a selector without a metric's name cannot be checked"
        elif token.text in LABEL_LISTS:
            if after == "(":
                found.grouped.update(words_until(rest, ")"))
        elif token.text.lower() not in KEYWORDS and after != "(" and after not in ("by", "without"):
            labels = found.metrics.setdefault(token.text, set())
            if after == "{":
                labels.update(words_until(rest, "}"))
    return found


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


def exported() -> dict[str, set[str]]:
    metrics = busy()
    live(metrics)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/pointsman.json").read_text("utf-8"))
    return loaded


def panel_queries() -> list[tuple[str, str, str]]:
    """Title, expression and legend of every query of the dashboard."""
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def variable_queries() -> list[str]:
    """The selectors that fill the dashboard's variables."""
    queries = [v["query"]["query"] for v in dashboard()["templating"]["list"] if v["type"] == "query"]
    return [re.fullmatch(r"label_values\((.+), (\w+)\)", query)[1] for query in queries]  # type: ignore[index]  # None fails the test


def alert_queries() -> list[str]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


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
                "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
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
