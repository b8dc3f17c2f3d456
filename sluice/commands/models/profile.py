"""``sluice profile``: measure variants again on this machine, through the executor that serves them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.profile import Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.executors.profile_runner import ProfileOptions
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import keep_profiles
from sluicegate.profiles.catalogue.profiler import BATCH_SIZES, Effort
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.profiles.catalogue.registered_apps import merged as joined
from sluicegate.profiles.demo.build_models import FAMILIES, HEAVY
from sluicegate.profiles.formats.catalogue_json import MAX_BATCH, fingerprint, profile_to_document
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.commands.gpu_option import DeviceTypeOption, GpuOption, runtime_on, type_of
from sluicegate.sluice.commands.models.variants import add_profile_columns, profile_cells
from sluicegate.sluice.console import JsonOption, one_line_errors, out, print_json, steps
from sluicegate.sluice.settings.settings import Settings, load


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("profile")(profile)


def profile(
    app: Annotated[list[str] | None, typer.Option("--app", help="Variants of this app; may be given again.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Variants of every app.")] = False,
    gpu: GpuOption = None,
    device_type: DeviceTypeOption = None,
    batches: Annotated[str, typer.Option(help="Batch sizes to measure.")] = ",".join(map(str, BATCH_SIZES)),
    repeats: Annotated[int, typer.Option(min=3, max=10_000, help="Samples a batch size, where time allows.")] = 50,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure latency, load time and memory of variants here, and keep them in the catalogue."""
    with one_line_errors():
        if bool(app) == every:
            raise InvalidInputError("--app", "name the apps to profile, or give --all")
        sizes = read_batches(batches)
        given = load(settings)
        runtime = runtime_on(gpu, given, device_type)
        kind = type_of(device_type, runtime)
        catalogue, folder = open_catalogue(given, app or [])
        chosen = choose(catalogue, list(catalogue.apps) if every else app or [])
        options = ProfileOptions(device_type=kind, batches=sizes, effort=Effort(least=min(7, repeats), enough=repeats))
        measured = [
            replace(found, fbr=known.fbr) if (known := catalogue.profiles.get((found.variant, kind))) else found
            for found in _measure(folder, catalogue, chosen, options, runtime)
        ]
        merged = keep(given, catalogue, folder, measured)
    if as_json:
        profiles = [profile_to_document(p) for p in measured]
        print_json({"folder": str(folder), "fingerprint": fingerprint(merged), "profiles": profiles})
        return
    out.print(_table(measured))
    out.print(f"kept in {folder}, fingerprint {fingerprint(merged)[:12]}")


def keep(settings: Settings, catalogue: Catalogue, folder: Path, measured: list[Profile]) -> Catalogue:
    """Write ``measured`` into the catalogues they belong to; all of these as one."""
    kept = keep_profiles(folder, measured)
    demos = [name for name in catalogue.apps if name not in kept.apps and (name in FAMILIES or name in HEAVY)]
    if folder != Registered(settings.home).folder or not demos:
        return kept
    # What is served from there is also the demo's, which has a folder of its own.
    from sluicegate.executors.demo_catalogue import demo_apps, demo_folder

    return joined([kept, keep_profiles(demo_folder(settings.home, demo_apps(demos)), measured)])


def read_batches(text: str) -> tuple[int, ...]:
    """ "1,2,8" as ascending sizes. Raises InvalidInputError."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise InvalidInputError("--batches", f"{text!r}; give sizes such as 1,2,4,8") from error
    if sizes[0] < 1 or sizes[-1] > MAX_BATCH:
        raise InvalidInputError("--batches", f"{text!r}; sizes are 1 to {MAX_BATCH}")
    return tuple(sizes)


def choose(catalogue: Catalogue, apps: list[str]) -> list[Variant]:
    """Variants of ``apps`` that have a model. Raises InvalidInputError, ConfigurationError if there are none."""
    for name in apps:
        if name not in catalogue.apps:
            raise InvalidInputError("--app", f"{name!r} is not one of {', '.join(catalogue.apps) or 'none'}")
    chosen = [v for v in catalogue.variants.values() if v.app in apps and v.model]
    if not chosen:
        raise ConfigurationError("no variant there has a model: profiles alone can be emulated, not measured")
    return chosen


def _measure(
    folder: Path, catalogue: Catalogue, chosen: list[Variant], options: ProfileOptions, runtime: Runtime | None
) -> list[Profile]:
    from sluicegate.executors.demo_catalogue import profile_blocking

    with steps("profile") as told:
        return profile_blocking(folder, catalogue, chosen, options, told, runtime)


def _table(measured: list[Profile]) -> Table:
    table = Table(title="measured here, round trip to the executor's process included", box=SIMPLE_HEAD)
    table.add_column("variant", overflow="fold")
    add_profile_columns(table)
    for found in measured:
        table.add_row(found.variant, *profile_cells(found))
    return table
