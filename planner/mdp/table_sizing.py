"""The fewest workers whose table promises an accuracy and a violation rate (EuroSys 2024, section 5.1).

More workers are more accurate. They need not violate less: below saturation a table spends slack on accuracy, at times
on a batch more that may be late, so that promised violations rise and fall as workers are added. Bisection finds where
the accuracy is there and saturation is left; from there on every number is tried.
"""

from dataclasses import dataclass, replace

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.table import SelectionTable
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import MAX_WORKERS, SelectionModel

_SATURATED = 0.05
"""Violations above which more workers always violate less."""


@dataclass(frozen=True, slots=True)
class Sized:
    """The fewest workers that keep a promise. ``tried``: (workers, accuracy, violation) of every table made on the way,
    by workers."""

    workers: int
    table: SelectionTable
    tried: tuple[tuple[int, float, float], ...]


def fewest_workers(
    model: SelectionModel, *, accuracy: float, violation: float, most: int, app: str = ""
) -> Sized | None:
    """Of 1..``most`` workers; None where ``most`` are too few, or meet the targets with no number.

    ``model.workers`` is not used. Weighted dispatch has no number of workers and is an error.
    """
    for name, value in {"accuracy": accuracy, "violation": violation}.items():
        if not 0.0 <= value <= 1.0:
            raise InvalidInputError(name, f"{value} is not in 0..1")
    if model.share is not None:
        raise InvalidInputError("dispatch", "weighted gives one worker its share; size with round_robin or random")
    if not 1 <= most <= MAX_WORKERS:
        raise InvalidInputError("most", f"{most} is not in 1..{MAX_WORKERS}")
    tables: dict[int, SelectionTable] = {}

    def meets(workers: int, violation: float) -> bool:
        if workers not in tables:
            tables[workers] = generate(replace(model, workers=workers), app=app).table
        expected = tables[workers].expected
        return expected.violation <= violation and expected.accuracy >= accuracy

    tolerable = max(violation, _SATURATED)
    low, high = 0, 1
    while not meets(high, tolerable):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle, tolerable) else (middle, high)
    while not meets(high, violation):
        if high == most:
            return None
        high += 1
    tried = tuple((k, t.expected.accuracy, t.expected.violation) for k, t in sorted(tables.items()))
    return Sized(high, tables[high], tried)
