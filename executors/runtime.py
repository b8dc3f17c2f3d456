"""How a child process runs models: provider, threads, and the part of the hardware that it may see.

Rules. One process a device or slice: CUDA shows one MIG instance a process, and it is chosen by environment before
the process starts. A model that would silently run on the CPU where a GPU was asked for is refused, unless that was
allowed. On a CPU: one thread an operator, no spinning, one process a core.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Provider = Literal["cpu", "cuda"]
PROVIDERS: dict[Provider, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""Name here -> name in ONNX Runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """``threads``: inside an operator. ``core``: pin the process to this core.

    ``visible_device``: UUID of a GPU or MIG instance. ``memory_limit_bytes``: of the GPU arena (0: none).
    ``compute_share``: per cent of the GPU's threads under MPS (0: all). ``cpu_fallback``: whether the CPU may stand in
    where the provider asked for is missing. ``address_space_bytes``: of the process, for models that nobody has vouched
    for yet (0: no limit; none can be set with CUDA, which maps more than it uses).
    """

    provider: Provider = "cpu"
    threads: int = 1
    core: int | None = None
    visible_device: str = ""
    memory_limit_bytes: int = 0
    compute_share: int = 0
    cpu_fallback: bool = False
    address_space_bytes: int = 0

    def document(self) -> dict[str, Any]:
        """Plain JSON values, for the child."""
        return asdict(self)

    def environment(self) -> dict[str, str]:
        """Variables that must stand before the process starts."""
        variables = {"OMP_NUM_THREADS": str(self.threads), "OPENBLAS_NUM_THREADS": "1"}
        if self.provider == "cuda":
            if self.visible_device:
                variables["CUDA_VISIBLE_DEVICES"] = self.visible_device
            if self.compute_share:
                variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(self.compute_share)
        else:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        return variables

    def providers(self) -> list[str | tuple[str, dict[str, str]]]:
        """What ``InferenceSession(providers=...)`` takes, the one asked for first."""
        if self.provider == "cpu":
            return [PROVIDERS["cpu"]]
        options = {
            # The process sees one device, so it is always number 0.
            "device_id": "0",
            # Grow by what is asked for, not by doubling: slices are small and their memory is budgeted.
            "arena_extend_strategy": "kSameAsRequested",
            # An exhaustive search would run on every new batch size, in the middle of serving.
            "cudnn_conv_algo_search": "HEURISTIC",
        }
        if self.memory_limit_bytes:
            options["gpu_mem_limit"] = str(self.memory_limit_bytes)
        return [(PROVIDERS["cuda"], options), PROVIDERS["cpu"]]

    def accepts(self, actual: str) -> bool:
        """Whether a session whose first provider is ``actual`` runs where it was meant to."""
        return actual == PROVIDERS[self.provider] or (self.cpu_fallback and actual == PROVIDERS["cpu"])
