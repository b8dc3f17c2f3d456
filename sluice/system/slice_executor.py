"""The executor of a slice, as the settings say."""

from pathlib import Path

from sluicegate.domain.executor import Executor
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.policies.placement.hosted_variants import profiled_as
from sluicegate.profiles.catalogue.catalogue import KnownCatalogue
from sluicegate.sluice.settings.settings import Settings


def executor_of(
    settings: Settings, known: KnownCatalogue, models: tuple[Path, Path], device: Device, part: Slice
) -> Executor:
    """What runs models on a slice of a device that is no GPU, or an emulated one. ``models``: folders they lie in."""
    from sluicegate.executors.emulated import EmulatedExecutor
    from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
    from sluicegate.executors.onnx.runtime_options import Runtime

    if settings.worker.executor == "emulated" or settings.fake_gpu is not None:
        return EmulatedExecutor(known, profiled_as(known, device, part), memory_bytes=part.memory_bytes)
    said = next((d for d in settings.devices if d.name == device.name), None)
    runtime = Runtime(
        threads=1 if said is None else said.threads,
        cores=() if said is None else said.cores,
        memory_margin_bytes=settings.worker.memory_margin_mb << 20,
    )
    return OnnxExecutor(models, known.apps, runtime)
