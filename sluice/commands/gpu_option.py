"""The option of commands that measure on a GPU in place of the processor, and how models run there."""

import re
from typing import Annotated

import typer

from sluicegate.domain.errors import InvalidInputError
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.profiles.formats.catalogue_json import LABEL
from sluicegate.sluice.settings.settings import Settings

CPU_TYPE, CUDA_TYPE = "cpu", "cuda"
"""Device types of processors and of GPUs that are not cut, unless others are said."""
_THREADS = re.compile(rf"^{CPU_TYPE}([0-9]{{1,128}})$")
"""Types of processors by the threads that a worker of theirs has, as they are registered for."""
_MOST_THREADS = 256
_GPU = re.compile(r"^(\d{1,4}|(GPU|MIG)-[A-Za-z0-9/-]{1,120})$")

GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="GPU", help="A GPU's number, or the UUID of a GPU or MIG device (`devices list`)."),
]


DeviceTypeOption = Annotated[
    str | None,
    typer.Option("--device-type", help="Device type, or slice, that this stands for. Default: cpu; with --gpu, cuda."),
]


def runtime_on(gpu: str | None, settings: Settings, device_type: str | None = None) -> Runtime | None:
    """How models run on ``gpu``, as workers run them, or on so many threads of the processor as ``device_type`` says;
    None for one. Raises InvalidInputError."""
    if gpu is None:
        named = _THREADS.match(device_type or "")
        if named is None:
            return None
        if not 1 <= int(named[1]) <= _MOST_THREADS:
            raise InvalidInputError("--device-type", f"{named[0][:40]}; give 1 to {_MOST_THREADS} threads")
        return Runtime(threads=int(named[1]))
    if _GPU.match(gpu) is None:
        raise InvalidInputError(
            "--gpu", f"{gpu[:40]!r}; give a number or a UUID that `sluice devices list --json` tells"
        )
    return settings.worker.cuda.runtime({"CUDA_VISIBLE_DEVICES": gpu})


def type_of(given: str | None, runtime: Runtime | None) -> str:
    """The device type that what runs by ``runtime`` stands for. Raises InvalidInputError for a GPU that is none, for a
    processor that is a GPU, and for what no catalogue takes."""
    if given is not None and re.fullmatch(LABEL, given) is None:
        raise InvalidInputError("--device-type", f"{given[:40]!r}; give up to 128 letters, digits and ' ._:/-'")
    if given == CUDA_TYPE and runtime is None:
        raise InvalidInputError("--device-type", f"{given} is a GPU; say which one with --gpu")
    on_gpu = runtime is not None and runtime.provider == "cuda"
    if given is not None and given.startswith(CPU_TYPE) and on_gpu:
        raise InvalidInputError("--device-type", f"{given[:40]} is a processor; leave out --gpu")
    return given or (CPU_TYPE if runtime is None else CUDA_TYPE)
