"""Registration, from a model to what is served: measured, judged, interrupted, gone on with, versions."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.executors.onnx import variant_builder
from sluicegate.executors.onnx.variant_builder import GeneratorLimits, VariantMaker, check_model
from sluicegate.profiles.catalogue.catalogue_folder import keep_profiles
from sluicegate.profiles.catalogue.profiler import BATCH_SIZES, Effort
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.registration.register import Registration, register, register_model
from tests.harness import PATIENCE_S
from tests.models.registration_models import (
    CLASSES,
    FEATURES,
    labelled_rows,
    linear,
    model_of,
    request_of,
    weights,
    write_model,
    write_rows,
)
from tests.outside.forked import begun_anew

SLUICE = [sys.executable, "-P", "-m", "sluicegate.sluice.main"]


@pytest.fixture(scope="module")
def sklearn_registered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Registration, Path]:
    """A scikit-learn pipeline for handwritten digits, registered as a user would."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folder = tmp_path_factory.mktemp("own")
    x, y = load_digits(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(x[:900], y[:900])
    write_model(folder, convert(pipeline, x[:1].astype(np.float32)))
    np.savez(folder / "rows.npz", pixels=x[900:], y=y[900:])
    home = folder / "home"
    request = request_of(
        folder / "model.onnx", folder / "rows.npz", batches=BATCH_SIZES, effort=Effort(least=7, enough=8, share=0.01)
    )
    return register(request, home), home


def convert(model: Any, row: Any) -> bytes:
    """A scikit-learn model as its users export it, with a map of probabilities."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the converter's own dependencies
        from skl2onnx import to_onnx

        data: bytes = to_onnx(model, row).SerializeToString()
    return data


def test_at_least_four_variants_of_a_scikit_learn_model_are_made_and_measured(
    sklearn_registered: tuple[Registration, Path],
) -> None:
    record = sklearn_registered[0].record
    assert len(record.candidates) >= 4
    assert record.calibration_rows == 128
    assert record.scored_rows == 897 - 128
    for candidate in record.candidates:
        assert candidate.variant.accuracy > 0.85
        assert 0.0 < candidate.variant.accuracy_se < 0.03
        (profile,) = candidate.profiles
        assert [p.batch for p in profile.points] == list(BATCH_SIZES)
        assert all(0.0 < p.median_s <= p.p95_s and p.cpu_s > 0.0 for p in profile.points)
        assert profile.load_s > 0.0
        assert profile.memory_bytes >= candidate.variant.size_bytes
        assert all(s.low_s <= s.median_s <= s.high_s and s.samples >= 7 for s in candidate.spreads["cpu"])
        assert candidate.served == (candidate.reason == "")


def test_only_what_is_served_is_in_the_catalogue_and_a_map_of_probabilities_gave_way_to_scores(
    sklearn_registered: tuple[Registration, Path],
) -> None:
    made, home = sklearn_registered
    catalogue = Registered(home).catalogue()
    assert catalogue is not None
    assert set(catalogue.variants) == {c.variant.name for c in made.record.candidates if c.served}
    assert any(not c.served for c in made.record.candidates)
    app = catalogue.apps["mine"]
    assert [s.row_shape for s in app.inputs] == [(64,)]
    assert {s.row_shape for s in app.outputs} == {(), (10,)}


def test_int8_of_features_that_were_never_scaled_collapses_is_caught_and_not_served(tmp_path: Path) -> None:
    from sklearn.datasets import load_wine
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    x, y = load_wine(return_X_y=True)
    model = LinearDiscriminantAnalysis().fit(x[::2], y[::2])
    path = write_model(tmp_path, convert(model, x[:1].astype(np.float32)))
    np.savez(tmp_path / "rows.npz", X=np.concatenate([x[1::2]] * 2), label=np.concatenate([y[1::2]] * 2))
    record = register(request_of(path, tmp_path / "rows.npz"), tmp_path / "home").record
    by_recipe = {c.recipe: c for c in record.candidates}
    assert by_recipe["fp32"].variant.accuracy > 0.9
    for recipe in ("int8-dynamic", "int8-static"):
        collapsed = by_recipe[recipe]
        assert collapsed.variant.accuracy < 0.7
        assert collapsed.gap > 10 * collapsed.gap_se
        assert not collapsed.served
        assert collapsed.reason.startswith("collapsed: ")
    catalogue = Registered(tmp_path / "home").catalogue()
    assert catalogue is not None
    assert not any("int8" in name for name in catalogue.variants)


def test_a_forest_is_also_served_with_fewer_trees(tmp_path: Path) -> None:
    from sklearn.ensemble import RandomForestClassifier

    x, labels = labelled_rows(600)
    forest = RandomForestClassifier(64, random_state=0).fit(x[:300], labels[:300])
    path = write_model(tmp_path, convert(forest, x[:1]))
    np.savez(tmp_path / "rows.npz", X=x[300:], label=labels[300:])
    record = register(request_of(path, tmp_path / "rows.npz"), tmp_path / "home").record
    by_recipe = {c.recipe: c.variant for c in record.candidates}
    assert len(by_recipe) >= 4
    assert by_recipe["trees-eighth"].size_bytes < by_recipe["trees-half"].size_bytes < by_recipe["fp32"].size_bytes
    assert by_recipe["trees-half"].accuracy > 0.8


def test_a_batch_axis_fixed_at_one_is_made_free_also_through_a_reshape(tmp_path: Path) -> None:
    model = model_of(
        [h.make_node("Reshape", ["x", "shape"], ["flat"]), h.make_node("MatMul", ["flat", "w"], ["scores"])],
        {"shape": np.array([1, FEATURES], np.int64), "w": weights()},
        inputs=[h.make_tensor_value_info("x", T.FLOAT, [1, 2, FEATURES // 2])],
        outputs=[h.make_tensor_value_info("scores", T.FLOAT, [1, CLASSES])],
    )
    x, labels = labelled_rows()
    rows = write_rows(tmp_path, x=x.reshape(-1, 2, FEATURES // 2), label=labels)
    made = register(request_of(write_model(tmp_path, model), rows), tmp_path / "home")
    assert "the batch axis was fixed at 1 and is free now" in made.record.notes
    assert made.record.candidates[0].variant.accuracy > 0.8


def test_weights_beside_the_model_and_rows_in_a_folder_are_taken(tmp_path: Path) -> None:
    model = linear()
    onnx.save_model(
        model, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    folder = tmp_path / "rows"
    x, labels = labelled_rows()
    for c in range(CLASSES):
        (folder / str(c)).mkdir(parents=True)
        for i in np.flatnonzero(labels == c):
            np.save(folder / str(c) / f"{i}.npy", x[i])
    made = register(request_of(tmp_path / "model.onnx", folder), tmp_path / "home")
    assert made.record.candidates[0].variant.accuracy > 0.8
    assert made.record.candidates[0].variant.size_bytes > weights().nbytes


def test_numbers_are_judged_by_r2(tmp_path: Path) -> None:
    x, _ = labelled_rows()
    slope = np.linspace(-1, 1, FEATURES, dtype=np.float32)[:, None]
    model = model_of(
        [h.make_node("MatMul", ["x", "w"], ["y"])],
        {"w": slope},
        outputs=[h.make_tensor_value_info("y", T.FLOAT, ["n", 1])],
    )
    truth = (x @ slope)[:, 0] + 0.1 * np.random.default_rng(3).standard_normal(len(x))
    rows = write_rows(tmp_path, x=x, target=truth)
    record = register(request_of(write_model(tmp_path, model), rows, metric="r2"), tmp_path / "home").record
    assert 0.9 < record.candidates[0].variant.accuracy < 1.0
    assert record.answer_reading == "number"


@pytest.mark.parametrize("limits", [GeneratorLimits(seconds=0.001), GeneratorLimits(memory_bytes=1 << 26)])
async def test_a_recipe_that_takes_too_long_or_its_process_with_it_yields_none_and_the_next_is_tried(
    tmp_path: Path, limits: GeneratorLimits
) -> None:
    path = write_model(tmp_path, linear())
    x, _ = labelled_rows()
    with begun_anew():  # what a process imports takes more than these limits
        async with VariantMaker(path, ["optimised", "fp16"], {"x": x}, limits) as maker:
            for recipe in ("optimised", "fp16"):
                made = await maker.make(recipe)
                assert made.model is None
                assert made.skipped.startswith("could not be made: it")
    async with VariantMaker(path, ["optimised", "fp16"], {"x": x}) as maker:
        assert (await maker.make("optimised")).model
        assert (await maker.make("fp16")).model


@pytest.mark.parametrize("recipe", ["optimised", "fp16"])  # written by ONNX Runtime, and by us
async def test_a_recipe_for_which_there_is_no_room_is_made_once_there_is(tmp_path: Path, recipe: str) -> None:
    wide = np.random.default_rng(0).standard_normal((FEATURES, 1 << 13)).astype(np.float32)
    outputs = [h.make_tensor_value_info("scores", T.FLOAT, ["n", 1 << 13])]
    model = model_of([h.make_node("MatMul", ["x", "w"], ["scores"])], {"w": wide}, outputs=outputs)
    path, (x, _) = write_model(tmp_path, model), labelled_rows()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with begun_anew():  # what is forked has the limits of its host
        async with VariantMaker(path, [recipe], {"x": x}) as maker:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
            try:
                with pytest.raises(ConfigurationError, match="File too large; make room"):
                    await maker.make(recipe)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
        async with VariantMaker(path, [recipe], {"x": x}) as maker:
            assert (await maker.make(recipe)).model


async def test_a_model_that_there_is_no_room_to_check_is_not_blamed(tmp_path: Path) -> None:
    model = linear()
    model.doc_string = "x" * (1 << 17)
    path = write_model(tmp_path, model)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with begun_anew(), pytest.raises(ConfigurationError, match="File too large; make room"):
            await check_model(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_recipe_that_is_broken_off_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, place = write_model(tmp_path, linear()), tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    x, _ = labelled_rows(500_000)  # which it does not come to the end of
    async with VariantMaker(path, ["int8-static"], {"x": x}) as maker:
        making = asyncio.create_task(maker.make("int8-static"))
        async with asyncio.timeout(PATIENCE_S):
            while not any("before.onnx" in names for *_, names in os.walk(place)):
                await asyncio.sleep(0.005)
        assert not making.done()
        making.cancel()
    assert list(place.iterdir()) == []


def stopper(at: str) -> Callable[[str, float], None]:
    """Cancels the task that runs at the first step whose name begins with ``at``."""
    job = asyncio.current_task()
    assert job is not None

    def told(what: str, done: float) -> None:
        if what.startswith(at):
            job.cancel()

    return told


@pytest.mark.thorough
async def test_cancelled_anywhere_it_shows_nothing_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    request = request_of(write_model(tmp_path, linear()), write_rows(tmp_path))
    home = tmp_path / "home"
    seen: list[str] = []
    for stop_at in ("make optimised", "make int8-static", "profile"):
        with pytest.raises(asyncio.CancelledError):
            await register_model(request, home, stopper(stop_at))
        assert Registered(home).apps() == ()
    seen.clear()
    made = await register_model(request, home, lambda what, done: seen.append(what))
    assert made.resumed
    assert not any("answer with" in what for what in seen), "answers of the registered model were kept"
    assert Registered(home).apps() == ("mine",)
    assert not any((home / "registered" / "jobs").iterdir())


async def test_recipes_whose_process_was_killed_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of(write_model(tmp_path, linear()), write_rows(tmp_path))
    begin = variant_builder._start

    async def killed(folder: Path, task: dict[str, Any], limits: GeneratorLimits) -> asyncio.subprocess.Process:
        process = await begin(folder, task, limits)
        if task["op"] == "make":
            os.kill(process.pid, signal.SIGKILL)
        return process

    with monkeypatch.context() as patch:
        patch.setattr(variant_builder, "_start", killed)
        with pytest.raises(asyncio.CancelledError):
            await register_model(request, tmp_path / "home", stopper("load"))
    made = await register_model(request, tmp_path / "home")
    assert made.resumed
    assert len(made.record.candidates) >= 4 and not any("SIGKILL" in why for why in made.record.skipped.values())


async def test_answers_that_a_machine_lost_with_its_power_are_made_again(tmp_path: Path) -> None:
    request = request_of(write_model(tmp_path, linear()), write_rows(tmp_path))
    home = tmp_path / "home"
    with pytest.raises(asyncio.CancelledError):
        await register_model(request, home, stopper("load"))
    answers = sorted((home / "registered" / "jobs").glob("*/answers-*.npz"))
    assert len(answers) >= 4
    for i, file in enumerate(answers):
        whole = file.read_bytes()
        file.write_bytes((whole[: len(whole) // 2], b"", whole[:-1])[i % 3])
    made = await register_model(request, home)
    assert made.resumed and len(made.record.candidates) == len(answers)
    assert Registered(home).apps() == ("mine",)


def test_killed_it_goes_on_and_meanwhile_nobody_sees_it(tmp_path: Path) -> None:
    model, rows, home = write_model(tmp_path, linear()), write_rows(tmp_path), tmp_path / "home"
    command = [*SLUICE, "register", str(model), "--app", "mine", "--validation", str(rows), "--json", "--repeats", "7"]
    environment = {**os.environ, "SLUICE_HOME": str(home)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    kept = home / "registered" / "jobs"
    end = time.monotonic() + 300.0
    while not list(kept.glob("*/recipe-optimised.json")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert Registered(home).apps() == ()
    again = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=500)
    told = json.loads(again.stdout)
    assert told["resumed"] is True
    assert len(told["variants"]) >= 4
    assert set(told["variants"][0]) >= {
        "name", "accuracy", "accuracy_se", "latency_ms", "load_ms", "memory_bytes", "served", "reason"
    }  # fmt: skip
    assert Registered(home).apps() == ("mine",)


def test_the_same_again_is_known_another_model_is_a_new_version_and_old_ones_can_be_served_again(
    tmp_path: Path,
) -> None:
    home, rows = tmp_path / "home", write_rows(tmp_path)
    first = request_of(write_model(tmp_path, linear()), rows)
    register(first, home)
    assert register(first, home).known
    changed = model_of([h.make_node("MatMul", ["x", "w"], ["scores"])], {"w": 2 * weights()})
    promise = Promise(max_consecutive=2, weakly_hard=(WeaklyHard(4, 10),))
    second = replace(first, model=write_model(tmp_path, changed, "second.onnx"), promise=promise)
    assert register(second, home).record.version == 2
    registered = Registered(home)
    assert registered.served_version("mine") == 2
    catalogue = registered.catalogue()
    assert catalogue is not None
    assert all(name.startswith("mine.v2.") for name in catalogue.variants)
    assert catalogue.apps["mine"].promise == promise
    registered.publish(registered.record("mine", 1))
    assert registered.served_version("mine") == 1
    name = next(c.variant.name for c in registered.record("mine", 1).candidates if c.served)
    measured = {
        (n, kind): Profile(variant=n, device_type=kind, points=(BatchLatency(1, 0.5, 0.6),))
        for n, kind in ((name, "cpu"), (name, "cuda"), ("of.another", "cpu"))
    }
    assert keep_profiles(registered.folder, measured.values()).profiles[name, "cpu"].points[0].median == 0.5
    registered.retire("mine")
    assert registered.apps() == ()
    assert registered.versions("mine") == (1, 2)
    with pytest.raises(InvalidInputError, match="not registered"):
        registered.retire("mine")
    assert register(second, home).known
    assert registered.served_version("mine") == 2
    for _ in range(2):  # from another version's place, and from its own
        served = registered.publish(registered.record("mine", 1)).profiles
        assert {pair: p for pair, p in served.items() if pair[0] == name} == {
            pair: p for pair, p in measured.items() if pair[0] == name
        }
    registered.retire("mine")
    last = registered.folder / "records" / "mine.v1.served.json"
    last.write_bytes(last.read_bytes()[:500])
    served = registered.publish(registered.record("mine", 1)).profiles
    assert (name, "cuda") not in served and served[name, "cpu"] != measured[name, "cpu"]


def test_an_app_whose_record_is_damaged_is_listed_and_can_be_registered_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    request = request_of(write_model(tmp_path, linear()), write_rows(tmp_path))
    register(request, home)
    record = Registered(home).folder / "records" / "mine.v1.json"
    record.write_bytes(record.read_bytes()[:500])
    listed = subprocess.run(
        [*SLUICE, "variants", "--json"],
        env={**os.environ, "SLUICE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    served = json.loads(listed.stdout)["apps"]["mine"]
    assert served and all(row["served"] for row in served)
    again = register(request, home)
    assert (again.known, again.record.version, Registered(home).served_version("mine")) == (False, 2, 2)
    assert register(request, home).known
    with pytest.raises(InvalidInputError, match="damaged; register the app again"):
        Registered(home).record("mine", 1)


@pytest.mark.parametrize("damaged", ["model", "samples"])
def test_what_was_damaged_of_a_version_is_made_again_when_it_is_registered_again(damaged: str, tmp_path: Path) -> None:
    registered = Registered(tmp_path / "home")
    request = request_of(write_model(tmp_path, linear()), write_rows(tmp_path))
    first = register(request, tmp_path / "home").record
    served = next(c.variant.model for c in first.candidates if c.served)
    path = registered.folder / {"model": served, "samples": "records/mine.v1.npz"}[damaged]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InvalidInputError, match="register"):
        registered.catalogue() if damaged == "model" else registered.samples("mine")
    again = register(request, tmp_path / "home")
    assert (again.known, again.record.version) == (False, 2)
    assert registered.catalogue() is not None
    assert [len(rows) for rows in registered.samples("mine")] == [64, 64]
    assert register(request, tmp_path / "home").known


def test_apps_of_the_demo_and_one_that_is_being_registered_are_refused(tmp_path: Path) -> None:
    request = request_of(write_model(tmp_path, linear()), write_rows(tmp_path))
    with pytest.raises(InvalidInputError, match="demo"):
        register(replace(request, app="digits"), tmp_path / "home")
    with (
        Registered(tmp_path / "home").locked("mine-job"),
        pytest.raises(ConfigurationError, match="another process"),
    ):
        register(request, tmp_path / "home")


def test_terms_that_cannot_be_kept_are_refused_before_anything_is_served(tmp_path: Path) -> None:
    home = tmp_path / "home"
    asked = request_of(write_model(tmp_path, linear()), write_rows(tmp_path), slo=0.05)
    registered = Registered(home)
    for wrong in (replace(asked, min_accuracy=1.5), replace(asked, weight=-1.0)):
        with pytest.raises(InvalidInputError, match="min_accuracy" if wrong.min_accuracy else "weight"):
            register(wrong, home)
        assert registered.versions("mine") == (), "nothing was measured"
    with pytest.raises(InvalidInputError, match=r"min_accuracy: 1: the best variant of mine has 0\."):
        register(replace(asked, min_accuracy=1.0), home)
    assert registered.apps() == () and registered.versions("mine") == (1,)

    def terms() -> tuple[float, float, float]:
        catalogue = registered.catalogue()
        assert catalogue is not None
        served = catalogue.apps["mine"]
        return served.slo, served.min_accuracy, served.weight

    assert register(replace(asked, min_accuracy=0.25, weight=3.0), home).known
    assert terms() == (0.05, 0.25, 3.0)
    register(replace(asked, weight=2.0), home)
    assert terms() == (0.05, 0.25, 2.0)
    registered.change("mine", slo=0.08)
    assert register(asked, home).known
    assert terms() == (0.05, 0.25, 2.0)


def test_what_is_wrong_is_called_as_its_option_is(tmp_path: Path) -> None:
    environment = {**os.environ, "SLUICE_HOME": str(tmp_path / "home")}
    rows = write_rows(tmp_path)
    given = (str(write_model(tmp_path, linear())), "--validation", str(rows))
    for options, shown in (
        (("--slo-ms", "0"), "--slo-ms: 0; give milliseconds"),
        (("--slo-ms", "nan"), "--slo-ms: nan; give milliseconds"),
        (("--slo-ms", "3600001"), "--slo-ms: 3600001; give milliseconds"),
        (("--version", "9"), "--version: mine has no version 9; it has none"),
        (("--weight", "2"), "--app: 'mine' is not registered"),
        ((*given, "--weight", "-1"), "--weight: -1.0: "),
        ((*given, "--min-accuracy", "1.5"), "--min-accuracy: 1.5: "),
        ((*given, "--threads", "300"), "--threads: [300]; give numbers"),
        ((*given, "--metric", "speed"), "--metric: 'speed' is unknown"),
        ((*given, "--varying", "z"), "--varying: 'z' is no input"),
        ((given[0], "--validation", "none.npz"), "--validation: none.npz is not there"),
        (("s3://b/m.onnx", "--validation", str(rows), "--sha256", "abc"), "--sha256: 'abc'; give 64"),
    ):
        command = [*SLUICE, "register", "--app", "mine", *options]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 2 and shown in done.stderr, done.stderr


def test_an_option_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    environment = {**os.environ, "SLUICE_HOME": str(tmp_path)}
    for options, shown in (
        (("--retire", "--slo-ms", "20"), "--slo-ms: means nothing with --retire"),
        (("--version", "1", "model.onnx"), "MODEL: means nothing with --version"),
        (("--retire", "--version", "1"), "--version: means nothing with --retire"),
        (("--slo-ms", "20", "--threads", "2"), "--threads: means nothing without models"),
        (("--weight", "2", "--mcd", "0"), "--mcd: means nothing without models"),
    ):
        command = [*SLUICE, "register", "--app", "mine", *options]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 2 and shown in done.stderr, done.stderr
