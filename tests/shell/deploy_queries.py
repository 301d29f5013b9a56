"""What the dashboard and the alerts ask, taken apart, and what the router exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.shell.busy_metrics import busy, live

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus/rules.yml"

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


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alert_queries() -> list[str]:
    return [rule["expr"] for rule in alerts()]
