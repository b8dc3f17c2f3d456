"""Whether promises are announced as not to be counted on, for several reasons: told with the first, withdrawn with the
last. A part of the cores that announce.
"""

from math import inf

from sluicegate.domain.actions import Announce

SENT_TWICE = "queries are sent twice"
"""A reason of several cores."""
COPIES = "queries may be sent twice, and copies of them are counted by other devices"


class PromiseNotices:
    """Reasons that stand, by app. Each method gives what is to be said on the status topic."""

    __slots__ = ("_standing",)

    def __init__(self) -> None:
        self._standing: dict[str, dict[str, float]] = {}

    @property
    def due(self) -> float:
        """When ``over`` is to be called next; infinity where it need not be."""
        return min((until for reasons in self._standing.values() for until in reasons.values()), default=inf)

    def begin(self, app: str, reason: str, detail: str, until: float = inf) -> list[Announce]:
        """``reason`` holds for ``app``, until that time or longer if it is given again."""
        reasons = self._standing.setdefault(app, {})
        told = bool(reasons)
        reasons[reason] = until
        return [] if told else [Announce(f"app:{app}", "safe_mode", detail)]

    def lasts(self, app: str, reason: str, until: float) -> bool:
        """``reason``, if it holds without an end, holds until then. Whether it did."""
        reasons = self._standing.get(app, {})
        if reasons.get(reason) != inf:
            return False
        reasons[reason] = until
        return True

    def end(self, app: str, reason: str, detail: str) -> list[Announce]:
        """It holds no more; nothing where it did not."""
        reasons = self._standing.get(app, {})
        if reasons.pop(reason, None) is None or reasons:
            return []
        del self._standing[app]
        return [Announce(f"app:{app}", "promise_kept", detail)]

    def over(self, now: float) -> list[Announce]:
        """What was given a time that has come holds no more."""
        gone = [(app, r) for app, reasons in self._standing.items() for r, until in reasons.items() if until <= now]
        return [said for app, reason in gone for said in self.end(app, reason, f"{reason} no more")]
