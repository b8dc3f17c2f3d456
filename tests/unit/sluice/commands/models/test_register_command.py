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
from sluicegate.profiles.catalogue.registered_apps import CandidateDocument, Record, Registered
from sluicegate.profiles.formats.catalogue_json import ProfileDocument
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
MEASURED: dict[str, Any] = {"metric": "f1", "varying": ("image",), "threads": (1, 2)}


def version_of(types: tuple[str, ...]) -> Record:
    """What its registration left of an app that is served, as far as it is asked."""
    profiles = tuple(ProfileDocument.model_construct(device_type=kind) for kind in types)
    return Record.model_construct(metric="f1", candidates=(CandidateDocument.model_construct(profiles=profiles),))


def asked(
    home: Path, monkeypatch: pytest.MonkeyPatch, *options: str, types: tuple[str, ...] = ("cpu2", "cuda", "cpu")
) -> dict[str, Any]:
    """What a registration is asked for, of an app that is served on ``TERMS`` and was ``MEASURED`` so."""
    toy = toy_catalogue(("mine",))
    inputs = tuple(replace(one, varying=True) for one in toy.apps["mine"].inputs)
    served = [replace(app, inputs=inputs, **TERMS) for app in toy.apps.values()]
    save_catalogue(Registered(home).folder, Catalogue.of(served, toy.variants.values(), toy.profiles.values()), {})
    monkeypatch.setenv("SLUICE_HOME", str(home))
    found: list[Any] = []

    def register(_: object, request: Any) -> None:
        found.append(request)
        raise typer.Exit

    monkeypatch.setattr(command, "models_of", lambda registered, app: [home / "had.onnx"])
    monkeypatch.setattr(command, "_register", register)
    monkeypatch.setattr(Registered, "served_record", lambda registered, app: version_of(types))
    register_all()
    arguments = ["register", "new.onnx", "--app", "mine", "--validation", "rows.npz", *options]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    return {name: getattr(found[0], name) for name in (*TERMS, *MEASURED)}


@pytest.mark.parametrize(
    ("options", "otherwise"),
    [
        ((), {}),
        (("--slo-ms", "400"), {"slo": 0.4}),
        (("--min-accuracy", "0", "--weight", "1"), {"min_accuracy": 0.0, "weight": 1.0}),
        (("--mcd", "5"), {"promise": Promise(max_consecutive=5)}),
        (("--mk", "1,4"), {"promise": Promise(weakly_hard=(WeaklyHard(1, 4),))}),
        (
            ("--metric", "accuracy", "--varying", "", "--threads", "1"),
            {"metric": "accuracy", "varying": (), "threads": (1,)},
        ),
    ],
)
def test_models_are_added_on_the_terms_that_the_app_is_served_on_but_for_those_that_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], otherwise: dict[str, Any]
) -> None:
    assert asked(tmp_path, monkeypatch, "--add", *options) == {**TERMS, **MEASURED, **otherwise}


def test_models_are_added_for_gpus_alone_where_the_app_is_measured_on_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(tmp_path, monkeypatch, "--add", types=("cuda",))["threads"] == ()


def test_models_that_take_the_place_of_others_bring_terms_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh: dict[str, Any] = {"slo": None, "min_accuracy": None, "weight": None, "promise": Promise()}
    fresh |= {"metric": "accuracy", "varying": (), "threads": (1,)}
    assert asked(tmp_path, monkeypatch) == fresh
