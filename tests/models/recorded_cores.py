"""Cores whose every step is written down while a test runs, and fresh ones made of what they were made of."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from sluicegate.stages.runtime.decision_log import encode_step, replay
from tests.architecture.test_engine_reaches import machines


def cores() -> dict[str, type]:
    """Every core by its name."""
    return {name: kind for name, kind in machines().items() if name.endswith("Core")}


class Made:
    """One core. ``given``: what it was made of, as it was before that; ``steps``: lines of its log."""

    def __init__(self, kind: type, given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        self.kind = kind
        self.steps: list[bytes] = []
        self.busy = False
        self._given = given

    @property
    def events(self) -> Any:
        """What it hears."""
        return get_type_hints(self.kind.handle)["event"]  # type: ignore[attr-defined]

    def fresh(self) -> Any:
        """As it was at its start."""
        given, named = copy.deepcopy(self._given)
        return self.kind(*given, **named)

    def differences(self, folder: Path) -> list[str]:
        """What a fresh one decides otherwise."""
        file = folder / "log.jsonl"
        file.write_bytes(b"".join(line + b"\n" for line in self.steps))
        return replay(file, self.fresh().handle, self.events)


@contextmanager
def noted(*, steps: bool, again: bool = True) -> Iterator[dict[Any, Made]]:
    """Cores that are made in this context, in their order; with ``steps``, what each hears and says. Without
    ``again`` what they are made of is not copied: no fresh ones can be made of it."""
    made: dict[Any, Made] = {}

    def making(kind: type, plain: Callable[..., None]) -> Callable[..., None]:
        def make(self: Any, *given: Any, **named: Any) -> None:
            made[self] = Made(kind, copy.deepcopy((given, named)) if again else ((), {}))
            plain(self, *given, **named)

        return make

    def hearing(plain: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
        def handle(self: Any, event: Any, now: float) -> Sequence[Any]:
            one = made[self]
            if one.busy:  # it asks itself
                return plain(self, event, now)
            one.busy = True
            decided = plain(self, event, now)
            one.busy = False
            one.steps.append(encode_step(event, now, decided))
            return decided

        return handle

    with pytest.MonkeyPatch.context() as patch:
        for kind in cores().values():
            patch.setattr(kind, "__init__", making(kind, kind.__init__))  # type: ignore[misc]
            if steps:
                patch.setattr(kind, "handle", hearing(kind.handle))  # type: ignore[attr-defined]
        yield made
