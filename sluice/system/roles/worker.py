"""The role ``worker``: one a device, with a runner, a batching rule and an executor for each of its slices."""

import uuid

from sluicegate.domain.executor import Executor
from sluicegate.domain.fleet.device import Device, Slice, profile_type
from sluicegate.policies.batching.registry import STATIONS, batching, takes
from sluicegate.policies.placement.model_staging import Staging
from sluicegate.sluice.system.system import System
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.worker.batch_runner import RunLimits
from sluicegate.stages.worker.device_runtime import HoldingOptions
from sluicegate.stages.worker.slice_runner import SliceRunner
from sluicegate.stages.worker.stage import WorkerOptions, WorkerStage
from sluicegate.stages.worker.table_follower import TableLibrary


def worker_stage(system: System, device: Device) -> WorkerStage:
    """The stage ``worker`` of ``device``."""
    worker = system.settings.worker
    gpu = system.gpus.gpu(device)
    tables = TableLibrary()

    def make_slices(stage: WorkerStage, device: Device) -> list[SliceRunner]:
        tables.leave()
        runners = []
        for part in device.slices:
            executor = (
                system.make_executor(device, part)
                if gpu is None
                else system.gpus.executor(gpu, device, part, system.known, system.model_folders)
            )
            runner = _runner(system, stage, device, part, executor)
            tables.follow(profile_type(device.type, part.profile), runner.swap)
            runners.append(runner)
        return runners

    stage = WorkerStage(
        device,
        broker=system.broker,
        producer=system.producer,
        topics=system.topics,
        clock=system.clock,
        new_incarnation=lambda: uuid.uuid4().hex[:12],
        make_slices=make_slices,
        catalogue=system.known,
        promised=system.promised,
        exactly_once=system.exactly_once,
        options=WorkerOptions(heartbeat=worker.heartbeat_s, max_in_flight=worker.max_in_flight),
        telemetry=system.telemetry,
        gpu=gpu,
        holding=HoldingOptions(
            patience=worker.slices.drain_s,
            first=system.gpus.first_cut(device) if gpu is not None else (),
            bound=system.bound,
            make_sharing=system.gpus.sharing,
        ),
    )
    if takes(worker.batching, "tables"):
        stage.followers.append(Follower(system.broker, system.topics.policies, tables.handle))
        if system.turns_told:
            stage.followers.append(Follower(system.broker, system.topics.turns, stage.turned, start_at="end"))
    return stage


def _runner(system: System, stage: WorkerStage, device: Device, part: Slice, executor: Executor) -> SliceRunner:
    worker = system.settings.worker
    name = worker.batching
    options = {"guard_s": worker.guard_s} if takes(name, "guard_s") else {}
    if takes(name, "tables"):
        options["margin"] = system.settings.tables.margin
    station = STATIONS[worker.turns](batching(name, **{**options, **worker.batching_options}))
    return SliceRunner(
        device=device,
        part=part,
        station=system.recorded(station, f"worker-{device.name}-{part.name}"),
        staging=Staging(device, part, system.known, quantile=system.settings.planner.quantile),
        policy=name,
        executor=executor,
        catalogue=system.known,
        clock=system.clock,
        ends=stage.ends,
        acknowledge=stage.acknowledge,
        fails=stage.failed,
        announce=stage.announce,
        telemetry=system.telemetry,
        limits=RunLimits(factor=worker.run_timeout_factor, floor=worker.run_timeout_floor_s),
    )
