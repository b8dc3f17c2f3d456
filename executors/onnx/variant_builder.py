"""Has a child process check a model, or make a variant of it, and gives back what came of it.

Rules. A check has a process and a folder of its own, the recipes of a model share one. A process that dies or outlasts
its time is an error of the model in one line, never of ours, but where a disk is full. Cancelling kills it.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.executors.dtypes import Array
from sluicegate.executors.onnx.variant_child import ANSWER, CALIBRATION, FULL, RESULT, TASK
from sluicegate.profiles.catalogue.leftovers import folder_for_a_while
from sluicegate.profiles.registration.batch_axis import Interface, Port

_POLL = 0.02
"""Seconds between looks for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorLimits:
    """Of one task. ``model_bytes``: of a model and its weights; ``memory_bytes``: address space of its process."""

    model_bytes: int = (1 << 31) - 1
    memory_bytes: int = 24 << 30
    seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Made:
    """What a recipe made: a model, or none and why. ``killed``: by whoever was short of memory, not by us."""

    model: bytes | None
    skipped: str = ""
    killed: bool = False


async def check_model(path: Path, limits: GeneratorLimits | None = None) -> tuple[bytes, Interface]:
    """The model at ``path`` as it can be served, and its interface. Raises InvalidInputError, ConfigurationError where
    a disk is full."""
    limits = limits or GeneratorLimits()
    with folder_for_a_while("variants") as folder:
        task = {"op": "check", "path": str(path), "max_bytes": limits.model_bytes}
        answer = await _run(folder, task, limits)
        if not answer["ok"]:
            raise InvalidInputError(answer["field"], answer["problem"])
        ports = [tuple(_port(p) for p in answer[side]) for side in ("inputs", "outputs")]
        return (folder / RESULT).read_bytes(), Interface(
            ports[0], ports[1], tuple(answer["notes"]), answer["fixed_batch"]
        )


class VariantMaker:
    """Makes ``recipes`` of the checked model at ``path``, one after the other in one process, ahead of who asks.

    ``async with VariantMaker(...) as maker: made = await maker.make(recipe)``, in the order of ``recipes``. A recipe
    that ends the process, or outlasts its time, yields none; the next is made in a new one.
    """

    def __init__(
        self,
        path: Path,
        recipes: Sequence[str],
        calibration: Mapping[str, Array],
        limits: GeneratorLimits | None = None,
    ) -> None:
        self._path = path
        self._left = list(recipes)
        self._calibration = calibration
        self._limits = limits or GeneratorLimits()
        self._folders = ExitStack()
        self._place: Path | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Nothing runs before the first recipe is asked for."""
        self._place = self._folders.enter_context(folder_for_a_while("variants"))
        await asyncio.to_thread(_save, self._place / CALIBRATION, self._calibration)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill what still runs."""
        if self._process is not None:
            await _end(self._process)
        self._folders.close()

    async def make(self, recipe: str) -> Made:
        """What became of ``recipe``; waits for it. Raises ConfigurationError where a disk is full."""
        assert self._place is not None  # entered
        folder = self._place
        if self._process is None:
            task = {
                "op": "make",
                "path": str(self._path),
                "recipes": self._left,
                "inputs": list(self._calibration),
            }
            self._process = await _start(folder, task, self._limits)
        self._left.remove(recipe)
        answer, end = folder / f"{recipe}.json", time.monotonic() + self._limits.seconds
        while not answer.exists():
            code = self._process.returncode
            if code is not None or time.monotonic() > end:
                await _end(self._process)
                self._process = None
                _check_room(folder, code)
                took = f"it took more than {self._limits.seconds:g} s"
                why = took if code is None else f"its process ended with {_how(code)}"
                return Made(None, f"could not be made: {why}", killed=code == -signal.SIGKILL)
            await asyncio.sleep(_POLL)
        skipped: str = json.loads(answer.read_text())["skipped"]
        return Made(None, skipped) if skipped else Made((folder / f"{recipe}.onnx").read_bytes())


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    # By number: an input may have a name that no file or argument can have.
    np.savez(path, *arrays.values())


def _port(fields: list[Any]) -> Port:
    name, datatype, row_shape = fields
    return Port(name, datatype, tuple(row_shape))


async def _run(folder: Path, task: dict[str, Any], limits: GeneratorLimits) -> dict[str, Any]:
    process = await _start(folder, task, limits)
    try:
        async with asyncio.timeout(limits.seconds):
            code = await process.wait()
    except TimeoutError:
        return _failed(task, f"took more than {limits.seconds:g} s; simplify it")
    finally:
        await _end(process)
    try:
        answer: dict[str, Any] = json.loads((folder / ANSWER).read_text())
    except OSError:
        _check_room(folder, code)
        return _failed(task, f"made the process that reads it end with {_how(code)}; it is damaged, or too large")
    return answer


async def _start(folder: Path, task: dict[str, Any], limits: GeneratorLimits) -> asyncio.subprocess.Process:
    (folder / TASK).write_text(json.dumps({**task, "memory_bytes": limits.memory_bytes}))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "sluicegate.executors.onnx.variant_child",
        str(folder),
        str(os.getpid()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        # What the tools put into temporary folders goes with ours where it is killed.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
        start_new_session=True,  # Ctrl-C is the parent's to handle: it kills this process when it gives up
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)  # its own kill() may reap it, of which the event loop then warns
        await process.wait()


def _check_room(folder: Path, code: int | None) -> None:
    if code in FULL:
        raise ConfigurationError(
            f"cannot write in {folder.parent}: {os.strerror(code)}; make room, or set TMPDIR, and give the same again"
        )


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _failed(task: dict[str, Any], problem: str) -> dict[str, Any]:
    return {"ok": False, "field": "model" if task["op"] == "check" else task["op"], "problem": problem}
