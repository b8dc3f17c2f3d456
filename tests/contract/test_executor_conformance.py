"""What every executor must do: the same cases over the emulated one and the one that runs ONNX models, on the
processor and, where one is there, on an NVIDIA GPU."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError, ExecutionError, LoadError
from sluicegate.domain.executor import Executor
from sluicegate.domain.models.tensor import split_rows
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.registration.registration_candidates import targets
from tests.models.executor_models import query, write_catalogue


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("catalogue")


@pytest.fixture(scope="module")
def catalogue(folder: Path) -> Catalogue:
    return write_catalogue(folder)


def on_gpu() -> Runtime:
    """On the first GPU of this machine, with 1 GiB of it; skips where models cannot be profiled on any."""
    try:
        runtime = dict(targets(()))["cuda"]
    except ConfigurationError as error:
        pytest.skip(f"no NVIDIA GPU that ONNX Runtime can use: {error}")
    return replace(runtime, visible={"CUDA_VISIBLE_DEVICES": "0"}, memory_limit_bytes=1 << 30)


@pytest.fixture(params=["emulated", "onnx", "cuda"])
async def executor(request: pytest.FixtureRequest, folder: Path, catalogue: Catalogue) -> AsyncIterator[Executor]:
    made: Executor
    if request.param == "emulated":
        made = EmulatedExecutor(catalogue, "cpu")
    else:
        made = OnnxExecutor(folder, catalogue.apps, on_gpu() if request.param == "cuda" else None)
    await made.start()
    yield made
    await made.close()


async def test_a_batch_of_several_queries_comes_back_stacked_and_splits(
    executor: Executor, catalogue: Catalogue
) -> None:
    loaded = await executor.load(catalogue.variants["double"], max_batch=8)
    assert loaded.variant == "double"
    assert loaded.load_s > 0
    assert loaded.memory_bytes > 0
    done = await executor.run("double", [query((1, 2)), query((3, 4), (5, 6)), query((7, 8))], 4)
    assert done.execution_s > 0
    assert [(t.name, t.datatype, t.shape) for t in done.outputs] == [("y", "FP32", (4, 2)), ("label", "INT64", (4,))]
    parts = split_rows(done.outputs, [1, 2, 1])
    assert [[t.shape for t in part] for part in parts] == [[(1, 2), (1,)], [(2, 2), (2,)], [(1, 2), (1,)]]


async def test_loading_twice_is_the_same_and_a_larger_batch_extends_it(
    executor: Executor, catalogue: Catalogue
) -> None:
    double = catalogue.variants["double"]
    first = await executor.load(double, max_batch=2)
    assert await executor.load(double, max_batch=2) == first
    assert (await executor.load(double, max_batch=8)).variant == "double"
    assert (await executor.run("double", [query((1, 2))] * 8, 8)).outputs[0].rows == 8


async def test_what_was_not_loaded_or_was_unloaded_does_not_run(executor: Executor, catalogue: Catalogue) -> None:
    await executor.unload("never-loaded")
    await executor.load(catalogue.variants["double"], max_batch=1)
    await executor.load(catalogue.variants["triple"], max_batch=1)
    await executor.unload("double")
    with pytest.raises(ExecutionError) as caught:
        await executor.run("double", [query((1, 2))], 1)
    assert not caught.value.fatal
    assert (await executor.run("triple", [query((1, 2))], 1)).outputs[0].rows == 1


async def test_a_load_that_fails_keeps_what_was_loaded(executor: Executor, catalogue: Catalogue) -> None:
    await executor.load(catalogue.variants["double"], max_batch=4)
    unknown = Variant(name="unknown", app="affine", accuracy=0.5)
    for variant, max_batch in ((unknown, 1), (catalogue.variants["triple"], 0)):
        with pytest.raises(LoadError) as caught:
            await executor.load(variant, max_batch=max_batch)
        assert "\n" not in str(caught.value)
    assert (await executor.run("double", [query((1, 2))] * 4, 4)).outputs[0].rows == 4


async def test_a_load_that_takes_too_long_is_ended_with_the_process_and_that_is_told(
    executor: Executor, catalogue: Catalogue
) -> None:
    ends: list[None] = []
    executor.watch(lambda: ends.append(None))
    await executor.load(catalogue.variants["double"], max_batch=4, within=60.0)
    if isinstance(executor, OnnxExecutor) and executor.pid is not None:
        await stand_still(executor.pid)  # it might have ended the load before time is up
    with pytest.raises(LoadError, match=r"triple: .*load took more than 0 s"):
        await executor.load(catalogue.variants["triple"], max_batch=4, within=0.0)
    assert len(ends) == 1
    with pytest.raises(ExecutionError) as caught:
        await executor.run("double", [query((1, 2))], 1)
    assert caught.value.fatal
    await executor.start()
    await executor.load(catalogue.variants["triple"], max_batch=4, within=60.0)
    assert (await executor.run("triple", [query((1, 2))], 1)).outputs[0].rows == 1


async def stand_still(pid: int) -> None:
    """Stop a process, and wait until each of its threads stands: of one that waits for a processor it takes a while."""
    os.kill(pid, signal.SIGSTOP)
    while states(pid) != {"T"}:
        await asyncio.sleep(0.01)


def states(pid: int) -> set[str]:
    """Of its threads."""
    stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


async def test_rows_that_do_not_add_up_are_refused_and_the_next_batch_runs(
    executor: Executor, catalogue: Catalogue
) -> None:
    await executor.load(catalogue.variants["double"], max_batch=4)
    with pytest.raises(ExecutionError) as caught:
        await executor.run("double", [query((1, 2)), query((3, 4))], 3)
    assert not caught.value.fatal
    assert (await executor.run("double", [query((1, 2))], 1)).outputs[0].rows == 1


async def test_batches_asked_for_at_once_run_one_after_the_other(executor: Executor, catalogue: Catalogue) -> None:
    await executor.load(catalogue.variants["double"], max_batch=8)
    batches = [executor.run("double", [query((i, i))] * (1 + i % 8), 1 + i % 8) for i in range(8)]
    begun = time.monotonic()
    done = await asyncio.gather(*batches)
    assert [d.outputs[0].rows for d in done] == list(range(1, 9))
    assert time.monotonic() - begun >= sum(d.execution_s for d in done) * 0.99


async def test_before_start_and_after_close_running_is_fatal_and_starting_again_helps(
    executor: Executor, catalogue: Catalogue
) -> None:
    await executor.load(catalogue.variants["double"], max_batch=1)
    await executor.start()
    await executor.run("double", [query((1, 2))], 1)
    await executor.close()
    await executor.close()
    with pytest.raises(ExecutionError) as caught:
        await executor.run("double", [query((1, 2))], 1)
    assert caught.value.fatal
    with pytest.raises(LoadError):
        await executor.load(catalogue.variants["double"], max_batch=1)
    await executor.start()
    await executor.load(catalogue.variants["double"], max_batch=1)
    assert (await executor.run("double", [query((1, 2))], 1)).outputs[0].rows == 1


async def test_a_cancelled_batch_leaves_the_executor_usable(executor: Executor, catalogue: Catalogue) -> None:
    await executor.load(catalogue.variants["double"], max_batch=8)
    running = asyncio.ensure_future(executor.run("double", [query((1, 2))] * 8, 8))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await executor.run("double", [query((3, 4))], 1)).outputs[0].shape == (1, 2)
