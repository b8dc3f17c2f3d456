"""``sluice devices bandwidth``: what share of a device's bandwidth each variant takes, from running them together."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.executor import Executor
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.commands.gpu_option import DeviceTypeOption, GpuOption, runtime_on, type_of
from sluicegate.sluice.commands.models.profile import choose
from sluicegate.sluice.commands.models.profile import keep as keep_profiles
from sluicegate.sluice.console import JsonOption, err, one_line_errors, out, print_json
from sluicegate.sluice.settings.settings import Settings, load

_HELD = 6
"""Co-locations that the estimate is held against."""


def bandwidth(
    app: Annotated[list[str], typer.Option("--app", help="Variants of this app; may be given again.")],
    batch: Annotated[int, typer.Option(min=1, max=64, help="Rows of each batch.")] = 8,
    copies: Annotated[int, typer.Option(min=2, max=8, help="Copies of a variant at a time, at most.")] = 4,
    seconds: Annotated[float, typer.Option(min=0.05, max=60.0, help="That each co-location runs for.")] = 1.0,
    cores: Annotated[
        str | None, typer.Option("--cores", metavar="0,1", help="Pin all copies to these cores (CPU; default: all).")
    ] = None,
    gpu: GpuOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep what is found in the profiles of --device-type.")] = False,
    device_type: DeviceTypeOption = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate FBR: run two and more copies of each variant, and every pair, and compare with running alone.

    Two of one variant beside one of another are run too, and held against what the estimate says of them. What is kept
    says how much slower batches run beside each other where worker.slices.executors has several at a time.
    """
    from sluicegate.executors.colocation import colocations, measure_colocations, unseen
    from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
    from sluicegate.policies.placement.bandwidth import estimate_fbr, predicted

    with one_line_errors():
        if cores is not None:
            _pin(cores)
        given = load(settings)
        runtime = runtime_on(gpu, given, device_type)
        kind = type_of(device_type, runtime)
        catalogue, folder = open_catalogue(given, app)
        chosen = choose(catalogue, app)

        def make() -> Executor:
            return OnnxExecutor(folder, catalogue.apps, runtime)

        names = [v.name for v in chosen]
        fitted, held = colocations(names, copies), unseen(names)[:_HELD]
        with err.status("measuring"):
            measured = asyncio.run(
                measure_colocations(make, catalogue.apps, chosen, batch=batch, wanted=[*fitted, *held], seconds=seconds)
            )
        # Two per cent is noise on an idle GPU; a shared CPU has more.
        found = estimate_fbr(measured[: len(fitted)], saturation=0.05)
        if keep:
            _keep(given, catalogue, folder, {n: found.fbr[n] for n in found.identifiable}, kind)
    rows = [
        {
            "variants": list(m.variants),
            "slowdown": m.slowdown,
            "predicted": predicted(found.fbr, m.variants),
            "throughput": m.throughput,
            "throughput_predicted": len(m.variants) / predicted(found.fbr, m.variants),
            "p95": m.p95,
            "fitted": i < len(fitted),
        }
        for i, m in enumerate(measured)
    ]
    if as_json:
        known = sorted(found.identifiable)
        print_json({"batch": batch, "fbr": found.fbr, "identifiable": known, "colocations": rows})
        return
    table = Table("variant", "FBR")
    for name, fbr in found.fbr.items():
        table.add_row(name, f"{fbr:.2f}" if name in found.identifiable else "not found")
    out.print(table)
    table = Table("together", "slower", "model", "p95", "throughput", "model", "in the estimate")
    for row, one in zip(rows, measured, strict=True):
        table.add_row(
            ", ".join(one.variants),
            *(f"{row[key]:.2f}" for key in ("slowdown", "predicted", "p95", "throughput", "throughput_predicted")),
            "yes" if row["fitted"] else "no",
        )
    out.print(table)
    out.print("times and rates over those of one alone; p95 is over its p95 alone", style="dim")


def _keep(settings: Settings, catalogue: Catalogue, folder: Path, fbr: Mapping[str, float], kind: str) -> None:
    """Write it into the profiles of device type ``kind``. Raises ConfigurationError where a variant has none."""
    missing = sorted(name for name in fbr if (name, kind) not in catalogue.profiles)
    if missing or not fbr:
        raise ConfigurationError(
            f"--keep: {', '.join(missing)} not profiled on {kind!r}; run sluice profile first"
            if missing
            else "--keep: nothing was found; more --copies or --seconds tell more"
        )
    keep_profiles(settings, catalogue, folder, [replace(catalogue.profiles[n, kind], fbr=f) for n, f in fbr.items()])


def _pin(cores: str) -> None:
    """This process, and those it starts, to some cores. Raises ConfigurationError."""
    try:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    except (ValueError, OSError) as error:
        raise ConfigurationError(
            f"--cores {cores!r}: give numbers of {sorted(os.sched_getaffinity(0))}, such as 0,1"
        ) from error
