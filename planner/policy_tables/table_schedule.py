"""What is made and published of selection tables, and when: one question out at a time, the most urgent first.

Rules.
- Where there is no table yet, first comes the one for the load planned for. Then come tables for loads that workers ask
  for, then the library over all loads.
- A question whose answer changes (its fingerprint) has its tables replaced: the old ones serve on until the library is
  there, or a load is missed, since workers go by the newest fingerprint; then they are withdrawn.
- Tables of workers that are gone stay for their return; those of SLO classes that are no more are withdrawn.
- Answers to a question that is not asked any more are kept: a worker that returns brings its question back.
- Tables that would be violated more than the library tolerates are not published: workers then fall back.
- What is on the topic already, from an earlier term, is known before the first question.
- A load asked for is answered while the library is not there; once it is, a load above it is above capacity. One above
  all that the workers could answer is never answered: no table holds it, and making one could take all time and memory.
- A library that could not be made (its process was ended) takes nothing away. It is tried once more when the plan asks
  again, and anew once its shelf returns or its question changes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import IllegalEventError, InvalidInputError
from sluicegate.domain.table import SelectionTable
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.policy_tables.fingerprint import fingerprint
from sluicegate.planner.policy_tables.keys import Shelf, TableName
from sluicegate.planner.policy_tables.table_library import build_library, peak_rate
from sluicegate.planner.policy_tables.table_requests import LibraryRules, Question

_ABOVE = 1.1
_CACHED = 8
_TRIES = 2
"""Times that a library is tried."""
_MOST_QPS = 1e7


@dataclass(frozen=True, slots=True)
class Asked:
    """The plan asks for these libraries, and no others."""

    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class TableSeen:
    """On the topic; ``fingerprint`` None: withdrawn."""

    name: TableName
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class LoadMissing:
    """A worker sees a load that none of its tables covers."""

    shelf: Shelf
    qps: float


@dataclass(frozen=True, slots=True)
class Make:
    """Answer ``question``: for ``loads``, or as a library where there are none. Answer with Made."""

    question: Question
    loads: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """The answer. ``failed``: it could not be made, which says nothing of whether tables hold the SLO."""

    make: Make
    tables: tuple[SelectionTable, ...]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class PutTable:
    """Publish."""

    name: TableName
    table: SelectionTable


@dataclass(frozen=True, slots=True)
class WithdrawTable:
    """A tombstone."""

    name: TableName


PublishingEvent = Asked | TableSeen | LoadMissing | Made
PublishingAction = Make | PutTable | WithdrawTable


def missing_load(said: Announce) -> LoadMissing | None:
    """What a worker's word on the status topic says of a load that it has no table for; None where it says nothing.

    Raises InvalidInputError.
    """
    if said.state != "table_missing" or said.data is None:
        return None
    app = said.subject.removeprefix("tables:")
    try:
        shelf = Shelf(app, str(said.data["worker_class"]), float(said.data["slo"]))
        qps = float(said.data["qps"])
    except (KeyError, ValueError) as error:
        raise InvalidInputError("status.data", f"{said.data} names no load, SLO and kind of worker") from error
    if not 0.0 < qps <= _MOST_QPS:
        raise InvalidInputError("status.data.qps", f"{qps:g} is no load; give queries/s above 0, to {_MOST_QPS:g}")
    return LoadMissing(shelf, qps)


def make_tables(make: Make, rules: LibraryRules) -> tuple[SelectionTable, ...]:
    """Do what ``make`` says: the work, seconds of CPU."""
    shelf, model = make.question.shelf, make.question.model
    if make.loads:
        made: Sequence[SelectionTable] = [
            generate(model.at(qps), app=shelf.app, worker_class=shelf.worker_class).table for qps in make.loads
        ]
    else:
        made = build_library(model, app=shelf.app, worker_class=shelf.worker_class, rules=rules)
    told: dict[str, str | float] = {"slo_class": shelf.slo}
    told |= {f"slowdown.{name}": factor for name, factor in make.question.slowdown.items()}
    return tuple(replace(t, assumptions={**t.assumptions, **told}) for t in made)


class TablePublishing:
    """Pure: ``handle(event) -> actions``."""

    def __init__(self, rules: LibraryRules) -> None:
        self._rules = rules
        self._wanted: dict[Shelf, Question] = {}
        self._prints: dict[Shelf, str] = {}
        self._held: dict[Shelf, dict[float, str]] = {}
        self._first: set[Shelf] = set()
        self._complete: set[Shelf] = set()
        self._failed: dict[Shelf, int] = {}  # how often in a row
        self._loads: OrderedDict[Shelf, float] = OrderedDict()
        self._cache: OrderedDict[tuple[Shelf, str], tuple[SelectionTable, ...]] = OrderedDict()
        self._out: Make | None = None

    def handle(self, event: PublishingEvent) -> list[PublishingAction]:
        """Decide."""
        actions: list[PublishingAction] = []
        match event:
            case Asked():
                self._asked(event, actions)
            case TableSeen(name, seen):
                held = self._held.setdefault(name.shelf, {})
                if seen is None:
                    held.pop(name.qps, None)
                else:
                    held[name.qps] = seen
            case LoadMissing(shelf, qps):
                over = shelf in self._complete and shelf not in self._failed
                if not over and not self._covers(shelf, qps) and qps <= self._most(shelf):
                    self._loads[shelf] = max(qps, self._loads.get(shelf, 0.0))
            case Made():
                self._made(event, actions)
            case _:
                assert_never(event)
        self._next(actions)
        return actions

    def _asked(self, event: Asked, actions: list[PublishingAction]) -> None:
        wanted = {q.shelf: q for q in event.questions}
        served = {(s.app, s.worker_class) for s in wanted}
        for shelf in [s for s, held in self._held.items() if held and s not in wanted]:
            if (shelf.app, shelf.worker_class) in served:
                self._withdraw(shelf, set(), actions)
        for shelf in self._wanted.keys() - wanted.keys():
            self._forget(shelf)
        self._wanted = wanted
        for shelf, question in wanted.items():
            asked = fingerprint(question.model)
            if self._prints.get(shelf) == asked:
                if self._failed.get(shelf, _TRIES) < _TRIES:
                    self._complete.discard(shelf)
                continue
            self._forget(shelf)
            self._prints[shelf] = asked
            if self._held.get(shelf):
                self._first.add(shelf)
            cached = self._cache.get((shelf, asked))
            if cached is not None:
                self._put_library(shelf, cached, actions)

    def _forget(self, shelf: Shelf) -> None:
        self._prints.pop(shelf, None)
        self._first.discard(shelf)
        self._complete.discard(shelf)
        self._failed.pop(shelf, None)
        self._loads.pop(shelf, None)

    def _covers(self, shelf: Shelf, qps: float) -> bool:
        return any(q >= qps for q, made in self._held.get(shelf, {}).items() if made == self._prints.get(shelf))

    def _most(self, shelf: Shelf) -> float:
        """Queries a second that a table for ``shelf`` may be worth making for."""
        question = self._wanted.get(shelf)
        return peak_rate(question.model) if question is not None else 0.0

    def _made(self, event: Made, actions: list[PublishingAction]) -> None:
        shelf, asked = event.make.question.shelf, fingerprint(event.make.question.model)
        out = self._out
        if out is None or (out.question.shelf, out.loads) != (shelf, event.make.loads):
            raise IllegalEventError(
                f"tables for {shelf}, loads {event.make.loads}, which nobody asked for", (f"{out}",)
            )
        self._out = None
        if event.failed:
            if not event.make.loads and self._prints.get(shelf) == asked:
                self._failed[shelf] = self._failed.get(shelf, 0) + 1
                self._complete.add(shelf)
            return
        if not event.make.loads:
            self._cache[shelf, asked] = event.tables
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        if self._prints.get(shelf) != asked:
            return
        if not event.make.loads:
            self._put_library(shelf, event.tables, actions)
            return
        for table in event.tables:
            if table.expected.violation <= self._rules.max_violation:
                self._put(TableName(shelf, table.qps), table, actions)

    def _put_library(self, shelf: Shelf, tables: Sequence[SelectionTable], actions: list[PublishingAction]) -> None:
        for table in sorted(tables, key=lambda t: -t.qps):  # the first one covers every load until the rest is there
            self._put(TableName(shelf, table.qps), table, actions)
        self._first.add(shelf)
        self._complete.add(shelf)
        self._failed.pop(shelf, None)
        self._loads.pop(shelf, None)
        self._withdraw(shelf, {t.qps for t in tables}, actions)

    def _put(self, name: TableName, table: SelectionTable, actions: list[PublishingAction]) -> None:
        self._held.setdefault(name.shelf, {})[name.qps] = table.fingerprint
        actions.append(PutTable(name, table))

    def _withdraw(self, shelf: Shelf, kept: set[float], actions: list[PublishingAction]) -> None:
        held = self._held.get(shelf, {})
        for qps in sorted(held.keys() - kept):
            del held[qps]
            actions.append(WithdrawTable(TableName(shelf, qps)))

    def _next(self, actions: list[PublishingAction]) -> None:
        if self._out is not None:
            return
        make = self._urgent()
        if make is not None:
            self._out = make
            actions.append(make)

    def _urgent(self) -> Make | None:
        for shelf, question in self._wanted.items():
            if shelf not in self._first:
                self._first.add(shelf)
                if question.model.qps > 0.0:
                    return Make(question, (_ABOVE * question.model.qps,))
        while self._loads:
            shelf, qps = self._loads.popitem(last=False)
            if not self._covers(shelf, qps):
                return Make(self._wanted[shelf], (_ABOVE * qps,))
        for shelf, question in self._wanted.items():
            if shelf not in self._complete:
                return Make(question)
        return None
