"""The demo's catalogue on this machine: built where it is absent, profiled through the executor that will serve it.

Rules. It lies in ``<home>/catalogue``. It is used as it stands if its models verify and it was made by this version of
the builder, on this kind of machine and with these libraries; else it is made again. Two processes that find it absent
at the same time make it once: the second waits for the first.
"""

import asyncio
import fcntl
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from domain.errors import ConfigurationError, InvalidInputError
from domain.profile import Profile
from domain.variant import Variant
from executors.measure import ProfileOptions, Progress, profile_variants, silent
from executors.onnx import OnnxExecutor
from profiles.catalogue import Catalogue
from profiles.demo.build import DEFAULT, VERSION, BuiltModel, build, model_names
from profiles.folder import load_catalogue, load_origin, save_catalogue

HOME_VARIABLE = "SLUICE_HOME"
_BUILDING = 0.6
"""Share of the whole time that building takes, about; the rest is profiling."""


def home_folder() -> Path:
    """$SLUICE_HOME, or ~/.sluicegate."""
    return Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".sluicegate")


def demo_folder(home: Path) -> Path:
    """Where the demo's catalogue lies."""
    return home / "catalogue"


def ensure_demo_catalogue(
    home: Path, progress: Progress = silent, *, apps: Sequence[str] = DEFAULT, options: ProfileOptions | None = None
) -> Catalogue:
    """The demo's catalogue, made if need be (about half a minute on two cores), blocking meanwhile.

    ``options``: how to profile, where it is made. Raises ConfigurationError where something to build it with is missing
    or ``home`` cannot be written.
    """
    found = _current(home, apps)
    if found is not None:
        return found
    with _alone(home):
        found = _current(home, apps)
        if found is not None:
            return found
        built = _build(apps, progress)
        catalogue = Catalogue.of({b.app.name: b.app for b in built}.values(), [b.variant for b in built], [])
        folder = demo_folder(home)
        models = {b.variant.digest: b.model for b in built}
        # Models first, without origin: until the profiles are there too, nobody takes it for finished.
        save_catalogue(folder, catalogue, models)
        profiles = profile_blocking(
            folder,
            catalogue,
            tuple(catalogue.variants.values()),
            options,
            lambda what, done: progress(what, _BUILDING + (1.0 - _BUILDING) * done),
        )
        catalogue = Catalogue.of(catalogue.apps.values(), catalogue.variants.values(), profiles)
        save_catalogue(folder, catalogue, {}, origin(apps))
        return catalogue


async def profile_in_child(
    folder: Path,
    catalogue: Catalogue,
    variants: Sequence[Variant],
    options: ProfileOptions | None = None,
    progress: Progress = silent,
) -> list[Profile]:
    """Profile ``variants`` of the catalogue in ``folder`` in a fresh child process."""
    executor = OnnxExecutor(folder, catalogue.apps)
    await executor.start()
    try:
        return await profile_variants(executor, catalogue.apps, variants, options, progress)
    finally:
        await executor.close()


def profile_blocking(
    folder: Path,
    catalogue: Catalogue,
    variants: Sequence[Variant],
    options: ProfileOptions | None = None,
    progress: Progress = silent,
) -> list[Profile]:
    """``profile_in_child`` for callers that may or may not be inside an event loop: in a thread with its own."""
    with ThreadPoolExecutor(1, "profiler") as pool:
        return pool.submit(asyncio.run, profile_in_child(folder, catalogue, variants, options, progress)).result()


def origin(apps: Sequence[str]) -> dict[str, str]:
    """What a demo catalogue depends on besides our code: kept beside it, compared when it is found."""
    libraries = {name: _version(name) for name in ("numpy", "onnx", "onnxruntime", "mlxtend")}
    return {"builder": VERSION, "apps": ",".join(apps), "machine": machine(), **libraries}


def machine() -> str:
    """This kind of machine: processor and number of cores. Profiles hold for it and no other."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux: the platform's word must do
    return f"{model} x{os.cpu_count() or 1}"


def _current(home: Path, apps: Sequence[str]) -> Catalogue | None:
    """The catalogue in ``home`` if it can be used as it stands."""
    folder = demo_folder(home)
    if not _same(load_origin(folder), origin(apps)):
        return None
    try:
        return load_catalogue(folder)
    except (ConfigurationError, InvalidInputError):
        return None  # damaged: what can be built again is not worth an error


def _same(found: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(found.get(key) == value for key, value in wanted.items())


def _build(apps: Sequence[str], progress: Progress) -> list[BuiltModel]:
    names = model_names(apps)
    built: list[BuiltModel] = []
    models = build(apps)
    for i, name in enumerate(names):
        progress(f"build {name}", _BUILDING * i / len(names))
        built.append(next(models))
    return built


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the home's lock; the system lets go of it when the process ends, however it ends."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(home / ".building", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot write in {home}: {error.strerror}; set {HOME_VARIABLE}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"
