"""Settings of GPUs and their slices."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from sluicegate.domain.errors import SluiceError
from sluicegate.executors.devices.fake_gpus import fake_gpus
from sluicegate.executors.onnx.runtime_options import ConvolutionSearch, Runtime
from sluicegate.planner.geometry.mig_tables import parse_geometry
from sluicegate.profiles.formats.field_types import Factor, Text
from sluicegate.sluice.settings.endpoint_settings import Section


class CudaSettings(Section):
    """How ONNX Runtime runs on a GPU or slice, one process each.

    ``memory_limit_mb``: of its arena; by default its part of the memory of its slice, 0: no limit.
    ``convolution_search``: of cuDNN's algorithms. ``warm_every_batch``: run each batch size once at loading, else 1,
    2, 4, ... ``cpu_fallback``: whether the CPU may stand in where CUDA is missing. ``mps``: an MPS daemon before each
    slice, with directories under ``mps_folder``; ``mps_threads``: per cent of the slice's compute.
    """

    memory_limit_mb: int | None = Field(default=None, ge=0)
    convolution_search: ConvolutionSearch = "HEURISTIC"
    warm_every_batch: bool = True
    cpu_fallback: bool = False
    mps: bool = False
    mps_folder: Path = Path("/tmp/sluice-mps")  # noqa: S108 - daemons want a short path that every user can reach
    mps_threads: int | None = Field(default=None, ge=1, le=100)

    def runtime(self, visible: Mapping[str, str], memory_bytes: int = 0) -> Runtime:
        """How a process runs models on what ``visible`` shows it of GPUs, ``memory_bytes`` of it (0: all)."""
        return Runtime(
            provider="cuda",
            visible=visible,
            memory_limit_bytes=memory_bytes if self.memory_limit_mb is None else self.memory_limit_mb << 20,
            convolution_search=self.convolution_search,
            warm_every_size=self.warm_every_batch,
            cpu_fallback=self.cpu_fallback,
        )


class SliceSettings(Section):
    """Slices of a GPU. ``choice``: who picks the slice of a query where several host its app: ``plan`` (the router, by
    the plan's shares), or the worker by a rule of ``sluicegate.policies.placement``.

    ``geometry``: what a GPU without any instance is cut into at the start (default: one instance). ``drain_s``: how
    long queries may wait on a GPU that is to be cut before they go to others. ``rdf``: time on a slice profile over
    that on the whole GPU, for variants that are not profiled there. ``executors``: processes a slice that run a batch
    each at the same time, by device type or slice (``cpu: 2``, ``a100:4g: 3``); plans count on what they end together
    by what share of the slice a batch takes (``sluice devices bandwidth --keep``), all where that is not known.
    ``fake_step_s``: seconds that a fake GPU takes to make or destroy an instance.
    """

    choice: Literal["plan", "strict-first", "strict-room"] = "plan"
    geometry: Text | None = None
    drain_s: float = Field(default=5.0, gt=0, le=600, allow_inf_nan=False)
    rdf: dict[str, Factor] = Field(default_factory=dict)
    executors: dict[str, Annotated[int, Field(ge=1, le=64)]] = Field(default_factory=dict)
    fake_step_s: float = Field(default=0.5, ge=0, le=60, allow_inf_nan=False)

    @field_validator("geometry")
    @classmethod
    def _readable(cls, text: str | None) -> str | None:
        return None if text is None else _said(text, parse_geometry)


def readable_fake(text: str | None) -> str | None:
    """``text`` if it names fake GPUs. Raises ValueError."""
    return None if text is None else _said(text, fake_gpus)


def _said(text: str, read: Any) -> str:
    try:
        read(text)
    except SluiceError as error:
        raise ValueError(str(error)) from error
    return text
