"""Has a child process check a model, or make a variant of it, and gives back what came of it.

Rules. Each task has a process and a folder of its own. A process that dies or outlasts its time is an error of the
model in one line, never of ours. Cancelling kills it.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domain.errors import InvalidInputError
from executors.arrays import Array
from executors.generating import ANSWER, CALIBRATION, RESULT, TASK
from profiles.generation.batch_axis import Interface, Port


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorLimits:
    """Of one task. ``model_bytes``: of a model and its weights; ``memory_bytes``: address space of its process."""

    model_bytes: int = (1 << 31) - 1
    memory_bytes: int = 24 << 30
    seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Made:
    """What a recipe made: a model, or none and why."""

    model: bytes | None
    skipped: str = ""


async def check_model(path: Path, limits: GeneratorLimits | None = None) -> tuple[bytes, Interface]:
    """The model at ``path`` as it can be served, and its interface. Raises InvalidInputError."""
    limits = limits or GeneratorLimits()
    with tempfile.TemporaryDirectory(prefix="sluice-") as name:
        folder = Path(name)
        task = {"op": "check", "path": str(path), "max_bytes": limits.model_bytes}
        answer = await _run(folder, task, limits)
        if not answer["ok"]:
            raise InvalidInputError(answer["field"], answer["problem"])
        ports = [tuple(_port(p) for p in answer[side]) for side in ("inputs", "outputs")]
        return (folder / RESULT).read_bytes(), Interface(ports[0], ports[1], tuple(answer["notes"]), answer["fixed_batch"])


async def make_variant(
    path: Path, recipe: str, calibration: Mapping[str, Array], limits: GeneratorLimits | None = None
) -> Made:
    """What ``recipe`` makes of the checked model at ``path``: none, with one line of why, where it cannot."""
    limits = limits or GeneratorLimits()
    with tempfile.TemporaryDirectory(prefix="sluice-") as name:
        folder = Path(name)
        await asyncio.to_thread(_save, folder / CALIBRATION, calibration)
        task = {"op": "make", "path": str(path), "recipe": recipe, "inputs": list(calibration)}
        answer = await _run(folder, task, limits)
        if not answer["ok"]:
            return Made(None, f"could not be made: {answer['problem']}")
        if "skipped" in answer:
            return Made(None, answer["skipped"])
        return Made((folder / RESULT).read_bytes())


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    # By number: an input may have a name that no file or argument can have.
    np.savez(path, *arrays.values())


def _port(fields: list[Any]) -> Port:
    name, datatype, row_shape = fields
    return Port(name, datatype, tuple(row_shape))


async def _run(folder: Path, task: dict[str, Any], limits: GeneratorLimits) -> dict[str, Any]:
    (folder / TASK).write_text(json.dumps({**task, "memory_bytes": limits.memory_bytes}))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "executors.generating",
        str(folder),
        str(os.getpid()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C is the parent's to handle: it kills this process when it gives up
    )
    try:
        async with asyncio.timeout(limits.seconds):
            code = await process.wait()
    except TimeoutError:
        return _failed(task, f"took more than {limits.seconds:g} s; simplify it")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        answer: dict[str, Any] = json.loads((folder / ANSWER).read_text())
    except OSError:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return _failed(task, f"made the process that reads it end with {how}; it is damaged, or too large")
    return answer


def _failed(task: dict[str, Any], problem: str) -> dict[str, Any]:
    return {"ok": False, "field": "model" if task["op"] == "check" else task["op"], "problem": problem}
