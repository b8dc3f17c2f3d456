"""Ends at the door what nothing registered can do: queries whose goals no variant meets, with the nearest suggestion.

Rules. A query's own goals (accuracy, cost, a model by name) and its own time are held against every variant of its app,
loaded or not: what is feasible goes on to the policy behind this one, and the plan decides what serves it. A query is
infeasible where no variant is accurate and cheap enough within the time that it asked for (that of a batch of one row,
median, on the fastest hardware there is). One without goals is looked at only where it asks for less time than the
fastest variant takes, and not at all where a promise counts it: a miss of ours must not become a refusal.
"""

from collections.abc import Collection, Mapping
from math import inf

from sluicegate.domain.actions import AdmissionAction, Reject
from sluicegate.domain.events import Arrived
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.model_less.goal_variants import AppGoals, GoalVariant
from sluicegate.policies.protocols import AdmissionPolicy


class GoalAdmission:
    """Before ``behind``. ``apps``: what is registered, by app.

    ``promised``: apps with a promise on their streams; it may change.
    """

    __slots__ = ("_apps", "_behind", "_fastest", "_promised", "name")

    def __init__(
        self, behind: AdmissionPolicy, apps: Mapping[str, tuple[GoalVariant, ...]], promised: Collection[str] = ()
    ) -> None:
        self.name = behind.name
        self._behind = behind
        self.registered(apps)
        self._promised = promised

    def registered(self, apps: Mapping[str, tuple[GoalVariant, ...]]) -> None:
        """These are, from now on, all variants of all apps."""
        self._apps = {app: AppGoals(variants) for app, variants in apps.items() if variants}
        self._fastest = {app: min(v.latency for v in variants) for app, variants in apps.items() if variants}

    def handle(self, event: Arrived, now: float) -> list[AdmissionAction]:
        """Decide."""
        query = event.query
        time = query.deadline - query.arrival
        hurried = 0.0 < time < self._fastest.get(query.app, 0.0) and query.app not in self._promised
        if query.goal is not None or hurried:
            why = self._infeasible(query, time)
            if why:
                return [Reject(query, Reason.INFEASIBLE, why)]
        return list(self._behind.handle(event, now))

    def _infeasible(self, query: Query, time: float) -> str:
        known = self._apps.get(query.app)
        if known is None or time <= 0.0:
            return ""
        goal = query.goal
        if goal is not None and goal.model is not None:
            return self._named(known, goal.model, goal.accuracy or 0.0)
        accuracy = goal.accuracy or 0.0 if goal is not None else 0.0
        cost = goal.cost if goal is not None and goal.cost is not None else inf
        within = inf if query.app in self._promised else time
        if known.feasible(accuracy, within, cost) is not None:
            return ""
        # times since 1970 are exact to a quarter of a microsecond
        asked = [f"within {round(1e3 * time, 3):.4g} ms"] if within < inf else []
        asked += [f"with accuracy {accuracy:.4g}"] if accuracy else []
        asked += [f"at cost {cost:.4g}"] if cost < inf else []
        return (
            f"no variant of {query.app} answers {' '.join(asked)}; {_suggested(known.nearest(accuracy, within, cost))}"
        )

    def _named(self, known: AppGoals, name: str, accuracy: float) -> str:
        variant = known.by_name.get(name)
        if variant is None:
            some = ", ".join(sorted(known.by_name)[:6])
            return f"parameters.model: {name!r} is no variant here; there are {some}"
        if variant.accuracy < accuracy:
            return (
                f"model {name} has accuracy {variant.accuracy:.4g}, and {accuracy:.4g} is asked; ask for one of the two"
            )
        return ""


def _suggested(nearest: GoalVariant | None) -> str:
    assert nearest is not None  # an app without variants is not asked
    return (
        f"nearest: {nearest.name} (accuracy {nearest.accuracy:.4g}, {1e3 * nearest.latency:.4g} ms, "
        f"cost {nearest.cost:.4g})"
    )
