"""The page of settings holds each of them, as it is validated."""

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluicegate.sluice.main import app, register_all
from sluicegate.sluice.settings.settings import load
from sluicegate.sluice.settings.settings_page import as_markdown, groups

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "settings.md"


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == as_markdown(), (
        "write it again: sluice describe settings --markdown > docs/reference/settings.md"
    )


@pytest.mark.parametrize("asked", ["http.port", "HTTP.Port", "SLUICE_HTTP__PORT", "sluice_http__port"])
def test_a_setting_is_found_by_its_name_or_variable_and_told_with_both(asked: str) -> None:
    register_all("describe")
    told = CliRunner().invoke(app, ["describe", "settings", asked]).stdout
    assert "http.port in the environment: SLUICE_HTTP__PORT" in told and "8080" in told
    (found,) = json.loads(CliRunner().invoke(app, ["describe", "settings", asked, "--json"]).stdout)["settings"]
    assert found == {"name": "http.port", "variable": "SLUICE_HTTP__PORT", "kind": "integer", "default": "8080"}


@pytest.mark.parametrize(
    ("asked", "kind", "variable"),
    [
        ("devices.<n>.price", "number", "SLUICE_DEVICES"),
        ("devices.<n>.cores", "list of integer", "SLUICE_DEVICES"),
        ("promises.<app>.partitions", "integer", "SLUICE_PROMISES"),
    ],
)
def test_what_stands_in_lists_and_mappings_of_sections_is_told_field_by_field(
    asked: str, kind: str, variable: str
) -> None:
    register_all("describe")
    (found,) = json.loads(CliRunner().invoke(app, ["describe", "settings", asked, "--json"]).stdout)["settings"]
    assert (found["name"], found["kind"], found["variable"]) == (asked, kind, variable)


def test_whoever_reads_the_page_is_sent_to_no_class() -> None:
    assert not re.findall(r"\b[A-Z]\w*(?:Settings|Fields|Choice|Limits)\b", as_markdown())


@pytest.mark.parametrize(
    ("asked", "near"),
    [(["settings", "http.prt"], "http.port"), (["metrics", "sluice_lag_recods"], "sluice_lag_records")],
)
def test_what_no_setting_or_metric_is_called_is_told_with_the_nearest_that_one_is(asked: list[str], near: str) -> None:
    register_all("describe")
    told = " ".join(CliRunner().invoke(app, ["describe", *asked]).stdout.split())
    assert told == f"no {asked[0][:-1]} has '{asked[1]}' in its name; did you mean {near}?"


def test_a_metric_is_found_in_capitals_too() -> None:
    register_all("describe")
    assert "sluice_lag_records" in CliRunner().invoke(app, ["describe", "metrics", "LAG"]).stdout


def test_every_variable_on_it_is_one_that_sets_something(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    found = {setting.variable: setting for group in groups() for setting in group.settings}
    assert len(found) > 120
    for variable, value, name in (
        ("SLUICE_PLANNER__PERIOD_S", "3.5", "planner.period_s"),
        ("SLUICE_GRPC__PORT", "8001", "grpc.port"),
        ("SLUICE_KAFKA__COMPRESSION", "zstd", "kafka.compression"),
    ):
        assert found[variable].name == name
        monkeypatch.setenv(variable, value)
    chosen = load(None)
    assert (chosen.planner.period_s, chosen.grpc.port, chosen.kafka.compression) == (3.5, 8001, "zstd")
