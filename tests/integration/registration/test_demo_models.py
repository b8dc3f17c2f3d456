"""The demo's models: measured accuracy is what ONNX Runtime answers; the catalogue is made once and served from."""

import asyncio
import fcntl
import itertools
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.tensor import Tensor
from sluicegate.executors.demo_catalogue import demo_apps, demo_folder, ensure_demo_catalogue, machine
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.executors.profile_runner import ProfileOptions, random_rows
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue, load_origin, model_path, save_catalogue
from sluicegate.profiles.catalogue.profiler import Effort
from sluicegate.profiles.demo import digits, langid, signals
from sluicegate.profiles.demo.build_models import FAMILIES, HEAVY, BuiltModel, build, model_names, samples
from sluicegate.profiles.demo.features import features, fit_head
from sluicegate.profiles.demo.synthetic_graphs import MODELS, HeavyFamily
from sluicegate.sluice.main import app as cli
from sluicegate.sluice.main import register_all
from tests.harness import PATIENCE_S

QUICK = ProfileOptions(batches=(1, 8), effort=Effort(least=3, enough=3))
CHEAP = 4
"""Digits up to conv64: the dearest takes many seconds to build."""


@pytest.fixture(scope="module", autouse=True)
def fewer_signals() -> Iterator[None]:
    """The signals' three cheapest models: building the others takes most of the time and shows nothing else."""
    whole = signals.recipes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signals, "recipes", lambda: whole()[:3])
        yield


@pytest.fixture(scope="module")
def built() -> list[BuiltModel]:
    return list(itertools.islice(build(["digits"]), CHEAP))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the signals' catalogue. Tests have copies."""
    folder = tmp_path_factory.mktemp("home")
    ensure_demo_catalogue(folder, apps=["signals"], options=QUICK)
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A home with the signals' catalogue, of the test alone."""
    return Path(shutil.copytree(made, tmp_path / "home"))


@pytest.fixture(scope="module")
def catalogue(made: Path) -> Catalogue:
    return load_catalogue(demo_folder(made, ["signals"]))


async def answered_right(folder: Path, built: list[BuiltModel]) -> dict[str, float]:
    """Share of held-out rows that each model labels right when ONNX Runtime runs it."""
    app = built[0].app
    known = FAMILIES[app.name].dataset()
    catalogue = Catalogue.of([app], [b.variant for b in built], [])
    save_catalogue(folder, catalogue, {b.variant.digest: b.model for b in built})
    (spec,) = app.inputs
    found = {}
    executor = OnnxExecutor(folder, catalogue.apps)
    await executor.start()
    try:
        for b in built:
            await executor.load(b.variant, max_batch=64)
            parts = np.array_split(known.held_out, 30)
            queries = [(Tensor(spec.name, spec.datatype, (len(p), *spec.row_shape), p.tobytes()),) for p in parts]
            done = await executor.run(b.variant.name, queries, len(known.held_out))
            labels = np.frombuffer(done.outputs[1].data, np.int64)
            scores = np.frombuffer(done.outputs[0].data, np.float32).reshape(len(labels), -1)
            assert np.array_equal(scores.argmax(1), labels)
            found[b.variant.name] = float(np.mean(labels == known.held_out_labels))
    finally:
        await executor.close()
    return found


@pytest.mark.thorough
async def test_held_out_accuracy_is_what_the_runtime_answers(tmp_path: Path, built: list[BuiltModel]) -> None:
    right = await answered_right(tmp_path, built)
    for b in built:
        # Rounding may turn a tie or two.
        assert right[b.variant.name] == pytest.approx(b.variant.accuracy, abs=2 / digits.HELD_OUT)


async def test_languages_are_told_apart_better_by_longer_n_grams_in_more_buckets(tmp_path: Path) -> None:
    pytest.importorskip("django", reason="the texts are Django's messages: pip install 'sluicegate[langid]'")
    built = list(build(["langid"]))
    right = await answered_right(tmp_path, built)
    found = [b.variant.accuracy for b in built]
    assert found == sorted(found)
    assert found[0] > 0.6
    assert found[-1] > 0.85
    for b in built:
        assert right[b.variant.name] == pytest.approx(b.variant.accuracy, abs=0.001)


@pytest.mark.thorough
def test_digits_scale_in_accuracy_with_their_cost(built: list[BuiltModel]) -> None:
    found = {b.variant.name: b.variant.accuracy for b in built}
    assert list(found) == model_names(["digits"])[:CHEAP]
    assert found["lin49"] > 0.4
    assert found["conv64"] > 0.8
    for one, other in itertools.pairwise(built):
        noise = 1.96 * np.hypot(one.variant.accuracy_se, other.variant.accuracy_se)
        assert other.variant.accuracy > one.variant.accuracy + noise, "what is dearer is better beyond the noise"
    for b in built:
        assert b.variant.accuracy_se == pytest.approx(
            (b.variant.accuracy * (1 - b.variant.accuracy) / digits.HELD_OUT) ** 0.5
        )


@pytest.mark.parametrize("module", [digits, signals, langid])
def test_what_is_asked_about_no_profile_has_seen_and_what_those_have_no_model(module: ModuleType) -> None:
    known = module.dataset()
    asked, labels = module.asked()
    sides = [{row.tobytes() for row in rows} for rows in (known.inputs, known.held_out, asked)]
    assert not any(one & other for one, other in itertools.combinations(sides, 2))
    assert set(known.held_out_labels) == set(labels) == set(range(known.classes))
    found = samples(module.APP.name)
    assert np.array_equal(found.inputs, asked)
    assert np.array_equal(found.labels, labels)


def test_signals_come_from_their_seed_alone() -> None:
    first, labels = signals.generate(50, 3)
    again, same = signals.generate(50, 3)
    assert np.array_equal(first, again)
    assert np.array_equal(labels, same)
    assert first.shape == (50, 40)
    assert not np.array_equal(first, signals.generate(50, 4)[0])


def test_both_sides_of_ridge_regression_give_the_same_head() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 40)
    narrow = (rng.standard_normal((40, 30)) + 3 * np.eye(30)[labels]).astype(np.float32)
    wide = np.concatenate([narrow, np.zeros((40, 30), np.float32)], axis=1)
    # Forty rows: thirty columns are solved on one side, sixty on the other; the penalty is relative to the smaller.
    one, other = fit_head(narrow, labels, 3, 0.1 * 30 / 40), fit_head(wide, labels, 3, 0.1)
    assert np.allclose(other.weights[:30], one.weights, atol=1e-4)
    assert np.allclose(other.weights[30:], 0.0)
    assert np.allclose(other.intercept, one.intercept, atol=1e-4)
    assert np.mean((wide @ other.weights + other.intercept).argmax(1) == labels) > 0.9


def test_features_pool_every_filter_over_its_cells() -> None:
    recipe = replace(digits.recipes()[1], pool=(12, 12))
    x = features(recipe, digits.dataset().inputs[:3])
    assert x.shape == (3, 8)
    finer = features(replace(recipe, pool=(6, 6)), digits.dataset().inputs[:3]).reshape(3, 8, 4)
    assert np.allclose(finer.mean(2), x, rtol=1e-4, atol=1e-5)


def test_the_catalogue_is_made_once_and_profiled(home: Path, catalogue: Catalogue) -> None:
    told: list[str] = []
    again = ensure_demo_catalogue(home, lambda what, done: told.append(what), apps=["signals"])
    assert again == catalogue
    assert told == []
    assert set(catalogue.profiles) == {(v, "cpu") for v in catalogue.variants}
    for profile in catalogue.profiles.values():
        assert [p.batch for p in profile.points] == [1, 8]
        assert all(0 < p.cpu < p.median <= p.p95 for p in profile.points)
        assert profile.load > 0
    assert load_origin(demo_folder(home, ["signals"]))["machine"] == machine()


def test_who_waits_while_another_process_makes_the_catalogue_hears_of_it(home: Path, catalogue: Catalogue) -> None:
    folder = demo_folder(home, ["signals"])
    folder.rename(home / "elsewhere")
    told: Queue[str] = Queue()
    with (home / ".building").open("w") as held, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        waits = pool.submit(ensure_demo_catalogue, home, lambda what, done: told.put(what), apps=["signals"])
        try:
            assert told.get(timeout=PATIENCE_S) == "made by another process"
        finally:
            (home / "elsewhere").rename(folder)
            fcntl.flock(held, fcntl.LOCK_UN)
        assert waits.result(PATIENCE_S) == catalogue
    assert told.empty()


def test_a_catalogue_of_another_machine_or_a_damaged_one_is_made_again(home: Path, catalogue: Catalogue) -> None:
    folder = demo_folder(home, ["signals"])
    elsewhere = {**load_origin(folder), "machine": "abacus x1"}
    save_catalogue(folder, catalogue, {}, elsewhere)
    told: list[float] = []
    made = ensure_demo_catalogue(home, lambda what, done: told.append(done), apps=["signals"], options=QUICK)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert made.variants == catalogue.variants
    (folder / model_path(made.variants["lin40"].digest)).write_bytes(b"damaged")
    mended = ensure_demo_catalogue(home, apps=["signals"], options=QUICK)
    assert mended.variants == catalogue.variants
    assert load_catalogue(folder) == mended


def test_a_home_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="SLUICE_HOME"):
        ensure_demo_catalogue(tmp_path / "file" / "home", apps=["signals"])
    with pytest.raises(InvalidInputError, match="no labelled samples"):
        samples("nonesuch")


def test_random_rows_fit_their_app() -> None:
    for app in (digits.APP, signals.APP):
        rows = random_rows(app, 3, 1)
        assert len(rows) == 3
        assert all(t.shape == (1, *s.row_shape) for row in rows for t, s in zip(row, app.inputs, strict=True))
        assert all(len(t.data) == s.row_bytes for row in rows for t, s in zip(row, app.inputs, strict=True))


def test_the_catalogue_can_be_prepared_inside_a_running_loop(tmp_path: Path) -> None:
    async def inside() -> Catalogue:
        return ensure_demo_catalogue(tmp_path, apps=["signals"], options=QUICK)

    assert list(asyncio.run(inside()).apps) == ["signals"]


def test_variants_and_profile_speak_json_and_tables(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_CATALOGUE", str(demo_folder(home, ["signals"])))
    register_all()
    run = CliRunner().invoke
    listed = json.loads(run(cli, ["variants", "--json"]).stdout)
    assert [v["variant"] for v in listed["apps"]["signals"]][-1] == "lin40"
    assert "wave32" in run(cli, ["variants", "--app", "signals"]).stdout
    arguments = ["profile", "--app", "signals", "--batches", "1,2", "--repeats", "3", "--device-type", "test"]
    measured = json.loads(run(cli, [*arguments, "--json"]).stdout)
    assert {p["device_type"] for p in measured["profiles"]} == {"test"}
    profiles = load_catalogue(demo_folder(home, ["signals"])).profiles
    assert {device_type for _, device_type in profiles} == {"cpu", "test"}
    for wrong in (
        ["profile"],
        ["profile", "--app", "nope"],
        ["profile", "--all", "--batches", "x"],
        ["variants", "--app", "x"],
    ):
        failed = run(cli, wrong)
        assert failed.exit_code == 2
        assert failed.stderr.startswith("error --")


def test_the_catalogue_that_is_made_holds_the_apps_that_are_asked_for(tmp_path: Path) -> None:
    assert demo_apps(()) == demo_apps(("digits",)) == demo_apps(("somebody-elses",)) == ("digits", "signals")
    assert demo_apps(("text", "digits")) == ("digits", "text")
    assert demo_folder(tmp_path) == tmp_path / "catalogue"
    assert demo_folder(tmp_path, ("digits", "text")) != demo_folder(tmp_path)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet-b0", "bert-mini"])
async def test_heavy_graphs_run_and_say_that_their_accuracy_is_nominal(tmp_path: Path, name: str) -> None:
    model = MODELS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            HEAVY,
            model.app.name,
            SimpleNamespace(APP=model.app, recipes=lambda: [model], fit=HeavyFamily(model.app).fit),
        )
        (b,) = build([model.app.name])
    assert b.variant.nominal
    assert b.variant.accuracy == model.accuracy
    save_catalogue(tmp_path, Catalogue.of([b.app], [b.variant], []), {b.variant.digest: b.model})
    executor = OnnxExecutor(tmp_path, {b.app.name: b.app})
    await executor.start()
    try:
        await executor.load(b.variant, max_batch=2)
        done = await executor.run(name, random_rows(b.app, 2, 0), 2)
        assert [(t.name, t.shape) for t in done.outputs] == [("label", (2,))]
        assert done.cpu_s > 0.002
    finally:
        await executor.close()


def test_heavier_models_cost_more_and_are_nominally_better() -> None:
    for app in HEAVY.values():
        by_family: dict[str, list[float]] = {}
        for recipe in app.recipes():
            by_family.setdefault(recipe.family, []).append(recipe.accuracy)
        assert all(found == sorted(found) and len(found) >= 3 for found in by_family.values())
    with pytest.raises(InvalidInputError, match="no labelled samples"):
        samples("image")
