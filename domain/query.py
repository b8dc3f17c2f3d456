"""A query: what policies need to know of one. Its tensors travel beside it, never inside."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from sluicegate.domain.models.app import QueryClass

Value = TypeVar("Value")
Default = TypeVar("Default")


class QueryKey(NamedTuple):
    """What makes a query the one it is: its app, who asked (``ce_source``, "" where not told), its id there."""

    app: str
    source: str
    id: str


@dataclass(frozen=True, slots=True)
class Goal:
    """What one query asks beyond its app: accuracy (native metric, 0..1), cost, or a model by name."""

    accuracy: float | None = None
    cost: float | None = None
    model: str | None = None


@dataclass(slots=True, eq=False, unsafe_hash=False)
class Query:
    """One query on its way. Treat as frozen: it is not declared so because creation is on the hot path.

    ``arrival`` and ``deadline``: absolute seconds (wall clock live, virtual clock in simulation).
    ``stream``: key of the sequence that promises are counted on (default: the app).
    ``sequence``: position in its stream where that is known (the offset), else -1.
    ``length``: of its longest row where the app's inputs vary in length, else 0.
    ``source``: who asked, as CloudEvents name it; "" where not told. ``key`` is its identity, not the id alone.
    """

    id: str
    app: str
    arrival: float
    deadline: float
    rows: int = 1
    query_class: QueryClass = QueryClass.STRICT
    stream: str = ""
    sequence: int = -1
    priority: int = 0
    goal: Goal | None = None
    length: int = 0
    source: str = ""

    @property
    def key(self) -> QueryKey:
        """Its identity."""
        return QueryKey(self.app, self.source, self.id)


def for_source(source: str, values: Mapping[str, Value], default: Default) -> Value | Default:
    """The value given for ``source``; else that for the one it asks through (``/http`` for ``/http/4f21``)."""
    through = source.rpartition("/")[0]
    return values.get(source, values.get(through, default) if through else default)
