"""Recording what policies were told and what they decided, and replaying it.

One JSON line a step: ``{"now": seconds, "event": {…}, "actions": [{…}]}``, each dataclass tagged with its name. A
replay feeds the same events at the same times to a fresh policy and compares the actions: they must be identical.
Selection tables are written as they are published, in base64.
"""

import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TextIO, TypeVar

import orjson
from pydantic import TypeAdapter

from domain import actions as action_nouns
from domain import events as event_nouns
from domain.table import TablesChanged
from planner.tables.codec import decode, encode

log = logging.getLogger(__name__)

E = TypeVar("E", contravariant=True)
A = TypeVar("A", covariant=True)


class Handles(Protocol[E, A]):
    """Anything with the seam of the house."""

    def handle(self, event: E, now: float) -> Sequence[A]:
        """Decide."""
        ...


class Recorded(Generic[E, A]):
    """Wraps a policy: hands everything on, and writes what was said and decided.

    Deciding comes first: where the log cannot be written (a full disk) it ends there, which is told once.
    """

    def __init__(self, policy: Handles[E, A], sink: TextIO) -> None:
        self.policy = policy
        self._sink: TextIO | None = sink

    def handle(self, event: E, now: float) -> Sequence[A]:
        """Decide, and write the step."""
        decided = self.policy.handle(event, now)
        if self._sink is not None:
            try:
                self._sink.write(encode_step(event, now, decided).decode() + "\n")
            except OSError as error:
                log.error("the decision log ends here: %s cannot be written (%s)", self._sink.name, error)
                self._sink = None
        return decided

    def __getattr__(self, name: str) -> Any:
        """Properties of the policy itself (``queued``, ``busy``, …)."""
        return getattr(self.policy, name)


_adapters: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type) -> TypeAdapter[Any]:
    adapter = _adapters.get(kind)
    if adapter is None:
        adapter = _adapters[kind] = TypeAdapter(kind)
    return adapter


def _tagged(noun: Any) -> dict[str, Any]:
    kind = type(noun)
    if isinstance(noun, TablesChanged):
        packed = [b64encode(encode(t)).decode() for t in noun.tables]
        return {"is": kind.__name__, "value": {"app": noun.app, "tables": packed}}
    return {"is": kind.__name__, "value": _adapter(kind).dump_python(noun, mode="json")}


def encode_step(event: Any, now: float, decided: Sequence[Any]) -> bytes:
    """One step as a JSON line without its newline."""
    return orjson.dumps({"now": now, "event": _tagged(event), "actions": [_tagged(a) for a in decided]})


def read_steps(file: Path) -> Iterator[tuple[Any, float, list[dict[str, Any]]]]:
    """(event, now, actions as tagged JSON) of each step of a log; of one that was cut off, up to there."""
    with file.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            step = orjson.loads(line)
            kind = getattr(event_nouns, step["event"]["is"], None) or getattr(action_nouns, step["event"]["is"])
            yield _untagged(kind, step["event"]["value"]), step["now"], step["actions"]


def _untagged(kind: type, value: Any) -> Any:
    if kind is TablesChanged:
        return TablesChanged(value["app"], tuple(decode(b64decode(t)) for t in value["tables"]))
    return _adapter(kind).validate_python(value)


def replay(file: Path, make_policy: Callable[[], Handles[Any, Any]]) -> list[str]:
    """Differences between the recorded actions and those of a fresh policy; empty when identical."""
    policy = make_policy()
    differences = []
    for number, (event, now, recorded) in enumerate(read_steps(file), start=1):
        decided = orjson.loads(orjson.dumps([_tagged(a) for a in policy.handle(event, now)]))
        if decided != recorded:
            differences.append(f"step {number} {type(event).__name__}: recorded {recorded}, replayed {decided}")
    return differences
