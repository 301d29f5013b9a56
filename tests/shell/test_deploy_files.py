"""Laws of the files in deploy/, where no Docker engine and no cluster runs.

Each file has the shape that its reader expects (schema fragments for the parts that are used), and each name
in it that is ours exists in the program.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from engines.mock.__main__ import parser as mock_parser
from router.cli.parser import parse
from router.settings.sources import load

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DRAIN_S = 310  # 10 s of farewell, then up to 300 s


def document(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def resources() -> dict[str, Any]:
    text = (DEPLOY / "kubernetes/pointsman.yaml").read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


# --- shapes -------------------------------------------------------------------------------------------


def closed(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {
        "type": "object", "additionalProperties": False, "properties": properties,
        "required": required.split(),
    }  # fmt: skip


def many(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


def mapping(item: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": item, "minProperties": 1}


TEXT = {"type": "string", "minLength": 1}
NUMBER = {"type": "integer", "minimum": 0}
FLAG = {"type": "boolean"}
DURATION = {"type": "string", "pattern": r"^(\d+(ms|s|m|h|d))+$"}
ADDRESS = {"type": "string", "format": "ipv4"}
TEXTS = many(TEXT)
LABELS = mapping(TEXT)

GPUS = closed(
    "driver capabilities", driver={"const": "nvidia"}, device_ids=TEXTS, capabilities={"const": ["gpu"]}
)
SERVICE = closed(
    "image",
    build=TEXT, image=TEXT, command=TEXTS,
    ports=many({"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}),
    volumes=many({"type": "string", "pattern": r"^[./a-z][^:]*:/[^:]+(:ro)?$"}), environment=LABELS,
    healthcheck=closed(
        "test", test=TEXTS, interval=DURATION, timeout=DURATION, retries=NUMBER, start_period=DURATION
    ),
    entrypoint=TEXTS, ipc={"const": "host"},
    networks=mapping(closed("ipv4_address", ipv4_address=ADDRESS)),
    deploy=closed(resources=closed(reservations=closed(devices=many(GPUS)))),
    depends_on={"oneOf": [TEXTS, mapping(closed("condition", condition={"enum": ["service_healthy"]}))]},
    read_only=FLAG, cap_drop=TEXTS, security_opt=TEXTS, ulimits=mapping(NUMBER), stop_grace_period=DURATION,
    restart={"enum": ["no", "always", "on-failure", "unless-stopped"]},
)  # fmt: skip
COMPOSE = closed(
    "services",
    **{"x-engine": {"type": "object"}},
    name=TEXT, services=mapping(SERVICE), volumes=mapping({"type": "object"}),
    networks=mapping(closed(ipam=closed(config=many(closed("subnet", subnet=TEXT))))),
)  # fmt: skip

PROMETHEUS = closed(
    "global scrape_configs",
    **{
        "global": closed(scrape_interval=DURATION, evaluation_interval=DURATION),
        "rule_files": TEXTS,
        "scrape_configs": many(
            closed(
                "job_name static_configs",
                job_name=TEXT,
                static_configs=many(closed("targets", targets=TEXTS)),
            )
        ),
    },
)
RULE = closed(
    "alert expr labels annotations",
    alert={"type": "string", "pattern": "^Pointsman[A-Z]"}, expr=TEXT, **{"for": DURATION},
    labels=closed("severity", severity={"enum": ["page", "ticket"]}),
    annotations=closed("summary action", summary=TEXT, action=TEXT),
)  # fmt: skip
RULES = closed("groups", groups=many(closed("name rules", name=TEXT, rules=many(RULE))))

DATASOURCES = closed(
    "apiVersion datasources",
    apiVersion={"const": 1},
    datasources=many(
        closed("name type url", name=TEXT, uid=TEXT, type={"const": "prometheus"}, access={"const": "proxy"},
               url=TEXT, isDefault=FLAG, jsonData=closed(timeInterval=DURATION))
    ),
)  # fmt: skip
PROVIDERS = closed(
    "apiVersion providers",
    apiVersion={"const": 1},
    providers=many(
        closed("name type options", name=TEXT, type={"const": "file"}, allowUiUpdates=FLAG,
               options=closed("path", path=TEXT))
    ),
)  # fmt: skip

GRID = closed("h w x y", h=NUMBER, w={"type": "integer", "minimum": 1, "maximum": 24}, x=NUMBER, y=NUMBER)
PANEL = {
    "type": "object",
    "required": ["id", "type", "title", "gridPos"],
    "properties": {
        "id": NUMBER, "type": {"enum": ["row", "timeseries", "stat", "table"]},
        "title": TEXT, "gridPos": GRID,
        "description": {"type": "string", "pattern": r"\.$"},
        "targets": many(
            {
                "type": "object",
                "required": ["refId", "expr", "legendFormat", "datasource"],
                "properties": {"refId": {"pattern": "^[A-Z]$"}, "expr": TEXT},
            }
        ),
    },
    "if": {"properties": {"type": {"const": "row"}}},
    "else": {"required": ["targets", "fieldConfig", "description", "datasource"]},
}  # fmt: skip
DASHBOARD = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "templating", "panels", "time"],
    "properties": {"panels": many(PANEL), "schemaVersion": {"type": "integer", "minimum": 36}},
}

META = closed("name labels", name=TEXT, labels=LABELS)
PROBE = closed(
    "httpGet",
    httpGet=closed("path port", path={"enum": ["/liveness", "/readiness"]}, port={"const": "http"}),
    periodSeconds=NUMBER, timeoutSeconds=NUMBER, failureThreshold=NUMBER,
)  # fmt: skip
CONTAINER = closed(
    "name image args ports livenessProbe readinessProbe resources securityContext",
    name=TEXT, image=TEXT, args=TEXTS, env=many(closed("name", name=TEXT, valueFrom={"type": "object"})),
    ports=many(closed("name containerPort", name=TEXT, containerPort=NUMBER)),
    livenessProbe=PROBE, readinessProbe=PROBE,
    resources=closed("requests limits", requests=mapping(TEXT), limits=mapping(TEXT)),
    securityContext=closed(
        allowPrivilegeEscalation={"const": False}, readOnlyRootFilesystem={"const": True},
        capabilities=closed("drop", drop={"const": ["ALL"]}),
    ),
    volumeMounts=many(closed("name mountPath", name=TEXT, mountPath=TEXT, readOnly=FLAG)),
)  # fmt: skip
POD = closed(
    "containers terminationGracePeriodSeconds securityContext",
    automountServiceAccountToken={"const": False}, enableServiceLinks=FLAG,
    terminationGracePeriodSeconds=NUMBER,
    securityContext=closed(
        "runAsNonRoot", runAsNonRoot={"const": True}, runAsUser={"type": "integer", "minimum": 1},
        runAsGroup=NUMBER, seccompProfile=closed("type", type=TEXT),
    ),
    containers=many(CONTAINER),
    volumes=many(closed("name", name=TEXT, configMap=closed("name", name=TEXT))),
)  # fmt: skip
CONFIG_MAP = closed(
    "apiVersion kind metadata data", apiVersion={"const": "v1"}, kind=TEXT, metadata=META, data=mapping(TEXT)
)
DEPLOYMENT = closed(
    "apiVersion kind metadata spec", apiVersion={"const": "apps/v1"}, kind=TEXT, metadata=META,
    spec=closed(
        "selector template", replicas=NUMBER,
        strategy=closed(rollingUpdate=closed(maxSurge=NUMBER, maxUnavailable=NUMBER)),
        selector=closed("matchLabels", matchLabels=LABELS),
        template=closed(
            "metadata spec", metadata=closed("labels", labels=LABELS, annotations=LABELS), spec=POD
        ),
    ),
)  # fmt: skip
SERVICE_OBJECT = closed(
    "apiVersion kind metadata spec", apiVersion={"const": "v1"}, kind=TEXT, metadata=META,
    spec=closed(
        "selector ports", selector=LABELS,
        ports=many(closed("port", name=TEXT, port=NUMBER, targetPort={"const": "http"})),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("compose.yaml", COMPOSE),
        ("pairs.compose.yaml", COMPOSE),
        ("prometheus/prometheus.yml", PROMETHEUS),
        ("prometheus/rules.yml", RULES),
        ("grafana/provisioning/datasources/prometheus.yaml", DATASOURCES),
        ("grafana/provisioning/dashboards/pointsman.yaml", PROVIDERS),
    ],
)
def test_a_file_has_the_shape_that_its_reader_expects(name: str, schema: dict[str, Any]) -> None:
    jsonschema.validate(document(name), schema)


@pytest.mark.parametrize(
    ("kind", "schema"), [("ConfigMap", CONFIG_MAP), ("Deployment", DEPLOYMENT), ("Service", SERVICE_OBJECT)]
)
def test_a_kubernetes_object_has_its_shape(kind: str, schema: dict[str, Any]) -> None:
    jsonschema.validate(resources()[kind], schema)


def test_a_misspelt_key_would_be_noticed() -> None:
    compose = document("compose.yaml")
    compose["services"]["router"]["port"] = compose["services"]["router"].pop("ports")
    with pytest.raises(jsonschema.ValidationError, match="'port' was unexpected"):
        jsonschema.validate(compose, COMPOSE)


# --- Grafana's page -----------------------------------------------------------------------------------


def test_the_dashboard_has_its_shape_and_its_sections() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/pointsman.json").read_text(encoding="utf-8"))
    jsonschema.validate(dashboard, DASHBOARD)
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert [row.split()[0] for row in rows] == [
        "Golden",
        "Workers",
        "Queue",
        "Choices",
        "Prefill",
        "Cache",
        "Prefix",
        "Rounds",
        "Foretold",
        "Calibration",
        "Engine",
        "The",
    ]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_no_two_panels_of_the_dashboard_overlap() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/pointsman.json").read_text(encoding="utf-8"))
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for cell in (
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        ):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]


# --- our own names ------------------------------------------------------------------------------------


def test_every_configuration_is_one_that_the_router_takes(tmp_path: Path) -> None:
    compose = load(DEPLOY / "pointsman.yaml")
    assert [worker.url for worker in compose.pools["demo"].workers] == [
        f"http://mocks:{port}" for port in range(9000, 9004)
    ]
    inner = tmp_path / "config.yaml"
    inner.write_text(resources()["ConfigMap"]["data"]["config.yaml"])
    assert load(inner).server.port == 30000


def commands() -> Iterator[list[str]]:
    for name in ("compose.yaml", "pairs.compose.yaml"):
        for service in document(name)["services"].values():
            if service["image"] == "pointsman":
                yield service["command"]
    yield resources()["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    unit = (DEPLOY / "systemd/pointsman.service").read_text(encoding="utf-8")
    for line in re.findall(r"^ExecStart(?:Pre)?=\S+/pointsman (.+)$", unit, re.MULTILINE):
        yield shlex.split(line)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_is_one_that_the_program_takes(words: list[str]) -> None:
    command, *flags = words
    if command == "mock":
        assert mock_parser().parse_args(flags).count == 4
    else:
        assert parse(words)[0] == command


def test_every_configuration_is_mounted_where_its_command_looks() -> None:
    for name, config in (("compose.yaml", "pointsman.yaml"), ("pairs.compose.yaml", "pairs.yaml")):
        router = document(name)["services"]["router"]
        assert f"./{config}:{router['command'][-1]}:ro" in router["volumes"]
    container = resources()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][-1] == container["volumeMounts"][0]["mountPath"] + "/config.yaml"


@pytest.mark.parametrize("name", ["compose.yaml", "pairs.compose.yaml"])
def test_what_compose_mounts_exists(name: str) -> None:
    compose = document(name)
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), volume


def test_prometheus_scrapes_what_compose_runs() -> None:
    services = document("compose.yaml")["services"]
    jobs = document("prometheus/prometheus.yml")["scrape_configs"]
    targets = [target for job in jobs for config in job["static_configs"] for target in config["targets"]]
    assert {target.partition(":")[0] for target in targets} <= set(services)
    assert "router:30000" in targets


def test_nothing_is_killed_while_it_drains() -> None:
    pod = resources()["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > DRAIN_S
    for name in ("compose.yaml", "pairs.compose.yaml"):
        grace = document(name)["services"]["router"]["stop_grace_period"]
        assert int(grace.removesuffix("s")) > DRAIN_S
    unit = (DEPLOY / "systemd/pointsman.service").read_text(encoding="utf-8")
    found = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert found is not None
    assert int(found[1]) > DRAIN_S


def test_the_kubernetes_service_finds_the_pods() -> None:
    found = resources()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == labels
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
