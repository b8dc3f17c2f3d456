"""``sluice devices``: GPUs and their slices, what a geometry would take, cutting them, what shares their bandwidth."""

from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from sluicegate.domain.errors import ConfigurationError
from sluicegate.executors.devices.fake_gpus import fake_library
from sluicegate.executors.devices.gpu_library import DeviceError, DeviceLibrary
from sluicegate.executors.devices.mig_manager import FoundGpu, apply, discover, explained, steps_to
from sluicegate.executors.devices.nvml import PynvmlLibrary
from sluicegate.planner.geometry.mig_tables import Geometry, parse_geometry, shown
from sluicegate.sluice.commands.bandwidth import bandwidth
from sluicegate.sluice.console import JsonOption, one_line_errors, out, print_json

FakeOption = Annotated[
    str | None, typer.Option("--fake-gpu", metavar="TYPExN", help="Pretend: a100x8 is eight A100 (nothing is touched).")
]
GeometryOption = Annotated[
    str, typer.Option("--geometry", metavar="4g+2g+1g", help="Slices of each GPU; 0=4g+3g,1=7g by index.")
]
GpuOption = Annotated[list[int] | None, typer.Option("--gpu", min=0, help="Only this GPU (repeatable).")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    devices = typer.Typer(help="GPUs and their slices: list, plan, apply, bandwidth.", no_args_is_help=True)
    devices.command("list")(list_devices)
    devices.command("plan")(plan)
    devices.command("apply")(apply_geometry)
    devices.command("bandwidth")(bandwidth)
    app.add_typer(devices, name="devices")


def list_devices(fake_gpu: FakeOption = None, as_json: JsonOption = False) -> None:
    """List GPUs: what they are, how they are cut, what they measure, what they could be cut into."""
    with one_line_errors():
        found = discover(library_of(fake_gpu))
    if as_json:
        print_json({"gpus": [described(gpu) for gpu in found]})
        return
    table = Table(
        "gpu", "name", "memory", "MIG", "geometry", "used", "temp", "ECC", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for gpu in found:
        mig = {True: "on", False: "off", None: "-"}[gpu.info.mig]
        temperature = "-" if gpu.readings.temperature_c is None else f"{gpu.readings.temperature_c:.0f} °C"
        errors = "-" if gpu.readings.ecc_errors is None else str(gpu.readings.ecc_errors)
        geometry = shown(gpu.geometry) if gpu.info.mig else "whole"
        used = f"{gpu.readings.memory_used_bytes / 2**30:.1f} GB"
        memory = f"{gpu.info.memory_bytes / 2**30:.0f} GB"
        table.add_row(str(gpu.info.index), gpu.info.name, memory, mig, geometry, used, temperature, errors)
    out.print(table)


def plan(
    geometry: GeometryOption, gpu: GpuOption = None, fake_gpu: FakeOption = None, as_json: JsonOption = False
) -> None:
    """Show the steps that cut GPUs like GEOMETRY; nothing is touched."""
    with one_line_errors():
        library = library_of(fake_gpu)
        steps = _steps(library, _wanted(library, geometry, gpu))
    _print_steps(steps, as_json=as_json, applied=False)


def apply_geometry(
    geometry: GeometryOption,
    gpu: GpuOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the steps only.")] = False,
    fake_gpu: FakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cut GPUs like GEOMETRY. Instances that can stay do, with what runs there."""
    with one_line_errors():
        library = library_of(fake_gpu)
        wanted = _wanted(library, geometry, gpu)
        steps = _steps(library, wanted)
        found = [] if dry_run else [apply(library, index, cut) for index, cut in wanted.items()]
    if dry_run:
        _print_steps(steps, as_json=as_json, applied=False)
    elif as_json:
        print_json({"applied": True, "steps": [str(s) for s in steps], "gpus": [described(g) for g in found]})
    else:
        _print_steps(steps, as_json=False, applied=True)


def library_of(fake_gpu: str | None) -> DeviceLibrary:
    """The fake one asked for, or NVML. Raises ConfigurationError."""
    if fake_gpu is not None:
        return fake_library(fake_gpu)
    try:
        return PynvmlLibrary()
    except DeviceError as error:
        raise explained(error) from error


def described(gpu: FoundGpu) -> dict[str, Any]:
    """A GPU for JSON."""
    table = gpu.table
    return {
        "index": gpu.info.index,
        "uuid": gpu.info.uuid,
        "name": gpu.info.name,
        "memory_bytes": gpu.info.memory_bytes,
        "mig": gpu.info.mig,
        "geometry": list(gpu.geometry),
        "instances": [{"id": i.id, "profile": i.profile, "start": i.start, "uuid": i.uuid} for i in gpu.instances],
        "profiles": []
        if table is None
        else [
            {"name": p.name, "starts": list(p.starts), "size": p.span, "memory_bytes": p.memory_bytes}
            for p in table.profiles.values()
        ],
        "geometries": [] if table is None else [shown(g) for g in table.undominated],
        "utilisation": gpu.readings.utilisation,
        "memory_used_bytes": gpu.readings.memory_used_bytes,
        "temperature_c": gpu.readings.temperature_c,
        "ecc_errors": gpu.readings.ecc_errors,
    }


def _wanted(library: DeviceLibrary, text: str, gpus: list[int] | None) -> dict[int, Geometry]:
    """Geometry by GPU. Raises ConfigurationError, InvalidInputError."""
    try:
        count = library.count()
    except DeviceError as error:
        raise explained(error) from error
    if "=" in text:
        wanted = {}
        for part in text.split(","):
            index, _, geometry = part.partition("=")
            if not index.strip().isdigit():
                raise ConfigurationError(f"--geometry {text!r}: give index=geometry, such as 0=4g+3g,1=7g")
            if int(index) in wanted:
                raise ConfigurationError(f"--geometry {text!r}: GPU {int(index)} is given twice")
            wanted[int(index)] = parse_geometry(geometry)
    else:
        wanted = dict.fromkeys(range(count), parse_geometry(text))
    missing = [index for index in {*wanted, *(gpus or [])} if index >= count and (not gpus or index in gpus)]
    if missing:
        raise ConfigurationError(f"there is no GPU {missing[0]}; there are {count}")
    if unsaid := [index for index in gpus or [] if index not in wanted]:
        raise ConfigurationError(f"--gpu {unsaid[0]}: --geometry {text!r} says nothing of it")
    return {index: wanted[index] for index in gpus} if gpus else wanted


def _steps(library: DeviceLibrary, wanted: dict[int, Geometry]) -> list[Any]:
    return [step for index, geometry in wanted.items() for step in steps_to(library, index, geometry)]


def _print_steps(steps: list[Any], *, as_json: bool, applied: bool) -> None:
    if as_json:
        print_json({"applied": applied, "steps": [str(s) for s in steps]})
        return
    for step in steps:
        out.print(str(step), highlight=False)
    if not steps:
        out.print("nothing to do: the GPUs are cut like this")
    elif not applied:
        out.print(f"{len(steps)} steps; nothing was touched", style="dim")
