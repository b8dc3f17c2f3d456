"""``sluice describe bandwidth``: what share of a device's bandwidth each variant takes, from running them together."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sluicegate.domain.executor import Executor
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.commands.models.profile import choose
from sluicegate.sluice.console import JsonOption, err, one_line_errors, out, print_json
from sluicegate.sluice.settings.settings import load


def bandwidth(
    app: Annotated[list[str], typer.Option("--app", help="Variants of this app; may be given again.")],
    batch: Annotated[int, typer.Option(min=1, max=64, help="Rows of each batch.")] = 8,
    copies: Annotated[int, typer.Option(min=2, max=8, help="Copies of a variant at a time, at most.")] = 4,
    seconds: Annotated[float, typer.Option(min=0.05, max=60.0, help="That each co-location runs for.")] = 1.0,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="UUID", help="GPU or MIG device, as `devices list --json` names it; else CPU."),
    ] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate FBR: run two and more copies of each variant, and every pair, and compare with running alone."""
    from sluicegate.executors.colocation import measure_colocations
    from sluicegate.executors.devices.mps import check_uuid
    from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
    from sluicegate.executors.onnx.runtime_options import Runtime
    from sluicegate.policies.placement.bandwidth import estimate_fbr

    with one_line_errors():
        if gpu is not None:
            check_uuid(gpu)
        catalogue, folder = open_catalogue(load(settings), app)
        chosen = choose(catalogue, app)
        visible = {"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else {}
        runtime = Runtime(provider="cuda", visible=visible) if gpu is not None else Runtime()

        def make() -> Executor:
            return OnnxExecutor(folder, catalogue.apps, runtime)

        with err.status("measuring"):
            measured = asyncio.run(
                measure_colocations(make, catalogue.apps, chosen, batch=batch, copies=copies, seconds=seconds)
            )
        # Two per cent is noise on an idle GPU; a shared CPU has more.
        found = estimate_fbr(measured, saturation=0.05)
    if as_json:
        rows = [{"variants": list(m.variants), "slowdown": m.slowdown} for m in measured]
        known = sorted(found.identifiable)
        print_json({"batch": batch, "fbr": found.fbr, "identifiable": known, "colocations": rows})
        return
    table = Table("variant", "FBR", "slowdown of two copies")
    twice = {m.variants[0]: m.slowdown for m in measured if len(m.variants) == 2 and len(set(m.variants)) == 1}
    for name, fbr in found.fbr.items():
        table.add_row(name, f"{fbr:.2f}" if name in found.identifiable else "not found", f"{twice[name]:.2f}")
    out.print(table)
