"""``sluice register``: what it asks for by its options."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.commands.models import register as command
from sluicegate.sluice.main import app as cli
from sluicegate.sluice.main import register_all
from tests.harness import toy_catalogue

TERMS: dict[str, Any] = {
    "slo": 0.25,
    "min_accuracy": 0.75,
    "weight": 3.0,
    "promise": Promise(max_consecutive=2, weakly_hard=(WeaklyHard(3, 10),)),
}


def asked(home: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    """Terms that a registration is asked for, of an app that is served on ``TERMS``."""
    toy = toy_catalogue(("mine",))
    served = [replace(app, **TERMS) for app in toy.apps.values()]
    save_catalogue(Registered(home).folder, Catalogue.of(served, toy.variants.values(), toy.profiles.values()), {})
    monkeypatch.setenv("SLUICE_HOME", str(home))
    found: list[Any] = []

    def register(_: object, request: Any) -> None:
        found.append(request)
        raise typer.Exit

    monkeypatch.setattr(command, "models_of", lambda registered, app: [home / "had.onnx"])
    monkeypatch.setattr(command, "_register", register)
    register_all()
    arguments = ["register", "new.onnx", "--app", "mine", "--validation", "rows.npz", *options]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    return {name: getattr(found[0], name) for name in TERMS}


@pytest.mark.parametrize(
    ("options", "otherwise"),
    [
        ((), {}),
        (("--slo-ms", "400"), {"slo": 0.4}),
        (("--min-accuracy", "0", "--weight", "1"), {"min_accuracy": 0.0, "weight": 1.0}),
        (("--mcd", "5"), {"promise": Promise(max_consecutive=5)}),
        (("--mk", "1,4"), {"promise": Promise(weakly_hard=(WeaklyHard(1, 4),))}),
    ],
)
def test_models_are_added_on_the_terms_that_the_app_is_served_on_but_for_those_that_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], otherwise: dict[str, Any]
) -> None:
    assert asked(tmp_path, monkeypatch, "--add", *options) == {**TERMS, **otherwise}


def test_models_that_take_the_place_of_others_bring_terms_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = {"slo": None, "min_accuracy": None, "weight": None, "promise": Promise()}
    assert asked(tmp_path, monkeypatch) == fresh
