"""The page of settings holds each of them, as it is validated."""

import os
from pathlib import Path

import pytest

from sluicegate.sluice.settings.settings import load
from sluicegate.sluice.settings.settings_page import as_markdown, groups

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "settings.md"


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == as_markdown(), (
        "write it again: sluice describe settings --markdown > docs/reference/settings.md"
    )


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
