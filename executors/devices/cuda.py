"""Options of ONNX Runtime's CUDA execution provider for one slice, and the refusal to fall back to the CPU.

Rules:
- The arena is limited to the memory that planning gave the variant, and grows by what is asked, not by powers of two.
- HEURISTIC convolution search: an exhaustive one takes seconds at every new batch size. Sizes are warmed at load, the
  largest first: its memory then holds the smaller ones, which from below each take some more.
- A missing CUDA library makes ONNX Runtime take the CPU in silence. Unless asked for, that is an error.
- CUDA and cuDNN may come as Python packages, where the linker does not look: they are loaded before the first session.
"""

from collections.abc import Sequence
from typing import Any

from sluicegate.domain.errors import ConfigurationError

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def cuda_providers(memory_bytes: int = 0, *, fallback: bool = False, search: str = "HEURISTIC") -> list[Any]:
    """The ``providers`` argument of a session. ``memory_bytes``: of the arena, 0 for no limit."""
    options: dict[str, Any] = {
        "device_id": 0,  # a child process sees one slice
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": search,
        "do_copy_in_default_stream": True,
    }
    if memory_bytes > 0:
        options["gpu_mem_limit"] = memory_bytes
    return [(CUDA, options), *([CPU] if fallback else [])]


def load_packaged_libraries(onnxruntime: Any) -> None:
    """Load CUDA and cuDNN from the Python packages that hold them, where the module ``onnxruntime`` can do so.

    Nothing happens where there are none: those of the system are found by the linker.
    """
    if hasattr(onnxruntime, "preload_dlls"):  # from 1.21 on
        onnxruntime.preload_dlls(msvc=False)


def refuse_fallback(active: Sequence[str], *, fallback: bool = False) -> None:
    """Raises ConfigurationError where a session does not run on CUDA though it should (``session.get_providers()``)."""
    if not fallback and (not active or active[0] != CUDA):
        found = active[0] if active else "nothing"
        raise ConfigurationError(
            f"the session runs on {found}, not on CUDA; install matching CUDA and cuDNN libraries, or allow the CPU"
        )


def warm_sizes(max_batch: int) -> tuple[int, ...]:
    """Every batch size, the largest first: each has its own convolution search."""
    return tuple(range(max_batch, 0, -1))
