"""Reads and transforms untrusted models: ``python -m sluicegate.executors.onnx.variant_child FOLDER
PARENT_PID``.

Rules. One task a process: ``task.json`` in FOLDER says what to do. Of a check, ``answer.json`` says what came of it and
``result.onnx`` is the model; of recipes, ``<recipe>.json`` and ``<recipe>.onnx`` appear one after the other, the answer
last and whole. Want of room on a disk ends the process with that error's number: an answer might not be written either.
A model that crashes a library, takes all memory or never ends takes this process with it and no other; the parent's
death ends it too. Nothing here runs a model but ONNX Runtime and its tools.
"""

import errno
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from sluicegate.domain.errors import InvalidInputError
from sluicegate.executors.linux_processes import die_with_parent
from sluicegate.executors.onnx.child import limit_memory

TASK, ANSWER, RESULT, CALIBRATION = "task.json", "answer.json", "result.onnx", "calibration.npz"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of which no model is the reason."""


def check(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Read the model at ``task["path"]``; the model that serves batches, and its interface."""
    from sluicegate.profiles.registration.batch_axis import open_interface
    from sluicegate.profiles.registration.model_checks import ModelLimits, read_checked

    model = read_checked(Path(task["path"]), ModelLimits(total_bytes=task["max_bytes"]))
    interface = open_interface(model)
    (folder / RESULT).write_bytes(model.SerializeToString(deterministic=True))
    return {
        "inputs": [[p.name, p.datatype, p.row_shape] for p in interface.inputs],
        "outputs": [[p.name, p.datatype, p.row_shape] for p in interface.outputs],
        "notes": list(interface.notes),
        "fixed_batch": interface.fixed_batch,
    }


def make(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make each of ``task["recipes"]`` of the checked model at ``task["path"]``."""
    import numpy as np
    import onnx

    from sluicegate.profiles.registration import recipes

    with np.load(folder / CALIBRATION, allow_pickle=False) as arrays:
        calibration = {name: arrays[f"arr_{i}"] for i, name in enumerate(task["inputs"])}
    source = recipes.Source(onnx.load(task["path"]), calibration)
    for recipe in task["recipes"]:
        try:
            (folder / f"{recipe}.onnx").write_bytes(recipes.make(recipe, source))
            answer = {"skipped": ""}
        except recipes.NotApplicableError as error:
            answer = {"skipped": str(error)}
        except Exception as error:  # the tools raise what they like; the next recipe may do better
            _check_room(error, folder, Path(task["path"]).stat().st_size)
            answer = {"skipped": f"could not be made: {type(error).__name__}: {one_line(error)}"}
        write_answer(folder / f"{recipe}.json", answer)
    return {}


def _check_room(error: Exception, folder: Path, size: int) -> None:
    """Raises OSError where ``error`` says that a disk is full, or ``folder`` has no room for ``size``: ONNX Runtime
    calls it INVALID_PROTOBUF."""
    if isinstance(error, OSError) and error.errno in FULL:
        raise error
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as found:
        if found.errno in FULL:  # else it cannot be tried there
            raise


def one_line(error: BaseException) -> str:
    """What it says, on one line of bounded length."""
    return " ".join(str(error).split())[:200]


def write_answer(path: Path, answer: dict[str, Any]) -> None:
    """So that whoever sees the file sees all of it."""
    unfinished = path.with_suffix(".writing")
    unfinished.write_text(json.dumps(answer))
    unfinished.replace(path)


def work(folder: Path) -> dict[str, Any]:
    """Do the task; the answer, one line of why where it failed."""
    task = json.loads((folder / TASK).read_text())
    limit_memory(task["memory_bytes"])
    try:
        return {"ok": True, **{"check": check, "make": make}[task["op"]](task, folder)}
    except InvalidInputError as error:
        return {"ok": False, "field": error.field, "problem": error.problem}
    except MemoryError:
        return {"ok": False, "field": "model", "problem": "needs more memory than it may take; give a smaller one"}
    except Exception as error:  # the tools raise what they like; the parent gets one line of it
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        return {"ok": False, "field": task["op"], "problem": f"{type(error).__name__}: {one_line(error)}"}


def main() -> None:
    """Work, write the answer, leave."""
    folder = Path(sys.argv[1])
    die_with_parent(int(sys.argv[2]))
    try:
        write_answer(folder / ANSWER, work(folder))
    except OSError as error:
        os._exit(error.errno if error.errno in FULL else 1)
    os._exit(0)


if __name__ == "__main__":
    main()
