"""Dashboards, alerts, scrapes: every query is PromQL about what exists, every alert has a runbook."""

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import promql_parser
import pytest
import yaml

from sluicegate.stages.telemetry.metric_catalogue import BY_NAME, Kind

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = ROOT / "compose"
OF_THE_LIBRARY = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
GIVEN = {"job", "instance", "le"}


def module() -> Any:
    spec = importlib.util.spec_from_file_location("dashboards", COMPOSE / "grafana" / "make_dashboards.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((COMPOSE / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[tuple[str, str]]:
    """(where, PromQL) of all panels and alerts."""
    found = [(rule["alert"], rule["expr"]) for rule in rules()]
    for board in sorted((COMPOSE / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(board.read_text())["panels"]:
            found += [(f"{board.stem}: {panel['title']}", target["expr"]) for target in panel["targets"]]
    return found


def selectors(expression: Any) -> Iterator[Any]:
    """All vector selectors below."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        below = getattr(expression, name, None)
        if below is not None:
            yield from selectors(below)
    for argument in getattr(expression, "args", None) or ():
        yield from selectors(argument)


def metric_of(name: str) -> Any:
    metric = BY_NAME.get(name) or BY_NAME.get(name.removesuffix("_total"))
    if metric is None:
        metric = BY_NAME[re.sub(r"_(bucket|sum|count)$", "", name)]
        assert metric.kind is Kind.HISTOGRAM, name
    else:
        assert name == metric.exported and metric.kind is not Kind.HISTOGRAM, name
    return metric


@pytest.mark.parametrize(("where", "query"), queries(), ids=lambda value: None if " " in value else value)
def test_a_query_is_about_metrics_and_labels_that_exist(where: str, query: str) -> None:
    found = list(selectors(promql_parser.parse(query.replace("$app", ".*"))))
    assert found, where
    labels = set(GIVEN)
    for selector in found:
        if selector.name in OF_THE_LIBRARY:
            continue
        metric = metric_of(selector.name)
        labels |= set(metric.labels)
        for matcher in selector.matchers.matchers:
            assert matcher.name in {*metric.labels, *GIVEN}, f"{where}: {selector.name} has no label {matcher.name}"
    for group in re.findall(r"by \(([^)]*)\)", query):
        assert set(group.replace(" ", "").split(",")) <= labels, where


def test_the_dashboards_are_written_by_their_script() -> None:
    for name, text in module().texts().items():
        assert (COMPOSE / "grafana" / "dashboards" / name).read_text() == text, "run compose/grafana/make_dashboards.py"


def test_legends_name_labels_that_the_queries_keep() -> None:
    for board in (COMPOSE / "grafana" / "dashboards").glob("*.json"):
        for panel in json.loads(board.read_text())["panels"]:
            for target in panel["targets"]:
                group = re.search(r"sum by \(([^)]*)\)|max by \(([^)]*)\)", target["expr"])
                named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                if group is not None:
                    assert named <= set((group[1] or group[2]).replace(" ", "").split(",")), panel["title"]


def test_every_alert_has_a_section_in_the_runbook_and_every_section_an_alert() -> None:
    page = (ROOT / "docs" / "guide" / "operations.md").read_text()
    runbook = page.split("## Runbook", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^### (\w+)", runbook, re.MULTILINE)) == {rule["alert"] for rule in rules()}
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules())


def test_every_stage_is_scraped() -> None:
    scrapes = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    services = yaml.safe_load((COMPOSE / "docker-compose.yml").read_text())["services"]
    stages = {f"{name}:9464" for name, s in services.items() if s.get("command", [])[:2] == ["sluice", "up"]}
    assert set(scrapes[0]["static_configs"][0]["targets"]) == stages
    assert scrapes[0]["authorization"]["credentials_file"] == "/run/secrets/token"


def test_the_stages_that_a_gpu_adds_are_scraped_where_they_are() -> None:
    services = yaml.safe_load((COMPOSE / "docker-compose.gpu.yml").read_text())["services"]
    added = {f"{name}:9464" for name, s in services.items() if s.get("command", [])[:2] == ["sluice", "up"]}
    (mounted,) = services["prometheus"]["volumes"]
    source, place, _ = mounted.split(":")
    (targets,) = yaml.safe_load((COMPOSE / source).read_text())
    assert set(targets["targets"]) == added == {"worker-gpu0:9464"}
    scrapes = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (files,) = scrapes[0]["file_sd_configs"][0]["files"]
    assert PurePath(place).match(files)


@pytest.mark.parametrize(
    "check",
    [
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=lambda check: " ".join(check[:2]),
)
def test_prometheus_own_tool_finds_nothing_wrong(check: tuple[str, ...]) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool: install the package prometheus")
    told = subprocess.run(
        [tool, *check], cwd=COMPOSE / "prometheus", capture_output=True, text=True, timeout=500, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
