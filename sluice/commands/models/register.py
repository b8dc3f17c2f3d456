"""``sluice register``: from a trained model and labelled rows to an app that ``sluice up`` serves."""

import asyncio
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import Promise
from sluicegate.profiles.catalogue.profiler import Effort
from sluicegate.profiles.catalogue.registered_apps import Record, Registered
from sluicegate.profiles.formats.catalogue_json import MAX_LATENCY
from sluicegate.profiles.registration.task_metrics import METRICS
from sluicegate.sluice.commands.given_options import check_given, given
from sluicegate.sluice.commands.models.variants import LARGEST, candidate_rows, nothing_to_scale_with
from sluicegate.sluice.commands.offline.sustain import promise_of
from sluicegate.sluice.console import JsonOption, err, one_line_errors, out, print_aside, print_json, steps
from sluicegate.sluice.registration.given_models import models_of
from sluicegate.sluice.registration.model_download import fetch, forget, is_address
from sluicegate.sluice.registration.publish_registration import WAIT, Announced, announce
from sluicegate.sluice.settings.settings import Settings, load

_INTERRUPTED = 130
_ANYWAY = ("wait", "settings", "as_json")
_OPTIONS = {
    field: f"--{field.replace('_', '-')}"
    for field in ("app", "version", "validation", "metric", "min_accuracy", "weight", "threads", "varying", "sha256")
}
"""By the field of a request or of an app's terms."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("register")(register_command)


def register_command(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL…", help="Trained models of one task, .onnx, small and large: paths, a folder, or s3://…"
        ),
    ] = None,
    app: Annotated[str, typer.Option("--app", help="Name of the app it answers.")] = "",
    validation: Annotated[Path | None, typer.Option(help="Labelled rows: .npz, or a folder of .npy files.")] = None,
    metric: Annotated[str, typer.Option(help=f"Of {', '.join(METRICS)}.")] = "accuracy",
    slo_ms: Annotated[float | None, typer.Option(help="Time an answer may take, unless a query says.")] = None,
    min_accuracy: Annotated[
        float | None, typer.Option(help="In the app's metric, 0..1: variants below are not used.")
    ] = None,
    weight: Annotated[float | None, typer.Option(help="Of its answers beside those of other apps, in plans.")] = None,
    threads: Annotated[
        str, typer.Option(help="Threads of a worker to profile for: 1 (device type cpu), 2 (cpu2); none: GPUs alone.")
    ] = "1",
    repeats: Annotated[int, typer.Option(min=7, max=10_000, help="Samples a batch size, where time allows.")] = 60,
    chance: Annotated[bool, typer.Option(help="Take a model that does no better than chance.")] = False,
    make_family: Annotated[
        bool, typer.Option("--make-family", help="Train smaller models on its answers, to scale down to.")
    ] = False,
    add: Annotated[
        bool, typer.Option("--add", help="Keep the models and terms that the app has, and add these to its family.")
    ] = False,
    sha256: Annotated[str, typer.Option(help="What a model at an address must have, hexadecimal.")] = "",
    mcd: Annotated[int | None, typer.Option("--mcd", help="Promise at most this many misses in a row.")] = None,
    mk: Annotated[
        list[str] | None, typer.Option("--mk", help="Promise m,K: at most m misses in any K. May be repeated.")
    ] = None,
    varying: Annotated[
        str, typer.Option(help="Inputs, comma between, whose rows vary in length: zeros behind fill them up.")
    ] = "",
    retire: Annotated[bool, typer.Option(help="Serve the app no more; its versions are kept.")] = False,
    version: Annotated[int | None, typer.Option(help="Serve this version of the app again.")] = None,
    wait: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait until a system that runs serves it; 0: do not wait.")
    ] = WAIT,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check models, generate and measure variants of them, and have `sluice up` serve those that are worth it.

    Given a small and a large model of the same task, it answers with the large one while load allows and scales down
    to the small one as load rises.

    Without models, --slo-ms, --min-accuracy and --weight change those of a registered app, also while it is served.

    Interrupted, it goes on from where it was when the same command is given again.
    """
    with one_line_errors(), _told_as_options():
        chosen = load(settings)
        if slo_ms is not None and not 0.0 < slo_ms <= 1e3 * MAX_LATENCY:
            most = f"{1e3 * MAX_LATENCY:.0f}"
            raise InvalidInputError("--slo-ms", f"{slo_ms:.9g}; give milliseconds, more than 0, {most} at most")
        if not app:
            raise InvalidInputError("--app", "name the app")
        if retire or version is not None:
            mode = "retire" if retire else "version"
            check_given(context, f"with --{mode}", "app", mode, *_ANYWAY)
            _change(chosen, app, version, wait, as_json=as_json)
            return
        slo = None if slo_ms is None else slo_ms / 1e3
        if not models and validation is None and any(v is not None for v in (slo, min_accuracy, weight)):
            check_given(context, "without models", "app", "slo_ms", "min_accuracy", "weight", *_ANYWAY)
            Registered(chosen.home).change(app, slo=slo, min_accuracy=min_accuracy, weight=weight)
            _tell_change(chosen, app, wait, f"{app} is served on other terms", {"app": app}, as_json=as_json)
            return
        if not models or validation is None:
            raise InvalidInputError("MODEL, --validation", "give the .onnx files and their labelled rows")
        if sha256 and len(models) > 1:
            raise InvalidInputError("--sha256", "is of one model; with several give none, or files you have checked")
        models = [path for model in models for path in _of_folder(model)]
        paths = [_model_at(model, chosen, sha256) for model in models]
        promise = promise_of(mcd, mk)
        counts = _threads(threads)
        if add:
            registered = Registered(chosen.home)
            paths = [*models_of(registered, app), *paths]
            now = registered.terms(app)
            slo = now.slo if slo is None else slo
            min_accuracy = now.min_accuracy if min_accuracy is None else min_accuracy
            weight = now.weight if weight is None else weight
            promise = now.promise if mcd is None and mk is None else promise
            varying = varying if given(context, "varying") else ",".join(s.name for s in now.inputs if s.varying)
            had = registered.served_record(app)
            assert had is not None  # its models are of it
            metric = metric if given(context, "metric") else had.metric
            counts = counts if given(context, "threads") else _threads_of(had)
        request = _request(paths, app, validation, metric, slo, counts, repeats, chance, varying, promise)
        request = replace(request, make_family=make_family, min_accuracy=min_accuracy, weight=weight)
        try:
            made = _register(chosen, request)
        except InvalidInputError:
            for model, path in zip(models, paths[-len(models) :], strict=True):
                if is_address(model):
                    forget(path)
            raise
    show(made, _announce(chosen, app, wait), wait, added=add, as_json=as_json)


@contextmanager
def _told_as_options() -> Iterator[None]:
    """A field that is wrong is called what its option is called."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(_OPTIONS.get(error.field, error.field), error.problem) from error


def _change(settings: Settings, app: str, version: int | None, wait: float, *, as_json: bool) -> None:
    registered = Registered(settings.home)
    if version is None:
        registered.retire(app)
        told = f"{app} is no longer served; versions kept: {', '.join(map(str, registered.versions(app)))}"
    else:
        registered.publish(registered.record(app, version))
        told = f"{app} is served as version {version}"
    said = {"app": app, "served_version": version, "versions": registered.versions(app)}
    _tell_change(settings, app, wait, told, said, as_json=as_json)


def _tell_change(settings: Settings, app: str, wait: float, told: str, said: dict[str, Any], *, as_json: bool) -> None:
    announced = _announce(settings, app, wait)
    if as_json:
        print_json({**said, **_described(announced)})
        return
    out.print(told)
    if announced is not None and announced.plan is not None:
        out.print(f"in force from plan {announced.plan.term}.{announced.plan.number} on")
    elif announced is not None and announced.place is not None:
        out.print(_unplanned(announced.place, wait), markup=False, highlight=False)


def _announce(settings: Settings, app: str, wait: float) -> Announced | None:
    """Tell a system that runs; None where none does: it is told when it starts."""
    told = asyncio.run(announce(settings, app, wait=wait))
    if told is not None and told.why:
        err.print(f"[dim]not told to {escape(told.why)}; `sluice up` reads it when it starts[/]")
    return told


def _served(told: Announced | None, app: str, wait: float) -> str:
    """What is to be said of who serves it."""
    if told is None or told.place is None:
        return f"next: sluice up, then sluice infer --app {app}"
    if told.plan is not None:
        return f"served from plan {told.plan.term}.{told.plan.number} on; next: sluice infer --app {app}"
    return _unplanned(told.place, wait)


def _unplanned(place: str, wait: float) -> str:
    return f"told to {place}" + (f"; no plan has it within {wait:g} s" if wait else "")


def _described(told: Announced | None) -> dict[str, Any]:
    return {
        "published": told.place if told is not None else None,
        "plan": list(told.plan) if told is not None and told.plan is not None else None,
    }


def _of_folder(model: str) -> list[str]:
    """The models that lie in a folder; what is none, as it is. Raises InvalidInputError where there is none."""
    if is_address(model) or not Path(model).is_dir():
        return [model]
    found = sorted(str(path) for path in Path(model).glob("*.onnx"))
    if not found:
        raise InvalidInputError("MODEL", f"{model:.200} holds no .onnx file")
    return found


def _model_at(model: str, settings: Settings, sha256: str) -> Path:
    """A file of it: where it is, or brought here."""
    if not is_address(model):
        if sha256:
            raise InvalidInputError("--sha256", "is for models at an address; a file is taken as it is")
        return Path(model)
    from sluicegate.executors.onnx.variant_builder import GeneratorLimits

    return fetch(model, settings.home, GeneratorLimits().model_bytes, sha256)


def _request(
    models: list[Path],
    app: str,
    validation: Path,
    metric: str,
    slo: float | None,
    threads: tuple[int, ...],
    repeats: int,
    chance: bool,
    varying: str,
    promise: Promise,
) -> Any:
    from sluicegate.sluice.registration.register import Request  # brings ONNX Runtime, which no other option needs

    return Request(
        model=models[0],
        others=tuple(models[1:]),
        app=app,
        validation=validation,
        metric=metric,
        slo=slo,
        threads=threads,
        effort=Effort(least=min(15, repeats), enough=repeats, share=0.2),
        chance_allowed=chance,
        varying=tuple(name.strip() for name in varying.split(",") if name.strip()),
        promise=promise,
    )


def _register(settings: Settings, request: Any) -> Any:
    from sluicegate.sluice.registration.register import register_model

    with steps("register") as told:
        return asyncio.run(_interruptible(lambda: register_model(request, settings.home, told)))


async def _interruptible(start: Callable[[], Any]) -> Any:
    """Run it; Ctrl-C and SIGTERM end it in order, with a word on how to go on."""
    job = asyncio.ensure_future(start())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, job.cancel)
    try:
        return await job
    except asyncio.CancelledError:
        err.print("interrupted; give the same command again to go on from here")
        raise typer.Exit(_INTERRUPTED) from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _threads(text: str) -> tuple[int, ...]:
    if text == "none":
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidInputError("--threads", f"{text!r}; give numbers such as 1,2, or none") from error


def _threads_of(record: Record) -> tuple[int, ...]:
    """Threads of the workers that a version was profiled for; none where that was GPUs alone."""
    types = {p.device_type for c in record.candidates for p in c.profiles}
    return tuple(sorted(int(of_cpu[1] or 1) for kind in types if (of_cpu := re.fullmatch("cpu([0-9]*)", kind))))


def show(made: Any, announced: Announced | None, wait: float, *, added: bool, as_json: bool) -> None:
    """Say what came of a registration, a ``Registration``, and who serves it."""
    record: Record = made.record
    if as_json:
        print_json(
            {
                "app": record.app.name,
                "version": record.version,
                "known": made.known,
                "resumed": made.resumed,
                "folder": str(made.folder),
                **_described(announced),
                "metric": record.metric,
                "chance": record.chance,
                "rows": record.scored_rows,
                "notes": record.notes,
                "variants": candidate_rows(record),
                "nothing_to_scale_with": bool(_nothing_to_scale_with(record)),
                "skipped": record.skipped,
            }
        )
        return
    out.print(candidate_table(record))
    unserved = [f"{row['recipe']}: {row['reason']}" for row in candidate_rows(record) if not row["served"]]
    for line in (*unserved, *record.notes, *(f"{recipe}: {why}" for recipe, why in record.skipped.items())):
        print_aside(line)
    state = "was registered before" if made.known else "is registered"
    if made.replaced and not added:
        out.print(
            f"it takes the place of {escape(made.replaced)}; to have both, give --add",
            highlight=False,
            soft_wrap=True,
        )
    name = record.app.name
    if told := _nothing_to_scale_with(record):
        out.print(f"[yellow]{told}[/]", highlight=False, soft_wrap=True)
    out.print(f"{name} {state}, version {record.version}; {_served(announced, name, wait)}", soft_wrap=True)


def _nothing_to_scale_with(record: Record) -> str:
    return nothing_to_scale_with(record.app.name, [c.variant for c in record.candidates if c.served])


def candidate_table(record: Record) -> Table:
    """Candidates of a version: what was measured of each, and whether it is served."""
    title = f"{record.app.name} v{record.version}: {record.metric} on {record.scored_rows} rows"
    table = Table(title=title, box=SIMPLE_HEAD, padding=0)  # names of several models are long
    table.add_column("variant", overflow="fold")
    for name in ("%", "ms", LARGEST, "load", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("served", no_wrap=True)
    for row in candidate_rows(record):
        measured = ["-"] * 4
        if batches := list(row["latency_ms"]):
            measured = [
                f"{row['latency_ms'][batches[0]]:.3f}",
                f"{batches[-1]}: {row['latency_ms'][batches[-1]]:.2f}",
                f"{row['load_ms']:.0f}",
                f"{row['memory_bytes'] / 1e6:.1f}",
            ]
        accuracy = f"{100 * row['accuracy']:.1f} ±{100 * row['accuracy_se']:.1f}"
        table.add_row(row["recipe"], accuracy, *measured, "yes" if row["served"] else "no")
    return table
