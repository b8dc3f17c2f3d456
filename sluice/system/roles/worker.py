"""The role ``worker``: one a device, with its core, and the executors of its slices."""

import logging
import uuid

from sluicegate.domain.executor import Executor
from sluicegate.domain.fleet.device import Device, Slice, executors_of
from sluicegate.planner.estimates.device_liveness import SELF_FENCE
from sluicegate.policies.batching.registry import STATIONS, batching, takes
from sluicegate.policies.placement.model_staging import Staging
from sluicegate.policies.serving.batch_times import RunLimits
from sluicegate.policies.serving.device_core import DeviceCore
from sluicegate.policies.serving.slices import DeviceParts, DeviceRules
from sluicegate.sluice.system.system import System
from sluicegate.stages.worker.options import WorkerOptions, WorkerPorts
from sluicegate.stages.worker.slice_runner import SliceRunner
from sluicegate.stages.worker.stage import WorkerStage

log = logging.getLogger(__name__)


def worker_stage(system: System, device: Device) -> WorkerStage:
    """The stage ``worker`` of ``device``. A type that nothing is profiled on is told of: no plan counts on it."""
    if system.objects is not None and not system.objects.writable():
        log.warning(
            "device %s: objects.results: %s cannot be written, so that results too large for their topic fail: give a "
            "folder that can", device.name, system.objects.results,
        )  # fmt: skip
    worker = system.settings.worker
    known = system.known.device_types
    if not any(kind.partition(":")[0] == device.type for kind in known):
        log.warning(
            "device %s: nothing is profiled on type %r, so that no plan uses it; there are %s: correct the type, or "
            "measure there (sluice profile, sluice register)",
            device.name, device.type, ", ".join(known) or "none",
        )  # fmt: skip
    gpu = system.gpus.gpu(device)
    tables = takes(worker.batching, "tables")
    core = device_core(system, device, cuttable=gpu is not None and gpu.cuttable)

    def make_runner(stage: WorkerStage, device: Device, part: Slice) -> SliceRunner:
        def make() -> Executor:
            if gpu is None or system.gpus.emulated:
                return system.make_executor(device, part)
            return system.gpus.executor(gpu, part, system.known, system.model_folders)

        number = executors_of(worker.slices.executors, device.type, part.profile)
        return SliceRunner(
            device.name,
            part.name,
            executors=[make() for _ in range(number)],
            owner=stage,
            catalogue=system.known,
            clock=system.clock,
            telemetry=system.telemetry,
        )

    return WorkerStage(
        device,
        core,
        system.recording(core.handle, f"worker-{device.name}"),
        make_runner=make_runner,
        catalogue=system.known,
        ports=WorkerPorts(
            broker=system.broker,
            producer=system.producer,
            topics=system.topics,
            clock=system.clock,
            new_incarnation=lambda: uuid.uuid4().hex[:12],
            exactly_once=system.exactly_once,
            telemetry=system.telemetry,
            objects=system.objects,
        ),
        options=WorkerOptions(
            policy=worker.batching,
            heartbeat=worker.heartbeat_s,
            max_in_flight=worker.max_in_flight,
            promised=system.promised,
            first_cut=system.gpus.first_cut(device) if gpu is not None else (),
            tables=tables,
            turns=tables and system.turns_told,
        ),
        gpu=gpu,
    )


def device_core(system: System, device: Device, *, cuttable: bool = False) -> DeviceCore:
    """What decides for the worker of ``device``."""
    worker = system.settings.worker
    name = worker.batching
    options = {"guard_s": worker.guard_s} if takes(name, "guard_s") else {}
    if takes(name, "tables"):
        options["margin"] = system.settings.tables.margin
    make_batching = batching(name, **{**options, **worker.batching_options})
    quantile = worker.quantile
    hops = system.settings.admission.hops()
    return DeviceCore(
        device,
        DeviceParts(
            make_station=lambda: STATIONS[worker.turns](make_batching, hops),
            make_staging=lambda device, part: Staging(device, part, system.known, quantile=quantile),
            make_sharing=system.gpus.sharing,
        ),
        system.known,
        DeviceRules(
            limits=RunLimits(
                factor=worker.run_timeout_factor,
                floor=worker.run_timeout_floor_s,
                load_floor=worker.load_timeout_floor_s,
            ),
            self_fence=SELF_FENCE * system.settings.planner.device_timeout_s,
            patience=worker.slices.drain_s,
            bound=system.bound,
            cuttable=cuttable,
            instances=True,
            executors=worker.slices.executors,
        ),
    )
