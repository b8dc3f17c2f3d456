"""How a child process runs models: provider, threads, and the part of the hardware that it may see.

Rules. One process a device or slice: CUDA shows one MIG instance a process, and it is chosen by environment before
the process starts. A model that would silently run on the CPU where a GPU was asked for is refused, unless that was
allowed. On a CPU: one thread an operator, no spinning, one process a core.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from sluicegate.executors.devices.cuda import CPU, CUDA, cuda_providers

Provider = Literal["cpu", "cuda"]
ConvolutionSearch = Literal["HEURISTIC", "EXHAUSTIVE", "DEFAULT"]
PROVIDERS: dict[Provider, str] = {"cpu": CPU, "cuda": CUDA}
"""Name here -> name in ONNX Runtime."""
_PACKAGES = ("onnxruntime-gpu", "onnxruntime")
"""Either is ONNX Runtime; the first one installed counts."""


def runtime_packages() -> list[tuple[str, str]]:
    """Packages that ONNX Runtime comes from, with their versions: one at most, unless one lies over another."""
    found = []
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found.append((package, version(package)))
    return found


def runtime_package() -> tuple[str, str] | None:
    """That which counts; None where none is installed."""
    return next(iter(runtime_packages()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """How a child process runs models. ``threads``: inside an operator. ``cores``: pin the process to these.

    ``visible``: variables that show the process its GPU, MIG instance or MPS daemon. ``memory_limit_bytes``: of the GPU
    arena (0: none). ``convolution_search``: how cuDNN's algorithms are chosen, at each new batch size.
    ``warm_every_size``: run every batch size once at loading, so that nothing is searched for while serving.
    ``cpu_fallback``: whether the CPU may stand in where the provider asked for is missing. ``address_space_bytes``: of
    the process, for models that nobody has vouched for yet (0: no limit; CUDA maps more than it uses: none for it).
    ``memory_margin_bytes``: of address space beyond what it has once its models are loaded and have run; what a batch
    asks for beyond that it does not get (0: no limit).
    """

    provider: Provider = "cpu"
    threads: int = 1
    cores: tuple[int, ...] = ()
    visible: Mapping[str, str] = field(default_factory=dict)
    memory_limit_bytes: int = 0
    convolution_search: ConvolutionSearch = "HEURISTIC"
    warm_every_size: bool = False
    cpu_fallback: bool = False
    address_space_bytes: int = 0
    memory_margin_bytes: int = 0

    def document(self) -> dict[str, Any]:
        """Plain JSON values, for the child."""
        return asdict(self)

    def environment(self) -> dict[str, str]:
        """Variables that must stand before the process starts."""
        variables = {"OMP_NUM_THREADS": str(self.threads), "OPENBLAS_NUM_THREADS": "1"}
        return {**variables, **(self.visible if self.provider == "cuda" else {"CUDA_VISIBLE_DEVICES": ""})}

    def providers(self) -> list[Any]:
        """What ``InferenceSession(providers=...)`` takes, the one asked for first."""
        if self.provider == "cpu":
            return [CPU]
        search = self.convolution_search
        return cuda_providers(self.memory_limit_bytes, fallback=self.cpu_fallback, search=search)
