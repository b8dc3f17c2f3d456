"""Recording what policies were told and what they decided, and replaying it.

A core or policy has a log of its own, named after it. One JSON line a step: ``{"now": seconds, "event": {…}, "actions":
[{…}]}``, each dataclass tagged with its name. A replay feeds the same events at the same times to a fresh one and
compares the actions: they must be identical. So an event holds all that is decided by, in dataclasses of plain values,
and names what came before it by keys: what is read back is equal, not the same object. Bytes are written in base64.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import orjson
from pydantic import ConfigDict, TypeAdapter

from sluicegate.domain import actions as action_nouns
from sluicegate.domain import events as event_nouns
from sluicegate.stages.runtime.append_file import Appending

_AT_ONCE = 8 << 10

Event = TypeVar("Event")
Action = TypeVar("Action")
Handle = Callable[[Event, float], Sequence[Action]]
"""What decides: takes an event and the time in seconds."""


class DecisionLog:
    """Lines of a new file. Deciding comes first: while the disk is full they wait in memory, which is told.

    ``say``: subject, state ("paused", "resumed", "ended"), detail. ``monotonic``: seconds. What a log with a hole told
    could not be replayed: where more waits than ``most`` bytes, it ends.
    """

    def __init__(
        self,
        path: Path,
        *,
        monotonic: Callable[[], float],
        say: Callable[[str, str, str], None],
        retry: float = 1.0,
        most: int = 64 << 20,
    ) -> None:
        self._file: Appending | None = Appending(path, new=True)
        self._subject = f"log:{path.stem}"
        self._monotonic = monotonic
        self._say = say
        self._retry = retry
        self._most = most
        self._lines: list[bytes] = []
        self._bytes = 0
        self._tried: float | None = None
        """When it last could not be written; None where it could."""

    def write(self, line: bytes) -> None:
        """A line, without its end."""
        if self._file is None:
            return
        self._lines += (line, b"\n")
        self._bytes += len(line) + 1
        paused = self._tried is not None and self._monotonic() - self._tried < self._retry
        if self._bytes >= _AT_ONCE and not paused:
            self._store(self._file)
        if self._bytes > self._most:
            self._end()

    def close(self) -> None:
        """Write what waits, if that can be done."""
        if self._file is not None and self._lines:
            self._store(self._file)
        self._end()

    def _store(self, file: Appending) -> None:
        try:
            file.append(b"".join(self._lines))
        except OSError as error:
            if self._tried is None:
                self._say(self._subject, "paused", f"{file.path} cannot be written ({error}); make room")
            self._tried = self._monotonic()
            return
        self._lines.clear()
        self._bytes = 0
        if self._tried is not None:
            self._tried = None
            self._say(self._subject, "resumed", "decisions are written again, those since then too")

    def _end(self) -> None:
        if self._file is None:
            return
        if self._lines:
            self._say(
                self._subject, "ended", f"{self._bytes} bytes of decisions could not be written; replay up to there"
            )
            self._lines.clear()
        self._file.close()
        self._file = None


def recording(handle: Handle[Event, Action], lines: DecisionLog) -> Handle[Event, Action]:
    """``handle`` of a core, each step of it written."""

    def recorded(event: Event, now: float) -> Sequence[Action]:
        decided = handle(event, now)
        lines.write(encode_step(event, now, decided))
        return decided

    return recorded


_AS_TEXT = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_adapters: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type) -> TypeAdapter[Any]:
    adapter = _adapters.get(kind)
    if adapter is None:
        # Pydantic takes a configuration for a union, not for a dataclass of its own.
        union: Any = kind | None
        adapter = _adapters[kind] = TypeAdapter(union, config=_AS_TEXT)
    return adapter


class _Encoding(dict[type, tuple[bytes, Callable[[Any], bytes]]]):
    """By class: how its JSON begins, and what writes its value."""

    def __missing__(self, kind: type) -> tuple[bytes, Callable[[Any], bytes]]:
        begins = b'{"is":"%b","value":' % kind.__name__.encode()
        self[kind] = begins, _adapter(kind).serializer.to_json
        return self[kind]


_encoding = _Encoding()


def _tagged(noun: Any) -> bytes:
    begins, value = _encoding[type(noun)]
    return b"%b%b}" % (begins, value(noun))


def _all_tagged(decided: Sequence[Any]) -> bytes:
    return b"[%b]" % b",".join(map(_tagged, decided))


def encode_step(event: Any, now: float, decided: Sequence[Any]) -> bytes:
    """One step as a JSON line without its newline."""
    return b'{"now":%b,"event":%b,"actions":%b}' % (orjson.dumps(now), _tagged(event), _all_tagged(decided))


def read_steps(file: Path, *events: Any) -> Iterator[tuple[Any, float, list[dict[str, Any]]]]:
    """(event, now, actions as tagged JSON) of each step of a log; of one that was cut off, up to there.

    ``events``: what the core hears that is not of ``sluicegate.domain.events``, each a type or a union of types.
    """
    nouns = {one.__name__: one for kind in events for one in (get_args(kind) or (kind,))}
    with file.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            step = orjson.loads(line)
            name = step["event"]["is"]
            kind = nouns.get(name) or getattr(event_nouns, name, None) or getattr(action_nouns, name)
            yield _adapter(kind).validate_python(step["event"]["value"]), step["now"], step["actions"]


def replay(file: Path, handle: Handle[Any, Any], *events: Any) -> list[str]:
    """Differences between the recorded actions and those of a fresh ``handle``; empty when identical.

    ``events``: as ``read_steps`` takes them.
    """
    differences = []
    for number, (event, now, recorded) in enumerate(read_steps(file, *events), start=1):
        decided = orjson.loads(_all_tagged(handle(event, now)))
        if decided != recorded:
            differences.append(f"step {number} {type(event).__name__}: recorded {recorded}, replayed {decided}")
    return differences
