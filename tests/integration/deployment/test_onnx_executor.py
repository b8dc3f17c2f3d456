"""The ONNX executor's child process: right answers, models that misbehave, and a process that dies."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError, ExecutionError, LoadError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import BYTES, Tensor, TensorSpec, elements, joined, split_rows
from sluicegate.executors.linux_processes import hangs_after
from sluicegate.executors.onnx import apart, onnx_executor
from sluicegate.executors.onnx.apart import Apart, run_apart
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.profiles.catalogue.catalogue import Catalogue
from tests.harness import PATIENCE_S
from tests.models.executor_models import numbers, query, write_catalogue
from tests.models.text_models import APP as TEXTS
from tests.models.text_models import KINDS, write_words

Started = Callable[..., AbstractAsyncContextManager[OnnxExecutor]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("catalogue")


@pytest.fixture(scope="module")
def catalogue(folder: Path) -> Catalogue:
    return write_catalogue(folder)


@pytest.fixture
def started(folder: Path, catalogue: Catalogue) -> Started:
    """A started executor with variants loaded for batches of 4."""

    @asynccontextmanager
    async def make(*variants: str, **options: float) -> AsyncIterator[OnnxExecutor]:
        executor = OnnxExecutor(folder, catalogue.apps, **options)  # type: ignore[arg-type]
        await executor.start()
        try:
            for variant in variants:
                await executor.load(catalogue.variants[variant], max_batch=4)
            yield executor
        finally:
            await executor.close()

    return make


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_each_query_gets_its_own_answer(started: Started) -> None:
    async with started("double", "triple") as executor:
        batch = [query((1, 2)), query((4, 3), (5, 6)), query((8, 7))]
        done = await executor.run("double", batch, 4)
        assert numbers(done.outputs[0]) == [[2, 4], [8, 6], [10, 12], [16, 14]]
        assert numbers(done.outputs[1]) == [1, 0, 1, 0]
        assert done.cpu_s > 0
        done = await executor.run("triple", batch[:1], 1)
        assert numbers(done.outputs[0]) == [[3, 6]]


async def test_a_batch_far_larger_than_the_sockets_buffer_passes_both_ways(folder: Path, catalogue: Catalogue) -> None:
    executor = OnnxExecutor(folder, catalogue.apps)
    await executor.start()
    await executor.load(catalogue.variants["double"], max_batch=1)
    rows = np.arange(2 * 1_000_000, dtype=np.float32).reshape(-1, 2)
    queries = [(Tensor("x", "FP32", (len(part), 2), part.tobytes()),) for part in np.array_split(rows, 700)]
    done = await executor.run("double", queries, len(rows))
    await executor.close()
    assert np.array_equal(np.frombuffer(done.outputs[0].data, np.float32).reshape(-1, 2), rows * 2)


async def test_all_threads_of_a_child_run_on_the_cores_it_is_pinned_to(folder: Path, catalogue: Catalogue) -> None:
    core = max(os.sched_getaffinity(0))
    executor = OnnxExecutor(folder, catalogue.apps, Runtime(threads=2, cores=(core,)))
    await executor.start()
    try:
        await executor.load(catalogue.variants["double"], max_batch=4)
        threads = [int(thread) for thread in os.listdir(f"/proc/{executor.pid}/task")]  # noqa: PTH208 - no Path in async
        assert len(threads) >= 3, "the two that serve its connections, and that of the operators"
        assert [os.sched_getaffinity(thread) for thread in threads] == [{core}] * len(threads)
    finally:
        await executor.close()


async def test_a_model_that_raises_fails_its_batch_alone(started: Started) -> None:
    async with started("raising", "double") as executor:
        pid = executor.pid
        with pytest.raises(ExecutionError, match="raising: ") as caught:
            await executor.run("raising", [query((99, 0))], 1)
        assert not caught.value.fatal
        assert "\n" not in str(caught.value)
        assert numbers((await executor.run("raising", [query((1, 0))], 1)).outputs[0]) == [[0, 0]]
        assert numbers((await executor.run("double", [query((1, 0))], 1)).outputs[0]) == [[2, 0]]
        assert executor.pid == pid


async def test_a_model_that_loses_rows_fails_its_batch(started: Started, catalogue: Catalogue) -> None:
    async with started("double") as executor:
        await executor.load(catalogue.variants["loses-rows"], max_batch=1)
        with pytest.raises(ExecutionError, match=r"output y has shape \(1, 2\) for 3 rows"):
            await executor.run("loses-rows", [query((1, 0))] * 3, 3)


async def test_a_model_that_hangs_is_killed_and_the_executor_starts_again(
    started: Started, catalogue: Catalogue
) -> None:
    async with started("hanging", "double", run_timeout=0.5) as executor:
        pid = executor.pid
        assert pid is not None
        with pytest.raises(ExecutionError, match=r"took more than 0\.(5 s|125 s of the processor)") as caught:
            await executor.run("hanging", [query((1e12, 0))], 1)
        assert caught.value.fatal and not caught.value.blameless
        assert not alive(pid)
        with pytest.raises(ExecutionError, match="SIGKILL") as caught:
            await executor.run("double", [query((1, 0))], 1)
        assert caught.value.fatal and caught.value.blameless, "it never came to the process"
        await executor.start()
        with pytest.raises(ExecutionError, match="double is not loaded"):
            await executor.run("double", [query((1, 0))], 1)
        await executor.load(catalogue.variants["double"], max_batch=1)
        assert numbers((await executor.run("double", [query((1, 0))], 1)).outputs[0]) == [[2, 0]]


async def test_what_hangs_is_killed_by_the_processors_time_long_before_the_clocks(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [hangs_after(within) for within in (1.0, 2.0, 4.0, 60.0)] == [0.25, 0.5, 2.5, 58.5]
    monkeypatch.setattr(onnx_executor, "hangs_after", lambda within: within / 200)
    async with started("hanging", "double") as executor:
        with pytest.raises(ExecutionError, match=r"took more than 0\.3 s of the processor") as caught:
            await executor.run("hanging", [query((1e12, 0))], 1)
        assert caught.value.fatal
    monkeypatch.setattr(apart, "hangs_after", lambda within: within / 200)
    hung = run_apart(spin, lambda: None, 60.0)
    assert hung == Apart(None, "run took more than 60 s, or 0.3 s of the processor")


def test_a_copy_that_ends_just_when_its_time_is_up_costs_its_own_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(_: int, pid: int, __: float) -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(apart, "_read", late)
    assert run_apart(list, lambda: None, 4.0) == Apart(None, "run took more than 4 s, or 2.5 s of the processor")


def test_an_answer_that_lies_there_when_time_is_up_counts() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"answer")
    os.close(writing)
    assert apart._read(reading, os.getpid(), 0.0) == b"answer"
    os.close(reading)


def spin() -> list[memoryview]:
    while True:
        pass


async def test_a_child_killed_in_mid_batch_fails_that_batch_and_says_how_it_died(started: Started) -> None:
    async with started("hanging") as executor:
        running = asyncio.ensure_future(executor.run("hanging", [query((1e12, 0))], 1))
        await asyncio.sleep(0.05)
        assert executor.pid is not None
        os.kill(executor.pid, signal.SIGKILL)
        with pytest.raises(ExecutionError, match="SIGKILL") as caught:
            await asyncio.wait_for(running, 30.0)
        assert caught.value.fatal
        assert executor.pid is None
        await executor.start()
        assert executor.pid is not None


async def test_closing_is_bounded_even_while_a_model_hangs(started: Started) -> None:
    async with started("hanging", close_timeout=0.2) as executor:
        running = asyncio.ensure_future(executor.run("hanging", [query((1e12, 0))], 1))
        await asyncio.sleep(0.05)
        pid = executor.pid
        async with asyncio.timeout(PATIENCE_S):  # the batch takes hours
            await executor.close()
        assert pid is not None
        assert not alive(pid)
        with pytest.raises(ExecutionError):
            await running


async def test_terminal_signals_do_not_end_the_child(started: Started) -> None:
    async with started("double") as executor:
        assert executor.pid is not None
        os.kill(executor.pid, signal.SIGINT)
        os.kill(executor.pid, signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert numbers((await executor.run("double", [query((1, 0))], 1)).outputs[0]) == [[2, 0]]


def test_the_child_dies_with_its_parent_even_while_a_model_hangs(folder: Path, catalogue: Catalogue) -> None:
    script = """
import asyncio, os, sys
from pathlib import Path
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from tests.models.executor_models import APP, query
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue
from tests.harness import PATIENCE_S
async def main():
    catalogue = load_catalogue(Path(sys.argv[1]))
    executor = OnnxExecutor(Path(sys.argv[1]), catalogue.apps)
    await executor.start()
    await executor.load(catalogue.variants["hanging"], max_batch=1)
    running = asyncio.ensure_future(executor.run("hanging", [query((1e12, 0))], 1))
    await asyncio.sleep(0.1)
    print(executor.pid, flush=True)
    await running
asyncio.run(main())
"""
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, cwd=root) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    end = time.monotonic() + PATIENCE_S
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(pid)


async def test_a_variant_loads_while_batches_run(started: Started, catalogue: Catalogue) -> None:
    async with started("hanging") as executor:
        running = asyncio.ensure_future(executor.run("hanging", [query((3e5, 0))], 1))
        await asyncio.sleep(0.01)
        await executor.load(catalogue.variants["double"], max_batch=2)
        assert not running.done()
        await running


@pytest.mark.parametrize(
    ("variant", "problem"),
    [
        ("garbage", "garbage: .*"),
        ("other-input", r"input z is tensor\(double\), the app declares nothing of that name"),
    ],
)
async def test_a_model_that_cannot_serve_the_app_is_refused(
    started: Started, catalogue: Catalogue, variant: str, problem: str
) -> None:
    async with started("double") as executor:
        with pytest.raises(LoadError, match=problem) as caught:
            await executor.load(catalogue.variants[variant], max_batch=4)
        assert "\n" not in str(caught.value)
        assert numbers((await executor.run("double", [query((1, 0))], 1)).outputs[0]) == [[2, 0]]


async def test_a_model_in_a_folder_that_cannot_be_looked_into_is_not_loaded(
    started: Started, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    async with started() as executor:
        monkeypatch.setattr(Path, "exists", denied)
        with pytest.raises(LoadError, match=r"double: .* cannot be looked for: Permission denied"):
            await executor.load(catalogue.variants["double"], max_batch=1)


async def test_a_broken_new_model_under_an_old_name_keeps_the_old_one(started: Started, catalogue: Catalogue) -> None:
    async with started("double") as executor:
        for other in (replace(catalogue.variants["garbage"], name="double"), catalogue.variants["double"]):
            changed = replace(other, digest="0" * 64)
            with pytest.raises(LoadError):
                await executor.load(changed, max_batch=4)
        assert numbers((await executor.run("double", [query((1, 0))], 1)).outputs[0]) == [[2, 0]]
        await executor.load(replace(catalogue.variants["triple"], name="double"), max_batch=4)
        assert numbers((await executor.run("double", [query((1, 0))], 1)).outputs[0]) == [[3, 0]]


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (Tensor("y", "FP32", (1, 2), bytes(8)),),
        (Tensor("x", "FP64", (1, 2), bytes(16)),),
        (Tensor("x", "FP32", (1, 3), bytes(12)),),
        (Tensor("x", "FP32", (1, 2), bytes(7)),),
        (Tensor("x", "FP32", (), bytes(4)),),
    ],
    ids=["missing", "other name", "other type", "other shape", "too short", "scalar"],
)
async def test_tensors_that_do_not_fit_are_refused_before_they_are_sent(
    started: Started, tensors: tuple[Tensor, ...]
) -> None:
    async with started("double") as executor:
        with pytest.raises(ExecutionError) as caught:
            await executor.run("double", [query((1, 0)), tensors], 2)
        assert not caught.value.fatal
        assert numbers((await executor.run("double", [query((1, 0))], 1)).outputs[0]) == [[2, 0]]


async def test_a_missing_gpu_is_an_error_unless_the_cpu_may_stand_in(folder: Path, catalogue: Catalogue) -> None:
    executor = OnnxExecutor(folder, catalogue.apps, Runtime(provider="cuda"))
    with pytest.raises(ConfigurationError, match="CUDAExecutionProvider"):
        await executor.start()
    allowed = OnnxExecutor(folder, catalogue.apps, Runtime(provider="cuda", cpu_fallback=True))
    await allowed.start()
    try:
        await allowed.load(catalogue.variants["double"], max_batch=1)
        assert numbers((await allowed.run("double", [query((1, 0))], 1)).outputs[0]) == [[2, 0]]
    finally:
        await allowed.close()


def test_the_gpus_options_budget_memory_and_do_not_search_while_serving() -> None:
    runtime = Runtime(provider="cuda", visible={"CUDA_VISIBLE_DEVICES": "MIG-1"}, memory_limit_bytes=1 << 30)
    [(name, options)] = runtime.providers()
    assert name == "CUDAExecutionProvider"
    assert options["gpu_mem_limit"] == 1 << 30
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert replace(runtime, cpu_fallback=True).providers()[1] == "CPUExecutionProvider"
    assert runtime.environment()["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert replace(runtime, provider="cpu").environment()["CUDA_VISIBLE_DEVICES"] == ""


async def test_an_app_unknown_to_the_executor_takes_its_shapes_from_the_model(
    folder: Path, catalogue: Catalogue
) -> None:
    apps: dict[str, App] = {}
    executor = OnnxExecutor(folder, apps)
    await executor.start()
    try:
        await executor.load(catalogue.variants["double"], max_batch=2)
        assert numbers((await executor.run("double", [query((1, 0))], 1)).outputs[0]) == [[2, 0]]
        apps["affine"] = App(name="affine", slo=1.0, inputs=(TensorSpec("x", "FP32", (3,)),))
        with pytest.raises(LoadError, match=r"takes rows of \[2\], the app declares \[3\]"):
            await executor.load(catalogue.variants["triple"], max_batch=2)
    finally:
        await executor.close()


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def peak(pid: int) -> int:
    """Bytes that it has held at most."""
    told = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in told if line.startswith("VmHWM"))


async def test_a_query_that_asks_for_more_memory_than_the_margin_fails_and_nothing_else(
    folder: Path, catalogue: Catalogue
) -> None:
    executor = OnnxExecutor(folder, catalogue.apps, Runtime(memory_margin_bytes=256 << 20))
    await executor.start()
    try:
        for name in ("growing", "double"):
            await executor.load(catalogue.variants[name], max_batch=4)
        pid = executor.pid
        assert pid is not None
        before = resident(pid)
        small = await executor.run("growing", [query((1000, 2))], 1)
        assert numbers(small.outputs[0]) == [[1000.0, 2.0]]
        for _ in range(3):
            with pytest.raises(ExecutionError) as refused:
                await executor.run("growing", [query((325e6, 0))], 1)  # 1.3 GB of zeros
            assert not refused.value.fatal
            assert numbers((await executor.run("double", [query((1, 2))], 1)).outputs[0]) == [[2.0, 4.0]]
        assert executor.pid == pid
        assert peak(pid) - before < 512 << 20
        await executor.load(catalogue.variants["triple"], max_batch=4)  # what is loaded later has its room, too
        assert numbers((await executor.run("triple", [query((1, 2))], 1)).outputs[0]) == [[3.0, 6.0]]
    finally:
        await executor.close()


async def test_a_child_that_somebody_stops_is_ended_at_work_and_idle(started: Started) -> None:
    async with started("double", "hanging") as executor:
        ended = asyncio.Event()
        executor.watch(ended.set)
        first = executor.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
        assert executor.pid is None
        ended.clear()
        await executor.start()
        second = executor.pid
        assert second not in (None, first)
        with pytest.raises(ExecutionError) as told:
            await executor.run("double", [query((1, 2))], 1)  # loading again is its caller's
        assert not told.value.fatal


async def test_what_runs_when_its_process_is_stopped_or_killed_is_not_to_blame(
    started: Started, catalogue: Catalogue
) -> None:
    async with started("hanging") as executor:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            running = asyncio.create_task(executor.run("hanging", [query((1e12, 0))], 1))
            await asyncio.sleep(0.2)
            assert executor.pid is not None
            os.kill(executor.pid, number)
            with pytest.raises(ExecutionError) as told:
                await running
            assert told.value.fatal and told.value.blameless
            await executor.start()
            await executor.load(catalogue.variants["hanging"], max_batch=4)
        running = asyncio.create_task(executor.run("hanging", [query((1e12, 0))], 1, within=0.3))
        with pytest.raises(ExecutionError) as told:
            await running
        assert told.value.fatal and not told.value.blameless
        await executor.start()
        await executor.load(catalogue.variants["hanging"], max_batch=4)
        running = asyncio.create_task(executor.run("hanging", [query((1e12, 0))], 1))
        await asyncio.sleep(0.2)
        assert executor.pid is not None
        os.kill(executor.pid, signal.SIGSEGV)  # as of a model that breaks its process
        with pytest.raises(ExecutionError) as told:
            await running
        assert told.value.fatal and not told.value.blameless


@pytest.mark.parametrize("poison", ["hangs", "stopped", "killed", "crashes"])
async def test_a_run_apart_that_ends_its_process_ends_that_alone(started: Started, poison: str) -> None:
    async with started("hanging", "double") as executor:
        pid = executor.pid
        assert pid is not None
        ended: list[None] = []
        executor.watch(lambda: ended.append(None))
        running = asyncio.ensure_future(
            executor.run("hanging", [query((1e12, 0))], 1, within=0.5 if poison == "hangs" else 2.0, apart=True)
        )
        if poison != "hangs":
            os.kill(
                await copy_of(pid), {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}.get(poison, signal.SIGSEGV)
            )
        with pytest.raises(ExecutionError, match=r"took more than 0\.5 s|stood still|SIGKILL|SIGSEGV") as caught:
            await running
        assert caught.value.apart
        assert not caught.value.fatal
        assert caught.value.blameless is (poison in ("stopped", "killed"))
        assert (executor.pid, ended) == (pid, [])
        assert numbers((await executor.run("double", [query((1, 0))], 1)).outputs[0]) == [[2, 0]]
        assert numbers((await executor.run("hanging", [query((0, 7))], 1, apart=True)).outputs[0])[0][1] >= 7  # type: ignore[index]
    assert not alive(pid)


async def copy_of(pid: int) -> int:
    """The process that runs apart."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := children(pid)):
            await asyncio.sleep(0.005)
    return found[0]


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def texts(pair: tuple[str, str], note: bytes, weight: float = 1.0) -> tuple[Tensor, ...]:
    """A query of one row to the model that looks words up."""
    held = joined(one.encode() for one in pair), np.float32(weight).tobytes(), joined([note])
    return tuple(
        Tensor(s.name, s.datatype, (1, *s.row_shape), data) for s, data in zip(TEXTS.inputs, held, strict=True)
    )


async def test_texts_of_unequal_length_are_answered_each_with_its_own(tmp_path: Path) -> None:
    catalogue = write_words(tmp_path)
    executor = OnnxExecutor(tmp_path, catalogue.apps)
    await executor.start()
    try:
        await executor.load(catalogue.variants["lookup"], max_batch=4)
        queries = [
            texts(("cat", "nothing"), b"short"),
            texts(("a very long name of a dog", "Öl"), "länger, and with a \0 within".encode()),
            texts(("", "cat"), b""),
        ]
        ran = await executor.run("lookup", queries, 3)
        parts = [{t.name: t for t in part} for part in split_rows(ran.outputs, [1, 1, 1])]
        assert [elements(part["said"].data, 1) for part in parts] == [elements(q[2].data, 1) for q in queries]
        kinds = [[one.decode() for one in elements(part["kind"].data, 2)] for part in parts]
        assert kinds == [[KINDS[1], KINDS[0]], [KINDS[1], KINDS[2]], [KINDS[2], KINDS[1]]]
        assert np.frombuffer(parts[1]["number"].data, np.int64).tolist() == [1, 2]
        lying = (queries[0][0], queries[0][1], Tensor("note", BYTES, (1,), b"\xff\0\0\0ab"))
        with pytest.raises(ExecutionError, match="note"):
            await executor.run("lookup", [queries[1], lying], 2)
        with pytest.raises(ExecutionError, match="note is no text") as refused:
            await executor.run("lookup", [texts(("cat", "cat"), b"\xff\xfe")], 1)
        assert not refused.value.fatal
        again = await executor.run("lookup", queries[:1], 1, apart=True)
        assert [bytes(t.data) for t in again.outputs] == [bytes(parts[0][t.name].data) for t in again.outputs]
    finally:
        await executor.close()
