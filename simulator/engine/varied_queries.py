"""How queries of one app differ: in length, in what they ask of their own, in how long they are on their way."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from numpy.random import Generator

from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.query import Goal, Query

_DRAWN = 4096
"""Draws at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWish:
    """A ``share`` (0..1) of an app's queries asks this. ``slo``: seconds. None: as the app. ``rows``: that it has.

    ``client``: who asks.
    """

    share: float
    slo: float | None = None
    query_class: QueryClass | None = None
    priority: int = 0
    client: str = ""
    goal: Goal | None = None
    rows: int = 1


class Variety:
    """Of one app. ``lengths``: all equally likely; ``wishes``: what is left of their shares asks nothing."""

    def __init__(self, lengths: Sequence[int], wishes: Sequence[OwnWish], rng: Generator) -> None:
        self._lengths = _lengths(lengths, rng.spawn(1)[0]) if lengths else None
        self._wishes = _wishes(wishes, rng) if wishes else None

    def apply(self, query: Query) -> None:
        """Make ``query`` one of them."""
        if self._lengths is not None:
            query.length = next(self._lengths)
        if self._wishes is not None and (wish := next(self._wishes)) is not None:
            query.goal, query.priority, query.rows = wish.goal, wish.priority, wish.rows
            query.source = wish.client
            if wish.slo is not None:
                query.deadline = query.arrival + wish.slo
            if wish.query_class is not None:
                query.query_class = wish.query_class


def varieties(
    apps: Sequence[str], lengths: Mapping[str, Sequence[int]], wishes: Mapping[str, Sequence[OwnWish]], rng: Generator
) -> dict[str, Variety]:
    """Of those of ``apps`` whose queries differ. Each app has a generator of its own, by its place among all."""
    return {
        app: Variety(lengths.get(app, ()), wishes.get(app, ()), own)
        for app, own in zip(apps, rng.spawn(len(apps)), strict=True)
        if app in lengths or app in wishes
    }


def _lengths(lengths: Sequence[int], rng: Generator) -> Iterator[int]:
    while True:
        yield from rng.choice(lengths, _DRAWN).tolist()


def _wishes(wishes: Sequence[OwnWish], rng: Generator) -> Iterator[OwnWish | None]:
    every: list[OwnWish | None] = [*wishes, None]
    shares = [wish.share for wish in wishes]
    while True:
        for drawn in rng.choice(len(every), _DRAWN, p=[*shares, max(0.0, 1.0 - sum(shares))]).tolist():
            yield every[drawn]


class VariedHop:
    """From ``least`` seconds to ``spread`` more, all equally likely. What goes to one device keeps its order."""

    def __init__(self, least: float, spread: float, rng: Generator) -> None:
        self._drawn = _hops(least, least + spread, rng)
        self._latest: dict[str, float] = {}

    def reaches(self, device: str, now: float) -> float:
        """When what is sent to ``device`` now is there."""
        at = self._latest[device] = max(self._latest.get(device, now), now + next(self._drawn))
        return at


def _hops(low: float, high: float, rng: Generator) -> Iterator[float]:
    while True:
        yield from rng.uniform(low, high, _DRAWN).tolist()
