"""Terms of a registered app are changed in place: its variants stay, others do not move, versions keep theirs."""

from dataclasses import replace
from pathlib import Path

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from tests.harness import toy_catalogue


@pytest.fixture
def registered(tmp_path: Path) -> Registered:
    found = Registered(tmp_path)
    save_catalogue(found.folder, toy_catalogue(("one", "two")), {}, {})
    return found


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
        ("one", {"weight": float("nan")}, "weight", "valid number"),
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
