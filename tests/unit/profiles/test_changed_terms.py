"""Terms of a registered app are changed in place: its variants stay, others do not move, versions keep theirs."""

import json
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, keep_profiles, model_path, save_catalogue
from sluicegate.profiles.catalogue.registered_apps import RECORDS, Record, Registered
from sluicegate.profiles.formats.catalogue_json import AppDocument, app_to_document
from sluicegate.sluice.load.sample_inputs import app_samples
from tests.harness import toy_catalogue


@pytest.fixture
def registered(tmp_path: Path) -> Registered:
    found = Registered(tmp_path)
    save_catalogue(found.folder, toy_catalogue(("one", "two")), {}, {})
    return found


def test_a_catalogue_whose_variants_are_of_no_version_is_read_and_its_app_has_random_samples(
    registered: Registered,
) -> None:
    known = registered.catalogue(verify=False)
    assert known is not None
    assert (registered.served_version("two"), registered.readable_record("two")) == (None, None)
    assert app_samples(known.apps["two"], registered.folder.parent, rows=2).inputs


def test_what_is_named_changes_and_nothing_else(registered: Registered) -> None:
    before = registered.catalogue(verify=False)
    assert before is not None
    registered.change("two", slo=0.08, weight=2.5)
    registered.change("two", min_accuracy=0.75)
    after = registered.catalogue(verify=False)
    assert after is not None
    assert after.apps["two"] == replace(before.apps["two"], slo=0.08, weight=2.5, min_accuracy=0.75)
    assert after.apps["one"] == before.apps["one"]
    assert (after.variants, after.profiles) == (before.variants, before.profiles)


@pytest.mark.parametrize(
    ("app", "terms", "field", "said"),
    [
        ("three", {"slo": 0.1}, "app", "known: one, two"),
        ("one", {"slo": 0.0}, "slo_s", "greater than 0"),
        ("one", {"weight": float("nan")}, "weight", "nan: Input should be a valid number"),
        ("one", {"min_accuracy": 0.91}, "min_accuracy", "the best variant of one has 0.9"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    registered: Registered, app: str, terms: dict[str, float], field: str, said: str
) -> None:
    before = registered.catalogue(verify=False)
    with pytest.raises(InvalidInputError, match=said) as raised:
        registered.change(app, **terms)
    assert raised.value.field == field
    assert registered.catalogue(verify=False) == before


def test_what_another_process_publishes_while_the_lock_is_waited_for_stays(
    registered: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = registered.catalogue(verify=False)
    assert before is not None
    measured = replace(before.profiles["two-v1", "cpu"], load=7.0)
    locked = registered.locked

    def overtaken() -> AbstractContextManager[None]:
        monkeypatch.undo()
        keep_profiles(registered.folder, [measured])
        return locked()

    monkeypatch.setattr(registered, "locked", overtaken)
    after = registered.change("two", slo=0.08)
    assert after.profiles["two-v1", "cpu"] == measured
    assert after.apps["two"].slo == 0.08


def test_a_model_of_one_app_that_is_damaged_stops_no_change_of_another(registered: Registered) -> None:
    known = registered.catalogue(verify=False)
    assert known is not None
    models = {name: name.encode() for name in known.variants}
    variants = [
        replace(v, model=model_path(digest := digest_of(models[name])), digest=digest, size_bytes=len(models[name]))
        for name, v in known.variants.items()
    ]
    known = Catalogue.of(known.apps.values(), variants, known.profiles.values())
    save_catalogue(registered.folder, known, {digest_of(model): model for model in models.values()})
    (registered.folder / known.variants["two-v1"].model).write_bytes(b"cut")
    assert registered.change("one", slo=0.08).apps["one"].slo == 0.08
    measured = replace(known.profiles["one-v1", "cpu"], load=7.0)
    assert keep_profiles(registered.folder, [measured]).profiles["one-v1", "cpu"] == measured
    with pytest.raises(InvalidInputError, match=r"two-v1\.model: 3 bytes where 6 were recorded"):
        registered.change("two", slo=0.08)
    with pytest.raises(InvalidInputError, match=r"two-v1\.model: 3 bytes where 6 were recorded"):
        keep_profiles(registered.folder, [known.profiles["two-v0", "cpu"]])
    registered.retire("one")
    assert registered.apps() == ("two",)


def test_a_version_that_cannot_be_written_is_told_in_one_line(registered: Registered) -> None:
    known = registered.catalogue(verify=False)
    assert known is not None
    (registered.folder / RECORDS).write_bytes(b"a file in its folder's place")
    record = Record(
        app=AppDocument.model_validate_json(json.dumps(app_to_document(known.apps["two"]))),
        version=1,
        key="k",
        metric="accuracy",
        chance=0.1,
        answer_output="out",
        answer_reading="argmax",
        scored_rows=1,
        calibration_rows=0,
        source="m.onnx",
        source_digest="s",
        validation_digest="v",
        registered_at=0.0,
        machine="here",
        notes=(),
        candidates=(),
        skipped={},
    )
    with pytest.raises(ConfigurationError, match=r"cannot write in .*records: .*; set SLUICE_HOME"):
        registered.keep(record, {})
