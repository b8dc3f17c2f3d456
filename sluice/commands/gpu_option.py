"""The option of commands that measure on a GPU in place of the processor, and how models run there."""

import re
from typing import Annotated

import typer

from sluicegate.domain.errors import InvalidInputError
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.sluice.settings.settings import Settings

CUDA_TYPE = "cuda"
"""Device type of GPUs that are not cut, unless another is said."""
_GPU = re.compile(r"^(\d{1,4}|(GPU|MIG)-[A-Za-z0-9/-]{1,120})$")

GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="GPU", help="A GPU's number, or the UUID of a GPU or MIG device (`devices list`)."),
]


def runtime_on(gpu: str | None, settings: Settings) -> Runtime | None:
    """How models run on ``gpu``, as workers run them; None for the processor. Raises InvalidInputError."""
    if gpu is None:
        return None
    if _GPU.match(gpu) is None:
        raise InvalidInputError(
            "--gpu", f"{gpu[:40]!r}; give a number or a UUID that `sluice devices list --json` tells"
        )
    return settings.worker.cuda.runtime({"CUDA_VISIBLE_DEVICES": gpu})
