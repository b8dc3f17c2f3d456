"""``sluice infer``: ask one query and see its answer."""

import asyncio
import zlib
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import BadZipFile

import numpy as np
import orjson
import typer
from rich.markup import escape

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.tensor import BYTES
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.catalogue.run_folders import PATIENCE, SAID_AFTER, asking, awaited_url, connected
from sluicegate.sluice.commands.given_options import refuse_given
from sluicegate.sluice.commands.reading.results import line
from sluicegate.sluice.console import EXIT_FAILED, JsonOption, check_latency_ms, err, one_line_errors, out, print_json
from sluicegate.sluice.load.sample_inputs import app_samples
from sluicegate.sluice.registration.publish_registration import await_loaded
from sluicegate.sluice.registration.registry_topic import await_served
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate.streams.records.oip import DTYPES
from sluicegate.streams.topics import Topics
from sluicegate_client import Answer, Reference, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_FILE = 64 << 20
_SHOWN = 2_000
"""Characters of an output on a console."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("infer")(infer)


def infer(
    context: typer.Context,
    app: Annotated[str, typer.Option("--app", help="The app to ask.")],
    inputs: Annotated[Path | None, typer.Option("--input", help=".npz or .json of arrays by input name.")] = None,
    sample: Annotated[int, typer.Option(min=0, help="Without --input: which held-out sample to send.")] = 0,
    latency_ms: Annotated[float | None, typer.Option(help="Goal: answer within.")] = None,
    accuracy: Annotated[float | None, typer.Option(help="Goal: at least this accuracy, 0..1.")] = None,
    query_class: Annotated[str | None, typer.Option("--class", help="strict or best_effort.")] = None,
    broker: Annotated[str | None, typer.Option(help="kafka://host:port (default: a running `sluice up`).")] = None,
    prefix: Annotated[str | None, typer.Option(help="Topic prefix.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Send one query and wait for its outcome. Exit 1 where it was not answered on time."""
    parameters: dict[str, Any] = {"latency_ms": latency_ms, "accuracy": accuracy, "class": query_class}
    given = {name: value for name, value in parameters.items() if value is not None}
    with one_line_errors():
        check_latency_ms(latency_ms)
        chosen = load(settings, prefix=prefix)
        if inputs is not None:
            refuse_given(context, "with --input, which is what is sent", ["sample"])
            _check_there(inputs)  # before a system is waited for
        missing = "nothing to ask: start `sluice up`, or give --broker kafka://host:port"
        url = awaited_url(chosen, broker, missing, within=PATIENCE, say=_say)
        served = asyncio.run(_served(url, chosen, app))
        asked, label = _inputs(chosen, app, inputs, sample, served)
        answer = asyncio.run(_ask(url, chosen, app, asked, given))
        outcome = codec.decode_outcome(Record("", 0, 0, None, answer.body, (), 0.0)).outcome
    outputs = {name: _texts(array.tolist()) for name, array in answer.outputs.items()}
    label = label if outputs else None  # beside no answer it reads like one
    if as_json:
        print_json({"outcome": outcome, "outputs": outputs, "label": label})
    else:
        out.print(line(outcome), highlight=False, soft_wrap=True)
        for name, values in outputs.items():
            out.print(escape(f"  {name}: {_told(values, answer.outputs[name])}"), soft_wrap=True)
        if label is not None:
            out.print(f"  the true label is {label}")
    if not outcome.on_time:
        raise typer.Exit(EXIT_FAILED)


def _told(values: Any, output: "NDArray[Any] | Reference") -> str:
    if isinstance(output, Reference):
        return f"{output.datatype} {list(output.shape)}, {output.bytes} bytes at {output.ref}"
    return _cut(str(values), output.size)


def _cut(text: str, values: int) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({values} values; whole with --json)"


def _check_there(file: Path) -> None:
    try:
        file.open("rb").close()
    except OSError as error:
        raise ConfigurationError(f"--input {file}: {error.strerror or error}; give a readable .npz or .json") from error


def _inputs(
    settings: Settings, app: str, file: Path | None, sample: int, served: Catalogue | None
) -> tuple[Mapping[str, Any], int | None]:
    if file is not None:
        known = served.apps[app].inputs if served is not None and app in served.apps else ()
        return read_arrays(file, {spec.name: spec.datatype for spec in known}), None
    catalogue = served if served is not None else open_catalogue(settings, [app])[0]
    if app not in catalogue.apps:
        raise ConfigurationError(f"--app {app!r}: not in the catalogue; it has {', '.join(catalogue.apps)}")
    samples = app_samples(catalogue.apps[app], settings.home)
    index = sample % len(samples.inputs)
    tensors = {t.name: Tensor(t.datatype, t.shape, bytes(t.data)) for t in samples.inputs[index]}
    return tensors, None if samples.labels is None else int(samples.labels[index][0])


def _texts(values: Any) -> Any:
    """As a console or JSON can show it: bytes as text, base64 where they are none."""
    if isinstance(values, list):
        return [_texts(value) for value in values]
    if not isinstance(values, bytes):
        return values
    try:
        return values.decode()
    except UnicodeDecodeError:
        return b64encode(values).decode()


def read_arrays(file: Path, datatypes: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Arrays of numbers or texts by name from .npz (no pickle) or JSON.

    Numbers of JSON are of the datatype that ``datatypes`` says of their input; FP32 where it says nothing.
    Raises ConfigurationError or InvalidInputError in one line.
    """
    try:
        if file.stat().st_size > _MAX_FILE:
            raise InvalidInputError("--input", f"{file} has over {_MAX_FILE >> 20} MiB")
        if file.suffix == ".npz":
            return _unpacked(file)
        values = orjson.loads(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"--input {file}: {error.strerror or error}; give a readable .npz or .json") from error
    except ValueError as error:
        raise InvalidInputError("--input", f"{file} is neither .npz nor JSON ({error})") from error
    if not isinstance(values, dict):
        raise InvalidInputError("--input", f"{file}: give a JSON object of arrays by input name")
    try:
        return {name: _array(value, name, datatypes.get(name)) for name, value in values.items()}
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInputError("--input", f"{file}: arrays are numbers, or texts, of one shape ({error})") from error


def _unpacked(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            arrays = np.load(opened, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise InvalidInputError("--input", f"{file} is one array without a name; write it by numpy.savez")
            with arrays:
                return {name: arrays[name] for name in arrays.files}
    except (BadZipFile, EOFError, RuntimeError, zlib.error) as error:  # damaged, or packed as NumPy does not pack
        raise InvalidInputError("--input", f"{file} is no whole .npz ({error})") from error


def _array(values: Any, name: str, datatype: str | None) -> "NDArray[Any]":
    """Of one input. Raises InvalidInputError, ValueError, TypeError or OverflowError."""
    array = np.asarray(values)
    if datatype == BYTES or (datatype is None and array.dtype.kind == "U"):
        return array
    if datatype is None:
        return array.astype(np.float32)
    try:
        with np.errstate(over="ignore"):
            cast = np.array(values, dtype=DTYPES[datatype])
    except (ValueError, TypeError, OverflowError):
        fits = False
    else:
        finite = array.dtype.kind != "U" and bool(np.isfinite(cast).all())
        fits = finite if cast.dtype.kind == "f" else cast.tolist() == values
    if not fits:
        raise InvalidInputError("--input", f"{name} is of {datatype}, which cannot hold what the file says")
    return cast


async def _served(url: str, settings: Settings, app: str) -> Catalogue | None:
    broker = connected(settings, url)
    try:
        topics = Topics(settings.prefix)
        served = await await_served(broker, topics, [app], within=PATIENCE, say=_say)
        if served is not None:
            await await_loaded(broker, topics, [app], within=PATIENCE, say=_say)
        return served
    finally:
        await broker.close()


async def _ask(url: str, settings: Settings, app: str, inputs: Mapping[str, Any], parameters: dict[str, Any]) -> Answer:
    patience = PATIENCE + 1e-3 * float(parameters.get("latency_ms", 0.0))
    async with asking(settings, url, timeout=patience) as client:
        roles = "admission, router and worker"
        waiting = (
            f"waiting for an answer: on this broker and prefix nothing may run as {roles} of {app} yet (sluice up)"
        )
        saying = asyncio.get_running_loop().call_later(SAID_AFTER, _say, waiting)
        try:
            return await client.infer(app, inputs, **parameters)
        finally:
            saying.cancel()


def _say(what: str) -> None:
    err.print(what, highlight=False, markup=False, soft_wrap=True)
