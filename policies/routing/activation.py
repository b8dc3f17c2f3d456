"""When a router switches to a published plan: once the capacity that its app needs is ready.

Rules.
- Epochs only grow (term first, then number), and by no more than leaders make them grow
  (``sluicegate.domain.plan.follows``): any other plan is ignored, and so is what a deposed planner publishes. A newer
  plan replaces a pending one; the wait is that of the first of them of which nothing was used, or plans that come
  faster than variants load would keep the router where it is. ``ANSWER_S`` are left in any case: devices that have
  nothing to load answer within that.
- A placement is ready when its device has acknowledged the plan's epoch and staged at least one of its variants.
- The plan is activated when every device that hosts the app in it has acknowledged, less the placements that failed.
- The first plan of all is activated with its first ready placement and again with each further one.
- After ``wait_s`` the plan is activated with what is ready; where nothing is, the old plan stays in force and the
  router goes on waiting. Devices that acknowledge later join then.
- Until all are ready a slice that is still loading goes on with what it holds of the app, for as many queries as it was
  given before, also where it is loading for another app: the worker forgets that only afterwards, unless its memory has
  no room for both. Where all slices can, the wait is ``ANSWER_S``: nothing is lost by it.
- A plan that changes nothing in what is hosted for the app is activated at once.
- A device of the active plan that a newer plan does not mention at all is taken for dead: the router stops using it at
  once, or turns to the new plan where it would be left with nothing. A GPU that is to be cut is mentioned by its
  slices: it is used until what takes its place is ready.

Illegal: nothing. Messages of the control topics may come in any order and more than once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from sluicegate.domain.actions import Activate, ActivationAction, WakeAt
from sluicegate.domain.events import ActivationEvent, PlanAcknowledged, PlanPublished, Woke
from sluicegate.domain.plan import NO_EPOCH, Placement, Plan, follows
from sluicegate.policies.routing.weighted import hosting

WAIT_S = 5.0
ANSWER_S = 0.5


class Activation:
    """When the router of ``app`` switches to a plan. ``stays``: whether a slice goes on with a placement
    while it loads others. ``wait_s``: seconds after which it does with what is ready."""

    __slots__ = ("_acks", "_active", "_due", "_newest", "_pending", "_routed", "_stays", "app", "wait_s")

    def __init__(
        self, app: str, stays: Callable[[Placement, Sequence[Placement]], bool], *, wait_s: float = WAIT_S
    ) -> None:
        self.app = app
        self.wait_s = wait_s
        self._stays = stays
        self._newest = NO_EPOCH
        self._active: Plan | None = None
        self._pending: Plan | None = None
        self._routed: tuple[Placement, ...] = ()
        self._due = 0.0
        self._acks: dict[str, PlanAcknowledged] = {}

    @property
    def active(self) -> Plan | None:
        """The plan in force, with the placements that are used."""
        return self._active

    @property
    def pending(self) -> Plan | None:
        """The newest plan, while it is not in force in full."""
        return self._pending

    def handle(self, event: ActivationEvent, now: float) -> list[ActivationAction]:
        """Decide."""
        match event:
            case PlanPublished():
                if not follows(event.plan.epoch, self._newest):
                    return []
                return self._published(event.plan, now)
            case PlanAcknowledged():
                known = self._acks.get(event.device)
                if known is not None and known.epoch != event.epoch and not follows(event.epoch, known.epoch):
                    return []
                self._acks[event.device] = event
                if self._pending is None or event.epoch != self._pending.epoch:
                    return []
                return self._progress(self._pending, now)
            case Woke():
                return self._woke(self._pending, now) if self._pending is not None else []
            case _:
                assert_never(event)

    def _published(self, plan: Plan, now: float) -> list[ActivationAction]:
        waits_on = self._pending is not None and (self._active is None or self._active.epoch != self._pending.epoch)
        self._newest = plan.epoch
        self._pending = plan
        wait = ANSWER_S if self._all_stay(plan) else self.wait_s
        self._due = max(self._due, now + ANSWER_S) if waits_on and wait > ANSWER_S else now + wait
        wanted = hosting(plan, self.app)
        alive = {p.device for p in plan.placements} | set(plan.geometries)
        self._acks = {d: a for d, a in self._acks.items() if d in alive or follows(a.epoch, plan.epoch)}
        if not wanted or (self._active is not None and _places(wanted) == _places(self._routed)):
            return self._activate(plan, wanted, complete=True)
        actions: list[ActivationAction] = []
        left = tuple(p for p in self._routed if p.device in alive)
        if self._active is not None and len(left) < len(self._routed):
            if not left:
                return self._activate(plan, wanted, complete=True)
            actions += self._activate(self._active, left, complete=False)
        progress = self._progress(plan, now)
        return [*actions, *(progress or [WakeAt(self._due)])]

    def _woke(self, plan: Plan, now: float) -> list[ActivationAction]:
        if now < self._due:
            return [WakeAt(self._due)]
        return self._progress(plan, now)

    def _progress(self, plan: Plan, now: float) -> list[ActivationAction]:
        wanted = hosting(plan, self.app)
        answers = [self._answer(p, plan) for p in wanted]
        ready = tuple(p for p, answer in zip(wanted, answers, strict=True) if answer)
        answered = None not in answers
        joined = self._active is not None and self._active.epoch == plan.epoch
        if ready and (answered or joined or now >= self._due or self._active is None):
            complete = len(ready) == len(wanted)
            used = ready if complete else self._with_loading(plan, wanted, answers)
            if joined and used == self._routed and not complete:
                return []
            return self._activate(plan, used, complete=complete)
        return []

    def _with_loading(
        self, plan: Plan, wanted: tuple[Placement, ...], answers: list[bool | None]
    ) -> tuple[Placement, ...]:
        """What is ready, and what slices that have not answered yet go on with."""
        found = [p for p, answer in zip(wanted, answers, strict=True) if answer]
        said = {(p.device, p.slice): p for p, answer in zip(wanted, answers, strict=True) if answer is not None}
        coming = _by_place(plan)
        for old in self._routed:
            place = (old.device, old.slice)
            ack = self._acks.get(old.device)
            loading = place not in said and (ack is None or ack.epoch != plan.epoch)
            if loading and self._stays(old, coming.get(place, ())):
                found.append(replace(old, share=old.share * self._grown(plan)))
        return tuple(sorted(found, key=lambda p: (p.device, p.slice)))

    def _all_stay(self, plan: Plan) -> bool:
        coming = _by_place(plan)
        return bool(self._routed) and all(self._stays(p, coming.get((p.device, p.slice), ())) for p in self._routed)

    def _grown(self, plan: Plan) -> float:
        """Demand that the active plan was made for, over that of ``plan``."""
        was = self._active.demand.get(self.app, 0.0) if self._active is not None else 0.0
        wanted = plan.demand.get(self.app, 0.0)
        return was / wanted if was > 0.0 and wanted > 0.0 else 1.0

    def _activate(self, plan: Plan, placements: tuple[Placement, ...], *, complete: bool) -> list[ActivationAction]:
        others = tuple(p for p in plan.placements if p.app != self.app)
        self._active = plan if complete else replace(plan, placements=others + placements)
        self._routed = placements
        if complete and plan is self._pending:
            self._pending = None
        return [Activate(self._active)]

    def _answer(self, placement: Placement, plan: Plan) -> bool | None:
        """Whether ``placement`` is ready; None while its device has not answered."""
        ack = self._acks.get(placement.device)
        if ack is None or ack.epoch != plan.epoch:
            return None
        return not set(placement.variants).isdisjoint(ack.variants)


def _by_place(plan: Plan) -> dict[tuple[str, str], list[Placement]]:
    found: dict[tuple[str, str], list[Placement]] = {}
    for placement in plan.placements:
        found.setdefault((placement.device, placement.slice), []).append(placement)
    return found


def _places(placements: tuple[Placement, ...]) -> list[tuple[str, str, tuple[str, ...]]]:
    return sorted((p.device, p.slice, p.variants) for p in placements)
