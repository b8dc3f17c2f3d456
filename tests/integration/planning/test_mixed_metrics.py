"""Apps that are judged by other metrics than accuracy, from registration to reports: f1 beside r2."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from sluicegate.domain.fold import OutcomeFold
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.registration.register import register_model
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec, control
from tests.harness import PATIENCE, Running, running, settings_for
from tests.models.registration_models import (
    FEATURES,
    labelled_rows,
    model_of,
    request_of,
    weights,
    write_model,
    write_rows,
)

SLOPE = np.linspace(-1, 1, FEATURES, dtype=np.float32)[:, None]


def classifier(seen: int) -> onnx.ModelProto:
    kept = weights()
    kept[seen:] = 0.0
    return model_of([h.make_node("MatMul", ["x", "w"], ["scores"])], {"w": kept})


def regressor(seen: int) -> onnx.ModelProto:
    kept = SLOPE.copy()
    kept[seen:] = 0.0
    numbers = [h.make_tensor_value_info("y", T.FLOAT, ["n", 1])]
    return model_of([h.make_node("MatMul", ["x", "w"], ["y"])], {"w": kept}, outputs=numbers)


async def registered(folder: Path, home: Path) -> Catalogue:
    """A classifier judged by macro F1 and a regressor judged by r2, both served in a good and a poor variant."""
    x, _ = labelled_rows()
    truth = (x @ SLOPE)[:, 0] + np.random.default_rng(3).standard_normal(len(x))
    numbers = write_rows(folder, "numbers.npz", x=x, target=truth)
    asked = {
        "kinds": ("f1", write_rows(folder), (classifier(3), classifier(FEATURES))),
        "sizes": ("r2", numbers, (regressor(FEATURES - 1), regressor(FEATURES))),
    }
    for app, (metric, rows, models) in asked.items():
        paths = [write_model(folder, model, f"{app}{i}.onnx") for i, model in enumerate(models)]
        request = request_of(paths[0], rows, app=app, metric=metric, others=(paths[1],), slo=1.0)
        record = (await register_model(request, home)).record
        poor, good = (next(c for c in record.candidates if c.recipe == f"{app}{i}.fp32") for i in (0, 1))
        assert 0.0 < poor.variant.accuracy < good.variant.accuracy < 1.0
        # Of models this small chance decides which pay: both are served here.
        chosen = [c.model_copy(update={"served": c in (poor, good)}) for c in record.candidates]
        Registered(home).publish(record.model_copy(update={"candidates": tuple(chosen)}))
    found = Registered(home).catalogue()
    assert found is not None
    return found


async def ask(run: Running, app: str, row: np.ndarray) -> None:
    tensor = Tensor("x", "FP32", (1, FEATURES), row.astype("<f4").tobytes())
    message = codec.encode_query(
        f"{app}-{run.sent}", (tensor,), app=app, now=run.system.clock.wall(), parameters={"latency_ms": PATIENCE}
    )
    await run.send(app, message.value, key=message.key, headers=message.headers)


async def test_what_f1_and_r2_say_is_planned_answered_and_reported_as_part_of_each_apps_best(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path, worker={"executor": "onnx"})
    catalogue = await registered(tmp_path, settings.home)
    best = {app: catalogue.best_accuracy(app) for app in catalogue.apps}
    assert best["kinds"] != pytest.approx(best["sizes"], abs=0.01)
    x, _ = labelled_rows()
    async with running(settings, connect("memory://"), catalogue=catalogue) as run:
        await run.planned()
        for row in x[:6]:
            await ask(run, "kinds", row)
            await ask(run, "sizes", row)
        report = await run.settled()
        assert not report.lost and not report.duplicates
        records = [r async for r in _read(run, run.topics.plan)]
        plan = control.decode_plan(records[-1])
        assert plan.objective == pytest.approx(1.0) and plan.bound == pytest.approx(1.0)
        fold = OutcomeFold()
        for outcome in (await run.outcomes()).values():
            assert outcome.kind is OutcomeKind.ANSWERED and outcome.variant is not None
            assert outcome.accuracy == pytest.approx(catalogue.variants[outcome.variant].accuracy)
            assert outcome.best_accuracy == pytest.approx(best[outcome.app])
            fold.add(outcome)
        summary = fold.summary()
        assert summary.relative_accuracy == pytest.approx(1.0)
        assert summary.effective_accuracy == pytest.approx(sum(best.values()) / 2)


async def _read(run: Running, topic: str):  # type: ignore[no-untyped-def]
    from sluicegate.sluice.audit.result_log import read_results

    async for record in read_results(run.broker, [TopicPartition(topic, 0)], follow=False):
        if record.value:
            yield record.value
