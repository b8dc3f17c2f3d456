"""The demo's catalogue on this machine: built where it is absent, profiled through the executor that will serve it.

Rules. It lies in ``<home>/catalogue``. It is used as it stands if its models verify and it was made by this version of
the builder, on this kind of machine and with these libraries; else it is made again. Two processes that find it absent
at the same time make it once: the second waits for the first.
"""

import asyncio
import fcntl
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.executors.onnx.runtime_options import Runtime, runtime_package
from sluicegate.executors.profile_runner import ProfileOptions, Progress, profile_variants, silent, start_warm
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue, load_origin, save_catalogue, save_model
from sluicegate.profiles.demo.build_models import DEFAULT, FAMILIES, HEAVY, VERSION, build, model_names

HOME_VARIABLE = "SLUICE_HOME"
_BUILDING = 0.6
"""Share of the whole time that building takes, about; the rest is profiling."""


def home_folder() -> Path:
    """$SLUICE_HOME, or ~/.sluicegate."""
    return Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".sluicegate")


def demo_folder(home: Path, apps: Sequence[str] = DEFAULT) -> Path:
    """Where the catalogue of these demo apps lies."""
    return home / ("catalogue" if tuple(apps) == DEFAULT else f"catalogue-{'-'.join(apps)}")


def demo_apps(asked: Sequence[str]) -> tuple[str, ...]:
    """Demo apps whose catalogue holds ``asked``: the default ones unless another is among them. Others are ignored."""
    known = (*FAMILIES, *HEAVY)
    if all(name in DEFAULT for name in asked if name in known):
        return DEFAULT
    return tuple(name for name in known if name in asked)


def ensure_demo_catalogue(
    home: Path, progress: Progress = silent, *, apps: Sequence[str] = DEFAULT, options: ProfileOptions | None = None
) -> Catalogue:
    """The catalogue of demo ``apps``, made if need be (under a minute on two idle cores), blocking meanwhile.

    ``progress`` hears of it where another process makes it, too. ``options``: how to profile, where it is made. Raises
    ConfigurationError where something to build it with is missing or ``home`` cannot be written.
    """
    folder = demo_folder(home, apps)
    found = _current(folder, apps)
    if found is not None:
        return found
    with _alone(home, lambda: progress("made by another process", 0.0)):
        found = _current(folder, apps)
        if found is not None:
            return found
        bare = _build(folder, apps, progress)
        profiles = profile_blocking(
            folder,
            bare,
            tuple(bare.variants.values()),
            options,
            lambda what, done: progress(what, _BUILDING + (1.0 - _BUILDING) * done),
        )
        # The document comes last: until the profiles are there too, there is no catalogue.
        catalogue = Catalogue.of(bare.apps.values(), bare.variants.values(), profiles)
        save_catalogue(folder, catalogue, {}, origin(apps))
        return catalogue


async def profile_in_child(
    folder: Path,
    catalogue: Catalogue,
    variants: Sequence[Variant],
    options: ProfileOptions | None = None,
    progress: Progress = silent,
    runtime: Runtime | None = None,
) -> list[Profile]:
    """Profile ``variants`` of the catalogue in ``folder``, those of each app together in a fresh child process.

    ``runtime``: of that process (default: one thread of the CPU).
    """
    apps = sorted({v.app for v in variants})
    found: list[Profile] = []
    for i, app in enumerate(apps):
        executor = OnnxExecutor(folder, catalogue.apps, runtime)

        def told(what: str, done: float, before: int = i) -> None:
            progress(what, (before + done) / len(apps))

        try:
            mine = [v for v in variants if v.app == app]
            await start_warm(executor, mine[0])
            found += await profile_variants(executor, catalogue.apps, mine, options, told)
        finally:
            await executor.close()
    return found


def profile_blocking(
    folder: Path,
    catalogue: Catalogue,
    variants: Sequence[Variant],
    options: ProfileOptions | None = None,
    progress: Progress = silent,
    runtime: Runtime | None = None,
) -> list[Profile]:
    """``profile_in_child`` for callers that may or may not be inside an event loop: in a thread with its own."""
    with ThreadPoolExecutor(1, "profiler") as pool:
        return pool.submit(
            asyncio.run, profile_in_child(folder, catalogue, variants, options, progress, runtime)
        ).result()


def origin(apps: Sequence[str]) -> dict[str, str]:
    """What a demo catalogue depends on besides our code: kept beside it, compared when it is found."""
    libraries = {name: _version(name) for name in ("numpy", "onnx", "mlxtend")}
    _, libraries["onnxruntime"] = runtime_package() or ("", "absent")
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


def _current(folder: Path, apps: Sequence[str]) -> Catalogue | None:
    """The catalogue in ``folder`` if it can be used as it stands."""
    if not _same(load_origin(folder), origin(apps)):
        return None
    try:
        return load_catalogue(folder)
    except (ConfigurationError, InvalidInputError):
        return None  # damaged: what can be built again is not worth an error


def _same(found: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(found.get(key) == value for key, value in wanted.items())


def _build(folder: Path, apps: Sequence[str], progress: Progress) -> Catalogue:
    """Build the models into ``folder``; the catalogue without profiles."""
    names = model_names(apps)
    found: list[Variant] = []
    owners: dict[str, App] = {}
    models = build(apps)
    for i, name in enumerate(names):
        progress(f"build {name}", _BUILDING * i / len(names))
        built = next(models)
        try:
            save_model(folder, built.variant.digest, built.model)
        except OSError as error:
            raise ConfigurationError(f"cannot write in {folder}: {error.strerror}; set {HOME_VARIABLE}") from error
        found.append(built.variant)
        owners[built.app.name] = built.app
    return Catalogue.of(owners.values(), found, [])


@contextmanager
def _alone(home: Path, held: Callable[[], None]) -> Iterator[None]:
    """Hold the home's lock; the system lets go of it when the process ends, however it ends.

    ``held`` is called before another process is waited for.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(home / ".building", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot write in {home}: {error.strerror}; set {HOME_VARIABLE}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"
