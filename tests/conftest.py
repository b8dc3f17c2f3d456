"""What all tests share: fixtures, which loop a test has, which file comes first, and what is said of those skipped.

In several processes a file goes to one of them, as they become free (``make test``): files that wait run beside files
that compute, so that the processor is always busy and never awaited by all. One Apache Kafka serves all processes.
"""

import asyncio
import fcntl
import gc
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.local_kafka.jars import KAFKA_VERSION
from tests.explore.loop import ClockedLoop
from tests.harness import PATIENCE_S
from tests.outside.forked import begun_by_fork

# How long drawing takes is told by the machine, not by the strategy.
_PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
# What must pass draws the same examples each time; `anew` is for looking for more.
settings.register_profile("suite", _PATIENT, derandomize=True)
settings.register_profile("anew", _PATIENT)
settings.load_profile("suite")

# A broker of a test lives for seconds: what the second compiler makes of its code, nobody sees any more.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

TRIES = 3
"""Of a test that claims a speed: the machine may be busy with something else. What is not timed is tried once."""

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


_WAITING = ("integration", "contract", "chaos")
"""Folders whose files wait more than they compute."""
_COMPUTING = ("explore", "simulation", "property")
"""Folders whose files compute for long."""
_LONGEST = ("test_guide_commands.py", "test_guide_systems.py", "test_transactions.py", "test_unequal_worlds.py")
"""Files of a minute, or of minutes where what is thorough runs: they begin first, so that nobody waits for one at the
end."""
_SELDOM = (20_000, 20, 20)
"""Objects made, and collections of younger ones, between collections: a process of the suite has memory to spare."""
_LONG_UNTIL = 0.4
"""Of a run: what is short comes last and leaves nobody without work. Until then what waits and what computes are
mixed, so that no core is idle."""
_MORE = (
    "What takes minutes, and Apache Kafka where the embedded broker tells as much: make test-all.",
    "Real containers: make stack. Faults on real brokers: make chaos. Ten thousand worlds: make explore.",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files; tests marked ``timing`` are tried again where they fail; pytest says so in its summary."""
    kinds: dict[tuple[str, ...], dict[Path, None]] = {_WAITING: {}, _COMPUTING: {}, (): {}}
    for item in items:
        kind = next(folders for folders in kinds if not folders or set(folders) & set(item.path.parts))
        kinds[kind][item.path] = None
    places: dict[Path, float] = {}
    for kind, files in kinds.items():
        step = (_LONG_UNTIL if kind else 1.0) / max(1, len(files))
        places |= {file: number * step for number, file in enumerate(reversed(files))}  # the last folders' take longest
    items.sort(key=lambda item: (item.path.name not in _LONGEST, places[item.path]))
    for item in items:
        if item.get_closest_marker("timing") is not None:
            item.add_marker(pytest.mark.flaky(reruns=TRIES - 1))


def pytest_addoption(parser: pytest.Parser) -> None:
    """How processes of ``sluice`` begin."""
    parser.addoption("--begin-anew", action="store_true", help="no process of sluice is forked from a warm one")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Thousands of tests are held until the end: who collects garbage need not look at them, nor meanwhile."""
    gc.disable()
    try:
        _compile_a_part(session.config)
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_SELDOM)
        gc.enable()


def _compile_a_part(config: pytest.Config) -> None:
    """Each process of several compiles a part of the test files, before each imports them all from the cache."""
    if (worker := getattr(config, "workerinput", None)) is None:
        return
    places = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    files = sorted({file for place in places for file in (place.rglob("test_*.py") if place.is_dir() else [place])})
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        # What is wrong with it, or why it is skipped, is told when it is read.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


@pytest.fixture(scope="session", autouse=True)
def _beginning(request: pytest.FixtureRequest) -> Iterator[None]:
    with nullcontext() if request.config.getoption("--begin-anew") else begun_by_fork():
        yield


_skipped: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count why tests are skipped."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Of a file that is skipped whole, once."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """After all else, what was skipped and how to get it, with what the run before this one skipped where it is told
    in which file to keep that ($TESTS_SKIPPED)."""
    yield
    if hasattr(session.config, "workerinput"):
        return
    kept = os.environ.get("TESTS_SKIPPED")
    before = Path(kept) if kept else None
    if before is not None:
        _skipped.update(json.loads(before.read_text()) if before.exists() else {})
        before.parent.mkdir(parents=True, exist_ok=True)
        before.write_text(json.dumps(_skipped))
    lines = [f"{count} skipped: {why}" for why, count in _skipped.most_common()]
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and (before is not None or lines):
        reporter.write_line("\n".join([*lines, *_MORE]))


_running: list[pytest.Item] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember whose loop is made next: what a test's parameters say of it is not known when loops are chosen."""
    _running[:] = [item]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests marked ``virtual`` run under virtual time, except where they meet Apache Kafka."""
    return {"suite": _new_loop}


def _new_loop() -> asyncio.AbstractEventLoop:
    (item,) = _running
    marked = item.get_closest_marker("virtual")
    if marked is None or False in marked.args or item.get_closest_marker("kafka") is not None:
        return asyncio.new_event_loop()
    return ClockedLoop(zlib.crc32(item.nodeid.encode()))


Measured = Callable[[str, str], None]


@pytest.fixture
def measured() -> Measured:
    """Notes what was measured of something, as a line of the file that $MEASURED names, where it does."""

    def note(of: str, told: str) -> None:
        if file := os.environ.get("MEASURED"):
            with Path(file).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([of, told]) + "\n")

    return note


@pytest.fixture(scope="session")
def sluice_data() -> Path:
    """Folder of the papers' data, from $SLUICE_DATA or beside the checkout; skips where it is absent."""
    folder = Path(os.environ.get("SLUICE_DATA", _BESIDE))
    if not folder.is_dir():
        pytest.skip("the papers' data is absent: set SLUICE_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def sluice_home() -> Path:
    """Where Apache Kafka's jars are kept between runs."""
    return Path(os.environ.get("SLUICE_HOME", Path.home() / ".sluicegate"))


@pytest.fixture(scope="session")
def kafka_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Apache Kafka of this run keeps its log, under ``data``: one for all processes of the suite."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if hasattr(request.config, "workerinput") else own) / "kafka"


@contextmanager
def _kafka_users(folder: Path) -> Iterator[Path]:
    """A folder with a file for each process that uses the run's Apache Kafka; nobody else changes it meanwhile."""
    users = folder.with_name("kafka-users")
    users.mkdir(exist_ok=True)
    with folder.with_name("kafka-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield users


@pytest.fixture(scope="session")
def kafka_url(kafka_folder: Path, sluice_home: Path) -> Iterator[str]:
    """The Apache Kafka of this run, of the version $TEST_KAFKA: the first process that asks starts it, the last one
    that ends stops it. Skips where it cannot be had, unless $SLUICE_REQUIRE_KAFKA is set."""
    version = os.environ.get("TEST_KAFKA", KAFKA_VERSION)
    broker = LocalBroker(kafka_folder, home=sluice_home, heap_mb=256, version=version)
    own = str(os.getpid())
    try:
        with _kafka_users(kafka_folder) as users:
            status = broker.start(within=PATIENCE_S)
            (users / own).touch()
    except ConfigurationError as error:
        if os.environ.get("SLUICE_REQUIRE_KAFKA") == "1":
            pytest.fail(f"Kafka is required here: {error}")
        pytest.skip(f"no Apache Kafka: {error}")
    assert status.url is not None
    yield status.url
    with _kafka_users(kafka_folder) as users:
        (users / own).unlink()
        if not any(Path("/proc", user.name).exists() for user in users.iterdir()):
            broker.stop(within=1.0)  # nobody reads its data again
