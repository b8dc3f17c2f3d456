"""Several models of one app: registered together, measured side by side, served where each is worth it."""

import asyncio
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.registration.given_models import models_of
from sluicegate.sluice.registration.register import register, register_model
from tests.models.registration_models import (
    CLASSES,
    FEATURES,
    linear,
    model_of,
    request_of,
    weights,
    write_model,
    write_rows,
)

WIDTH, DEPTH = 1024, 6


def short_sighted() -> onnx.ModelProto:
    """A linear model that sees three of the features: fast, and wrong more often."""
    seen = weights()
    seen[3:] = 0.0
    return model_of([h.make_node("MatMul", ["x", "w"], ["scores"])], {"w": seen})


def laborious(width: int = WIDTH, depth: int = DEPTH) -> onnx.ModelProto:
    """As right as the linear one, after products that take many times as long."""
    rng = np.random.default_rng(5)
    lift = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)
    constants = {"lift": lift[:FEATURES], "turn": lift, "head": lift[:FEATURES].T @ weights()}
    nodes = [h.make_node("MatMul", ["x", "lift"], ["h0"])]
    for i in range(depth):  # there and back again
        nodes.append(h.make_node("Gemm", [f"h{2 * i}", "turn"], [f"h{2 * i + 1}"]))
        nodes.append(h.make_node("Gemm", [f"h{2 * i + 1}", "turn"], [f"h{2 * i + 2}"], transB=1))
    return model_of([*nodes, h.make_node("MatMul", [f"h{2 * depth}", "head"], ["scores"])], constants)


@pytest.mark.timing  # it is measured which is faster
def test_a_small_model_and_a_large_one_of_an_app_are_both_served_and_variants_of_each_are_tried(tmp_path: Path) -> None:
    small, large = (
        write_model(tmp_path, short_sighted(), "small.onnx"),
        write_model(tmp_path, laborious(), "large.onnx"),
    )
    home = tmp_path / "home"
    made = register(request_of(small, write_rows(tmp_path), others=(large,)), home)
    of = defaultdict(list)
    for candidate in made.record.candidates:
        of[candidate.recipe.split(".")[0]].append(candidate)
    assert {label: len(found) >= 3 for label, found in of.items()} == {"small": True, "large": True}
    assert of["small"][0].variant.accuracy < of["large"][0].variant.accuracy - 0.05
    catalogue = Registered(home).catalogue()
    assert catalogue is not None
    served = {name.split(".")[2] for name in catalogue.variants}
    assert served == {"small", "large"}
    best, *others = catalogue.of_app("mine")
    assert best.name.split(".")[2] == "large"
    took = {v.name: catalogue.profiles[v.name, "cpu"].points[-1].median for v in others}
    small_took = min(seconds for name, seconds in took.items() if name.split(".")[2] == "small")
    assert small_took < 0.5 * catalogue.profiles[best.name, "cpu"].points[-1].median
    assert made.record.source == "small.onnx, large.onnx"
    assert Registered(home).served_version("mine") == 1
    again = register(request_of(large, tmp_path / "rows.npz"), home)
    assert again.record.version == 2
    assert again.replaced == "version 1 (small.onnx, large.onnx)"


def test_a_family_is_made_of_one_model_and_added_to(tmp_path: Path) -> None:
    teacher, rows, home = laborious(width=128, depth=2), write_rows(tmp_path), tmp_path / "home"
    large = write_model(tmp_path, teacher, "large.onnx")
    made = register(replace(request_of(large, rows), make_family=True), home)
    students = {c.recipe: c for c in made.record.candidates if c.recipe.startswith("student-")}
    assert {"student-linear", "student-32"} <= students.keys()
    taught = students["student-linear"]
    assert taught.variant.accuracy > made.record.candidates[0].variant.accuracy - 0.1, "its teacher is linear at heart"
    alone = register(request_of(large, rows), home).record
    assert alone.version == 2, "another request"
    assert made.record.scored_rows <= alone.scored_rows // 2 + 1, "what students learn from scores nobody"
    (kept,) = models_of(Registered(home), "mine")
    assert (kept.name, kept.read_bytes()) == ("large.onnx", large.read_bytes())
    with pytest.raises(InvalidInputError, match="not registered yet"):
        models_of(Registered(home), "other")
    small = write_model(tmp_path, short_sighted(), "small.onnx")
    register(request_of(kept, rows, others=(small,)), home)
    assert [path.name for path in models_of(Registered(home), "mine")] == ["large.onnx", "small.onnx"]


def test_a_student_that_does_not_run_is_skipped_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> AsyncIterator[tuple[str, bytes]]:
        yield "student-linear", b"no model"

    monkeypatch.setattr("sluicegate.sluice.registration.registration_job.students", broken)
    model, rows = write_model(tmp_path, linear()), write_rows(tmp_path)
    record = register(replace(request_of(model, rows), make_family=True), tmp_path / "home").record
    assert "does not run" in record.skipped["student-linear"]
    assert "student-linear" not in {candidate.recipe for candidate in record.candidates}


def test_a_copy_of_a_model_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    model, home = write_model(tmp_path, linear(), "large.onnx"), tmp_path / "home"
    register(request_of(model, write_rows(tmp_path)), home)
    (kept,) = models_of(Registered(home), "mine")
    kept.write_bytes(model.read_bytes()[:60])
    (again,) = models_of(Registered(home), "mine")
    assert (again, again.read_bytes()) == (kept, model.read_bytes())
    assert list(kept.parent.iterdir()) == [kept]
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"cannot write in .*mine\.v1"):
        models_of(Registered(home), "mine")


async def test_cancelled_between_the_models_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    small, large = write_model(tmp_path, short_sighted(), "small.onnx"), write_model(tmp_path, linear(), "large.onnx")
    request = request_of(small, write_rows(tmp_path), others=(large,))
    job = asyncio.current_task()
    assert job is not None

    def stopped(what: str, done: float) -> None:
        if what == "make large.fp16":
            job.cancel()

    with pytest.raises(asyncio.CancelledError):
        await register_model(request, tmp_path / "home", stopped)
    asyncio.current_task().uncancel()  # type: ignore[union-attr]
    seen: list[str] = []
    made = await register_model(request, tmp_path / "home", lambda what, done: seen.append(what))
    assert made.resumed
    assert not any("answer with" in what for what in seen), "answers of both registered models were kept"
    assert {c.recipe.split(".")[0] for c in made.record.candidates} == {"small", "large"}


def test_a_file_whose_name_is_no_text_is_taken_and_added_to(tmp_path: Path) -> None:
    home = tmp_path / "home"
    odd = write_model(tmp_path, linear()).rename(tmp_path / os.fsdecode(b"fast\xff.onnx"))
    made = register(request_of(odd, write_rows(tmp_path)), home)
    assert made.record.source == "fast\ufffd.onnx"
    assert [path.name for path in models_of(Registered(home), "mine")] == [made.record.source]


def test_models_that_are_not_of_one_task_are_refused_by_name(tmp_path: Path) -> None:
    rows = write_rows(tmp_path)
    first = request_of(write_model(tmp_path, linear(), "first.onnx"), rows)
    twice = write_model(tmp_path, linear(), "twice.onnx")
    with pytest.raises(InvalidInputError, match=r"'twice.onnx' is the same model as another"):
        register(replace(first, others=(twice,)), tmp_path / "home")
    renamed = model_of(
        [h.make_node("MatMul", ["z", "w"], ["scores"])],
        {"w": weights()},
        inputs=[h.make_tensor_value_info("z", T.FLOAT, ["n", FEATURES])],
    )
    with pytest.raises(InvalidInputError, match=r"model 'z.onnx': takes z \(FP32\), and first.onnx x \(FP32\)"):
        register(replace(first, others=(write_model(tmp_path, renamed, "z.onnx"),)), tmp_path / "home")
    wider = model_of(
        [h.make_node("MatMul", ["x", "w"], ["scores"])],
        {"w": np.pad(weights(), ((0, 0), (0, 1)), constant_values=-1.0)},
        outputs=[h.make_tensor_value_info("scores", T.FLOAT, ["n", CLASSES + 1])],
    )
    with pytest.raises(InvalidInputError, match=r"'wider.onnx': gives scores \(FP32 \[5\]\), and first.onnx scores"):
        register(replace(first, others=(write_model(tmp_path, wider, "wider.onnx"),)), tmp_path / "home")
    guessing = model_of([h.make_node("MatMul", ["x", "w"], ["scores"])], {"w": np.zeros_like(weights())})
    with pytest.raises(InvalidInputError, match=r"'guessing.onnx'"):
        register(replace(first, others=(write_model(tmp_path, guessing, "guessing.onnx"),)), tmp_path / "home")
    assert Registered(tmp_path / "home").apps() == ()


@pytest.mark.thorough
def test_one_variant_or_equally_accurate_ones_are_said_to_leave_nothing_to_scale_with(tmp_path: Path) -> None:
    model, rows, home = write_model(tmp_path, linear()), write_rows(tmp_path), tmp_path / "home"
    environment = {**os.environ, "SLUICE_HOME": str(home)}

    def said(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "sluicegate.sluice.main", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stderr
        return done.stdout

    asked = ("register", str(model), "--app", "mine", "--validation", str(rows), "--repeats", "7")
    said(*asked)
    registered = Registered(home)
    record = registered.record("mine", 1)
    with np.load(home / "registered" / "records" / "mine.v1.npz") as held:
        samples = dict(held)
    kept = record.candidates[:2]
    assert len(kept) == 2
    for accuracies, told in (
        ((0.9,), "nothing to scale with: only one variant"),
        ((0.9, 0.9), "its 2 variants are equally accurate"),
        ((0.9, 0.88), "its 2 variants are equally accurate"),
        ((0.9, 0.6), ""),
    ):
        # What is served of such small models is left to the noise of the machine: say it for the test.
        known = dict(zip((c.recipe for c in kept), accuracies, strict=False))
        chosen = tuple(
            c.model_copy(
                update={
                    "served": c.recipe in known,
                    "variant": c.variant.model_copy(update={"accuracy": known.get(c.recipe, 0.5), "accuracy_se": 0.02}),
                }
            )
            for c in record.candidates
        )
        changed = record.model_copy(update={"candidates": chosen})
        registered.keep(changed, samples)
        registered.publish(changed)
        for text in (said(*asked), said("variants", "--app", "mine")):
            assert (f"mine: {told or 'nothing to scale'}" in text) is bool(told)
            assert ("sluice register --app mine MODEL --validation … --make-family" in text) is bool(told)
            assert ("accuracy cannot follow load" in text) is bool(told)
