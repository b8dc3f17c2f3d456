"""Which of the queries that an app with a promise declares to take are never let in: said once, with what could be.

Rules. A query of more rows than a batch that keeps the promise holds is never let in: the bound of such queries is 0.
That is said as soon as what is in force makes it so, again only where less is taken than was said, and withdrawn when
all sizes that the app declares (``App.max_rows``) are taken. Nothing is said where everything is let in.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sluicegate.domain.actions import Announce
from sluicegate.domain.models.app import App

REFUSED = "rows_refused"
TAKEN = "rows_taken"


@dataclass(frozen=True, slots=True)
class Taken:
    """Queries of up to ``rows`` rows are let in (0: none at all), ``bound`` of the largest in any ``window_s`` s."""

    rows: int
    bound: int
    window_s: float


def refused_rows(app: App, taken: Taken, why: str = "", slo: float | None = None) -> Announce | None:
    """What is to be said of ``app``; None where it takes all that it declares.

    ``why``: not even single rows are; ``slo``: seconds with which all would be taken, where that is known.
    """
    rows, most = taken.rows, app.max_rows
    if rows >= most:
        return None
    data: dict[str, float | str] = {"rows": float(rows), "max_rows": float(most)}
    longer = "a longer SLO" if slo is None else f"an SLO of {1e3 * slo:.4g} ms"
    remedy = f"give it a faster variant, {longer}, or more slices, so that fewer apps share one"
    if not rows:
        reason = f": {why}" if why else ""
        return Announce(_subject(app), REFUSED, f"none of its queries is let in{reason}; {remedy}", data)
    sizes = f"{most} rows" if most == rows + 1 else f"{rows + 1} to {most} rows"
    each = f"{rows} rows" if rows > 1 else "one row"
    detail = (
        f"no query of {sizes} is let in: a batch that keeps its promise holds {rows}. Of queries of {each} "
        f"{taken.bound} in any {1e3 * taken.window_s:.4g} ms ({taken.bound / taken.window_s:.4g}/s) could be; "
        f"{remedy}; or declare max_rows {rows}"
    )
    return Announce(_subject(app), REFUSED, detail, data | {"bound": float(taken.bound), "window_s": taken.window_s})


class RowsTold:
    """What was said of each app. See the module's rules."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, int]] = {}  # rows taken, rows declared

    def registered(self, apps: Mapping[str, App]) -> None:
        """Forget those that are served no more, or promised nothing any more."""
        self._told = {name: told for name, told in self._told.items() if name in apps and apps[name].promise.active}

    def now(self, app: App, taken: Taken | None, why: str = "") -> Announce | None:
        """What is in force for ``app`` (None: everything is let in); what is to be said of it."""
        if not app.promise.active:
            return None
        said = None if taken is None else refused_rows(app, taken, why)
        told = self._told.get(app.name)
        if said is None or taken is None:
            if self._told.pop(app.name, None) is None:
                return None
            return Announce(_subject(app), TAKEN, f"queries of all sizes up to {app.max_rows} rows are let in again")
        if told is not None and taken.rows >= told[0] and app.max_rows <= told[1]:
            return None
        self._told[app.name] = (taken.rows, app.max_rows)
        return said


def _subject(app: App) -> str:
    return f"rows:{app.name}"
