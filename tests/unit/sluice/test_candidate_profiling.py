"""Profiling a registration's candidates: on which kinds of device, and what becomes of those that cannot be loaded or
run there."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError, ExecutionError, LoadError
from sluicegate.domain.executor import Executed, Loaded
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.devices.gpu_library import DeviceError, Fault
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.executors.onnx import runtime_options
from sluicegate.executors.onnx.runtime_options import Runtime, runtime_package
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.profiler import Effort
from sluicegate.sluice.registration import registration_candidates
from sluicegate.sluice.registration.candidate_profiling import CandidateProfiling
from sluicegate.sluice.registration.registration_candidates import Made, targets
from tests.models.executor_models import query, write_catalogue

GPU = Runtime(provider="cuda")


class Refusing(EmulatedExecutor):
    """Cannot load ``refused``; trying takes the process, with all that it had loaded."""

    refused: tuple[str, ...] = ()
    closes = 0

    @override
    async def load(self, variant: Variant, *, max_batch: int, within: float | None = None) -> Loaded:
        if variant.name in self.refused:
            await super().close()
            self._on_end()
            raise LoadError(f"{variant.name}: load took more than 60 s")
        return await super().load(variant, max_batch=max_batch, within=within)

    @override
    async def close(self) -> None:
        self.closes += 1
        await super().close()


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return write_catalogue(tmp_path / "catalogue")


def profiling(catalogue: Catalogue, executor: EmulatedExecutor, journal: Path) -> CandidateProfiling:
    return CandidateProfiling(
        app=catalogue.apps["affine"],
        rows=[query((i, 1)) for i in range(4)],
        batches=(1, 4),
        effort=Effort(least=2, enough=3),
        seed=5,
        journal=journal,
        make_executor=lambda _: executor,
        progress=lambda what, done: None,
    )


def made(catalogue: Catalogue, *names: str) -> list[Made]:
    return [Made(name, catalogue.variants[name], np.zeros(2), finite=True) for name in names]


async def test_what_cannot_be_loaded_on_a_device_is_told_there_and_the_others_are_measured(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    executor = Refusing(catalogue, "cpu")
    executor.refused = ("triple",)
    candidates = made(catalogue, "double", "triple", "raising")
    await profiling(catalogue, executor, tmp_path).on("cuda", GPU, candidates, {"double"})
    double, triple, raising = candidates
    assert triple.unloaded == {"cuda": "cannot be loaded on cuda: triple: load took more than 60 s"}
    assert triple.profiles == triple.rounds == {}
    assert double.unloaded == raising.unloaded == {}
    assert [p.batch for p in double.profiles["cuda"].points] == [1, 4]
    assert raising.profiles["cuda"].variant == "raising" and raising.profiles["cuda"].device_type == "cuda"
    assert all(s.wall == s.cpu for samples in double.rounds["cuda"].values() for s in samples), (
        "a GPU's time is its own"
    )
    assert executor.closes == 1


async def test_a_registered_model_must_load_wherever_it_is_profiled(catalogue: Catalogue, tmp_path: Path) -> None:
    executor = Refusing(catalogue, "cpu")
    executor.refused = ("triple",)
    candidates = made(catalogue, "double", "triple")
    with pytest.raises(LoadError, match="triple"):
        await profiling(catalogue, executor, tmp_path).on("cpu", Runtime(), candidates, {"double", "triple"})
    assert executor.closes == 1


class Breaking(EmulatedExecutor):
    """``broken`` fails in every batch of 4 after its first, ``fatal`` with all that was loaded; counts its starts."""

    broken = ""
    fatal = False
    starts = 0

    def __init__(self, catalogue: Catalogue, device_type: str) -> None:
        super().__init__(catalogue, device_type)
        self.ran: Counter[tuple[str, int]] = Counter()

    @override
    async def start(self) -> None:
        self.starts += not self._started
        await super().start()

    @override
    async def run(
        self,
        variant: str,
        inputs: Sequence[Sequence[Tensor]],
        rows: int,
        *,
        within: float | None = None,
        apart: bool = False,
    ) -> Executed:
        self.ran[variant, rows] += 1
        if (variant, rows) == (self.broken, 4) and self.ran[variant, rows] > 1:
            if self.fatal:
                await super().close()
                self._on_end()
            raise ExecutionError(f"{variant}: too much", fatal=self.fatal)
        return await super().run(variant, inputs, rows, within=within, apart=apart)


@pytest.mark.parametrize("fatal", [True, False])
async def test_what_fails_while_it_is_measured_is_told_there_and_the_others_are_measured_to_the_end(
    catalogue: Catalogue, tmp_path: Path, fatal: bool
) -> None:
    executor = Breaking(catalogue, "cpu")
    executor.broken, executor.fatal = "triple", fatal
    candidates = made(catalogue, "double", "triple", "raising")
    await profiling(catalogue, executor, tmp_path).on("cpu", Runtime(), candidates, {"double"})
    double, triple, raising = candidates
    assert triple.unloaded == {"cpu": "fails while it is measured on cpu: triple: too much"}
    assert triple.profiles == triple.rounds == {}
    for other in (double, raising):
        assert other.unloaded == {}
        assert [p.batch for p in other.profiles["cpu"].points] == [1, 4]
        assert [executor.ran[other.variant.name, n] for n in (1, 4)] == [3, 3], "what was measured before is kept"
    assert executor.starts == (2 if fatal else 1)


async def test_a_registered_model_must_run_wherever_it_is_profiled(catalogue: Catalogue, tmp_path: Path) -> None:
    executor = Breaking(catalogue, "cpu")
    executor.broken = "triple"
    candidates = made(catalogue, "double", "triple")
    with pytest.raises(ExecutionError, match="triple: too much"):
        await profiling(catalogue, executor, tmp_path).on("cpu", Runtime(), candidates, {"double", "triple"})
    assert candidates[1].unloaded == {}


class Nvml:
    """So many GPUs; None: no driver."""

    found: int | None = 0

    def __init__(self) -> None:
        if self.found is None:
            raise DeviceError(Fault.UNAVAILABLE, "no driver")

    def count(self) -> int:
        assert self.found is not None
        return self.found


@pytest.mark.parametrize(
    ("providers", "gpus", "threads", "kinds"),
    [
        (["CUDAExecutionProvider"], 2, (4, 1), ["cpu", "cpu4", "cuda"]),
        (["CUDAExecutionProvider"], 2, (), ["cuda"]),
        (["CUDAExecutionProvider"], 0, (1,), ["cpu"]),
        (["CUDAExecutionProvider"], None, (1,), ["cpu"]),
        (["CPUExecutionProvider"], 2, (2,), ["cpu2"]),
    ],
)
def test_models_are_profiled_on_gpus_where_onnx_runtime_can_use_them_and_there_are_any(
    monkeypatch: pytest.MonkeyPatch, providers: list[str], gpus: int | None, threads: tuple[int, ...], kinds: list[str]
) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    monkeypatch.setattr(registration_candidates, "PynvmlLibrary", Nvml)
    monkeypatch.setattr(Nvml, "found", gpus)
    found = targets(threads)
    assert [kind for kind, _ in found] == kinds
    assert [runtime.threads for kind, runtime in found if kind != "cuda"] == sorted(threads)
    gpu = dict(found).get("cuda")
    assert gpu is None or (gpu.provider == "cuda" and gpu.warm_every_size), "as workers load them"


def test_gpus_alone_cannot_be_profiled_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_candidates, "PynvmlLibrary", Nvml)
    with pytest.raises(ConfigurationError, match="--threads none"):
        targets(())


@pytest.mark.parametrize(
    ("installed", "found"),
    [
        ({"onnxruntime": "1.2"}, ("onnxruntime", "1.2")),
        ({"onnxruntime-gpu": "1.3"}, ("onnxruntime-gpu", "1.3")),
        ({"onnxruntime": "1.2", "onnxruntime-gpu": "1.3"}, ("onnxruntime-gpu", "1.3")),
        ({}, None),
    ],
)
def test_either_package_of_onnx_runtime_will_do(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], found: tuple[str, str] | None
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise runtime_options.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(runtime_options, "version", version)
    assert runtime_package() == found
