"""Arrival lists: lines ``arrival_ms,...`` (further columns ignored), a file an app, .txt or .csv, .gz or .bz2 too."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.random import Generator

from sluicegate.domain.errors import InvalidInputError
from sluicegate.simulator.arrivals.rates import Floats
from sluicegate.simulator.arrivals.sampling import CHUNK, Chunk
from sluicegate.simulator.arrivals.trace_files import lines, shown

JITTER_S = 0.5
MAX_ARRIVALS = 100_000_000
_LATEST_MS = 1e11
"""Three years: what is beyond counts from 1970, and would be waited for."""
_SUFFIXES = (".txt", ".csv", ".txt.gz", ".csv.gz", ".txt.bz2", ".csv.bz2")


class ListedArrivals:
    """Arrivals given one by one: ``times`` by app, sorted seconds."""

    def __init__(self, times: Mapping[str, Floats], duration: float | None = None) -> None:
        if not times:
            raise InvalidInputError("trace", "holds no app; give a file of arrivals for each")
        self.times = dict(times)
        self.apps = tuple(self.times)
        last = max((float(t[-1]) for t in self.times.values() if t.size), default=0.0)
        self.duration = last if duration is None else duration

    @property
    def expected(self) -> float:
        """How many there are."""
        return float(sum(t.size for t in self.times.values()))

    def chunks(self) -> Iterator[Chunk]:
        """Time order; ties in the order of apps."""
        times = np.concatenate(list(self.times.values()))
        index = np.repeat(np.arange(len(self.apps)), [t.size for t in self.times.values()])
        order = np.argsort(times, kind="stable")
        for start in range(0, times.size, int(CHUNK)):
            part = order[start : start + int(CHUNK)]
            yield times[part], index[part]

    def faster(self, speed: float) -> "ListedArrivals":
        """The same arrivals in 1/``speed`` of the time."""
        if not 0.0 < speed < float("inf"):
            raise InvalidInputError("speed", f"{speed} is not a positive finite number")
        return ListedArrivals({a: t / speed for a, t in self.times.items()}, self.duration / speed)

    def lasting(self, duration: float, *, repeat: bool = False) -> "ListedArrivals":
        """Cut at ``duration`` seconds; repeated from the start where the list is shorter and ``repeat`` is set."""
        if not 0.0 < duration < float("inf"):
            raise InvalidInputError("duration", f"{duration} is not a positive finite number")
        rounds = int(np.ceil(duration / self.duration)) if repeat and self.duration else 1
        total = rounds * sum(t.size for t in self.times.values())
        if total > MAX_ARRIVALS:
            raise InvalidInputError("duration", f"{duration} s makes {total} arrivals; at most {MAX_ARRIVALS}")
        shift = np.arange(rounds) * self.duration
        longer = {a: (shift[:, None] + t[None, :]).ravel() for a, t in self.times.items()}
        kept = {a: t[t <= duration] for a, t in longer.items()}
        return ListedArrivals(kept, duration if repeat else min(self.duration, duration))

    def scaled(self, factor: float, rng: Generator, jitter: float = JITTER_S) -> "ListedArrivals":
        """Each arrival on average ``factor`` times: itself, and clones moved by up to ``jitter`` seconds either way.

        Below 1 arrivals are thinned. The fractional part is drawn for each arrival.
        """
        total = sum(t.size for t in self.times.values()) * factor
        if not factor > 0.0 or total > MAX_ARRIVALS:
            raise InvalidInputError("scale", f"{factor} is not positive, or makes more than {MAX_ARRIVALS} arrivals")
        return ListedArrivals(
            {a: _cloned(t, factor, rng, jitter, self.duration) for a, t in self.times.items()}, self.duration
        )


def _cloned(times: Floats, factor: float, rng: Generator, jitter: float, duration: float) -> Floats:
    whole = int(factor)
    copies = whole + (rng.random(times.size) < factor - whole)
    originals = times[copies > 0]
    clones = np.repeat(times, np.maximum(copies - 1, 0))
    clones = np.clip(clones + rng.uniform(-jitter, jitter, clones.size), 0.0, duration)
    return np.sort(np.concatenate((originals, clones)))


def read_arrival_file(path: Path) -> Floats:
    """Sorted arrival times in seconds. Raises InvalidInputError, naming file, line and content."""
    times: list[float] = []
    for number, content in lines(path):
        if content == b"":
            continue
        try:
            if content is None:
                raise ValueError
            value = float(content.split(b",", 1)[0])
        except ValueError:
            if number == 1 and content is not None and content[:1].isalpha():
                continue
            raise _refused(path, number, content) from None
        if not value >= 0.0:
            raise _refused(path, number, content)
        if value >= _LATEST_MS:
            raise _refused(path, number, content, "count milliseconds from where the trace begins")
        times.append(value)
        if len(times) > MAX_ARRIVALS:
            raise InvalidInputError("trace", f"{path} holds more than {MAX_ARRIVALS} arrivals; split it")
    return np.sort(np.array(times, dtype=np.float64)) / 1e3


def read_arrivals(path: Path, apps: Sequence[str] | None = None) -> ListedArrivals:
    """Arrivals of every app in the folder ``path`` (file name without its suffix), or of the one file it is.

    ``apps``: only these, in this order; one without a file or with two is an error, as is a folder without any, and no
    arrival in all of them.
    """
    if path.is_file():
        files = _by_app([path])
    elif path.is_dir():
        files = _by_app(f for f in sorted(path.iterdir()) if f.name.endswith(_SUFFIXES))
    else:
        raise InvalidInputError("trace", f"{path} does not exist; give a file or a folder of arrival lists")
    if not files:
        raise InvalidInputError("trace", f"{path} holds no arrival list; expected <app>.txt or <app>.txt.gz")
    wanted = tuple(files) if apps is None else tuple(apps)
    if apps is not None and path.is_file() and len(wanted) == 1:
        files = {wanted[0]: path}
    for app in wanted:
        if app not in files:
            raise InvalidInputError("trace", f"{path} has no arrivals of app {app!r}; it has {', '.join(files)}")
    times = {app: read_arrival_file(files[app]) for app in wanted}
    if not any(listed.size for listed in times.values()):
        raise InvalidInputError("trace", f"{path} holds no arrival; give 'arrival_ms,...' lines")
    return ListedArrivals(times)


def _by_app(paths: Iterable[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in paths:
        suffix = next((known for known in _SUFFIXES if path.name.endswith(known)), path.suffix)
        app = path.name.removesuffix(suffix)
        if app in found:
            raise InvalidInputError("trace", f"{found[app]} and {path.name} are both of app {app!r}; leave one there")
        found[app] = path
    return found


def _refused(
    path: Path, number: int, content: bytes | None, remedy: str = "give 'arrival_ms,...' lines"
) -> InvalidInputError:
    return InvalidInputError("trace", f"{path} line {number} is {shown(content)}; {remedy}")
