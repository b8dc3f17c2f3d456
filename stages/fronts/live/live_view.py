"""What the page shows: outcomes, demand, heartbeats, plans and announcements, folded into the last minutes. Pure.

Rules.
- Seconds are those of the records' own times; a second is told once it is over, the last ``SPAN`` of them.
- Memory is bounded: seconds, plans, announcements, recent misses, latencies a second.
- Goodput is queries answered on time; violations every other outcome, rejected ones included. Over time both are in
  rows, as demand and what plans carry are.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import DemandCounted
from sluicegate.domain.models.app import App, Promise
from sluicegate.domain.plan import Placement, Plan
from sluicegate.stages.fronts.live.plan_capacity import Carries
from sluicegate.stages.fronts.live.plan_history import PlanHistory
from sluicegate.streams.records.control import Heartbeat

SPAN = 120
_RECENT = 10
_LATENCIES = 200
_KEPT = 40
_STALE = 2.0
_SPARE = 60
"""Seconds ahead of this clock that a record's own time may lie."""
_MOST, _DETAIL = 1000, 1000
"""Devices, and subjects, that are kept, and letters of what is said of one: anybody may have written it."""


@dataclass(frozen=True, slots=True)
class End:
    """How a query ended, as far as the page tells."""

    query_id: str
    app: str
    kind: str
    arrival: float
    at: float
    late: bool
    reason: str
    variant: str
    device: str
    accuracy: float
    best: float
    queue_s: float
    detail: str
    source: str = ""
    story: Mapping[str, Any] = field(default_factory=dict)
    """What the outcome says of itself, all of it."""
    left: int | None = None  # misses that its stream still had, where it was promised something
    rows: int = 1

    @property
    def took(self) -> float:
        """As of an Outcome."""
        return max(0.0, self.at - self.arrival)


@dataclass(slots=True)
class _Second:
    asked: Counter[str] = field(default_factory=Counter)
    good: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    good_rows: Counter[str] = field(default_factory=Counter)
    missed_rows: Counter[str] = field(default_factory=Counter)
    accuracy: dict[str, float] = field(default_factory=dict)
    of_best: dict[str, float] = field(default_factory=dict)
    mix: dict[str, Counter[str]] = field(default_factory=dict)  # app -> variant -> answers on time
    by_device: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)  # of (app, variant)
    why: Counter[str] = field(default_factory=Counter)
    latencies: dict[str, list[float]] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)


class LiveView:
    """The live page's figures, folded from topics. ``apps`` and ``accuracies`` (variant -> profiled accuracy) come from
    the catalogue; ``carries``: what a plan can carry, where that is known."""

    def __init__(
        self,
        apps: Mapping[str, App],
        accuracies: Mapping[str, float],
        carries: Callable[[Plan], Carries] = lambda _: {},
    ) -> None:
        self._apps = apps
        self._accuracies = accuracies
        self._seconds: dict[int, _Second] = {}
        self._beats: dict[str, Heartbeat] = {}
        self._queues: dict[str, deque[int]] = {}
        self._plans = PlanHistory(carries, _KEPT)
        self._said: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._states: dict[str, str] = {}
        self._details: dict[str, str] = {}
        self._misses: deque[End] = deque(maxlen=_KEPT)
        self._answers: deque[End] = deque(maxlen=_RECENT)
        self._totals: Counter[str] = Counter()
        self.dead_letters = 0

    def registered(self, apps: Mapping[str, App], accuracies: Mapping[str, float]) -> None:
        """These are served from now on; what was answered before by others stays in the picture."""
        self._apps = apps
        self._accuracies = {**self._accuracies, **accuracies}

    def ended(self, end: End) -> None:
        """An outcome was read."""
        second = self._second(end.at)
        on_time = end.kind == "answered" and not end.late
        self._totals["ended"] += 1
        if end.left is not None:
            second.left[end.app] = min(end.left, second.left.get(end.app, end.left))
        if end.kind == "answered" and len(latencies := second.latencies.setdefault(end.app, [])) < _LATENCIES:
            latencies.append(end.took)
        if not on_time:
            second.missed[end.app] += 1
            second.missed_rows[end.app] += end.rows
            name = "late" if end.late else end.kind
            second.why[f"{name} ({end.reason})" if end.reason else name] += 1
            self._misses.append(end)
            return
        self._totals["good"] += 1
        second.good[end.app] += 1
        second.good_rows[end.app] += end.rows
        self._answers.append(end)
        second.accuracy[end.app] = second.accuracy.get(end.app, 0.0) + end.accuracy
        second.of_best[end.app] = second.of_best.get(end.app, 0.0) + end.accuracy / (end.best or 1.0)
        second.mix.setdefault(end.app, Counter())[end.variant] += 1
        second.by_device.setdefault(end.device, Counter())[end.app, end.variant] += 1

    def demanded(self, counted: DemandCounted, at: float) -> None:
        """Arrivals were counted, in the window that ended ``at``."""
        self._second(at - 0.5 * counted.window).asked[counted.app] += counted.count

    def beat(self, beat: Heartbeat) -> None:
        """A device told of itself."""
        name = beat.seen.device
        if beat.stands_by:
            return
        if beat.seen.leaving:
            self._beats.pop(name, None)
            self._queues.pop(name, None)
            return
        if name in self._beats or len(self._beats) < _MOST:
            self._beats[name] = beat
            self._queues.setdefault(name, deque(maxlen=SPAN)).append(beat.queued)

    def planned(self, plan: Plan) -> None:
        """A plan was published."""
        self._plans.add(plan)

    def said(self, announce: Announce, at: float) -> None:
        """Something was announced."""
        self._details.pop(announce.subject, None)  # the newest last
        self._details[announce.subject] = detail = announce.detail[:_DETAIL]
        if len(self._details) > _MOST:
            oldest = next(iter(self._details))
            self._states.pop(oldest)
            del self._details[oldest]
        if self._states.get(announce.subject) == announce.state:
            return
        self._states[announce.subject] = announce.state
        self._said.append({"at": at, "subject": announce.subject, "state": announce.state, "detail": detail})

    def story(self, query_id: str, app: str) -> Mapping[str, Any] | None:
        """What is known of a query that the page has named lately."""
        for end in (*self._misses, *self._answers):
            if (end.query_id, end.app) == (query_id, app):
                return {"id": end.query_id, "app": end.app, **end.story}
        return None

    def snapshot(self, now: float) -> dict[str, Any]:
        """Everything that the page shows, as JSON can hold it."""
        self._forget(now)
        last = int(now) - 1
        seconds = [self._seconds.get(at, _Second()) for at in range(last - SPAN + 1, last + 1)]
        recent = seconds[-_RECENT:]
        carried = [self._plans.in_force(at + 1) for at in range(last - SPAN + 1, last + 1)]
        told = self._plans.told()
        return {
            "now": now,
            "span": SPAN,
            "totals": {**self._totals, "dead_letters": self.dead_letters},
            "apps": [self._app(name, app, recent) for name, app in sorted(self._apps.items())],
            "series": {
                name: {**_series(name, seconds), **_capacity(name, carried), "mix": _mix(name, seconds)}
                for name in sorted(self._apps)
            },
            "host": self._host(now),
            "devices": self._devices(recent, now),
            "variants": [
                {"app": name, "name": variant, "accuracy": self._accuracies[variant]}
                for name, app in sorted(self._apps.items())
                for variant in self._of_app(name)
            ],
            "plan": told[0] if told else None,
            "plans": told,
            "said": list(reversed(self._said)),
            "why": _top(Counter(_summed(s.why for s in seconds[-60:]))),
            "misses": [_miss(end) for end in reversed(self._misses)],
            "answers": [_miss(end) for end in reversed(self._answers)],
        }

    def _host(self, now: float) -> dict[str, Any]:
        """Whether the machines keep up: what the planner has said, and how late event loops wake."""
        late = [beat.late for beat in self._beats.values() if now - beat.at < _STALE]
        starved = self._states.get("host") == "starved"
        return {
            "starved": starved,
            "detail": self._details.get("host", "") if starved else "",
            "late_ms": 1e3 * max(late, default=0.0),
        }

    def _of_app(self, app: str) -> list[str]:
        """Variants seen or planned of ``app``, the least accurate first."""
        seen = {v for s in self._seconds.values() for v in s.mix.get(app, ())} | self._plans.variants(app)
        return sorted((v for v in seen if v in self._accuracies), key=lambda v: (self._accuracies[v], v))

    def _app(self, name: str, app: App, recent: list[_Second]) -> dict[str, Any]:
        good = sum(s.good[name] for s in recent)
        missed = sum(s.missed[name] for s in recent)
        latencies = sorted(x for s in recent for x in s.latencies.get(name, ()))
        return {
            "name": name,
            "slo_ms": 1e3 * app.slo,
            "demand": sum(s.asked[name] for s in recent) / _RECENT,
            "goodput": good / _RECENT,
            "missed": missed / _RECENT,
            "violations": missed / (good + missed) if good + missed else None,
            "accuracy": sum(s.accuracy.get(name, 0.0) for s in recent) / good if good else None,
            "of_best": sum(s.of_best.get(name, 0.0) for s in recent) / good if good else None,
            "p50_ms": _quantile(latencies, 0.5),
            "p99_ms": _quantile(latencies, 0.99),
            "promised": _promised(app.promise),
            "misses_left": min((s.left[name] for s in recent if name in s.left), default=None),
            "state": self._states.get(f"app:{name}"),
            "routed": self._states.get(f"routing:{name}") != "nothing_routes",
        }

    def _devices(self, recent: list[_Second], now: float) -> list[dict[str, Any]]:
        plan = self._plans.newest
        hosted: dict[str, list[Placement]] = {}
        for placed in plan.placements if plan else ():
            hosted.setdefault(placed.device, []).append(placed)
        return [self._device(name, recent, plan, hosted.get(name, []), now) for name in sorted({*self._beats, *hosted})]

    def _device(
        self, name: str, recent: list[_Second], plan: Plan | None, hosted: list[Placement], now: float
    ) -> dict[str, Any]:
        beat = self._beats.get(name)
        answered = _summed(s.by_device[name] for s in recent if name in s.by_device)
        total = answered.total()
        age = None if beat is None else max(0.0, now - beat.at)
        return {
            "name": name,
            "type": beat.seen.type if beat else "",
            "age": age,
            "alive": age is not None and age < _STALE,
            "queued": beat.queued if beat else None,
            "utilisation": beat.utilisation if beat else None,
            "epoch": list(beat.epoch) if beat else None,
            "loaded": list(beat.variants) if beat else [],
            "queue": list(self._queues.get(name, ())),
            "rate": total / _RECENT,
            "late_ms": 1e3 * beat.late if beat else 0.0,
            "slices": self._slices(name, beat, plan),
            "mix": [
                {"app": app, "variant": variant, "share": n / total}
                for (app, variant), n in sorted(answered.items(), key=lambda held: -held[1])
            ],
            "hosted": [
                {
                    "app": p.app,
                    "slice": p.slice,
                    "variants": list(p.variants),
                    "share": p.share,
                    "max_batch": p.max_batch,
                }
                for p in hosted
            ],
        }

    def _slices(self, name: str, beat: Heartbeat | None, plan: Plan | None) -> list[dict[str, Any]]:
        """Slices of a device that has several: their profile, and what waits and runs there."""
        cut = (beat.seen.slices if beat else ()) or (plan.geometries.get(name, ()) if plan else ())
        profiles = {part.name: part.profile for part in cut}
        parts = beat.slices if beat else ()
        if len(parts) < 2 and len(cut) < 2:
            return []
        return [
            {
                "name": part.slice,
                "profile": profiles.get(part.slice, ""),
                "queued": part.queued,
                "busy_ms": 1e3 * part.busy_for,
                "overdue": part.overdue > 0.0,
            }
            for part in parts
        ]

    def _second(self, at: float) -> _Second:
        second = self._seconds.get(int(at))
        if second is None:
            second = self._seconds[int(at)] = _Second()
            while len(self._seconds) > SPAN + 2 * _SPARE:
                del self._seconds[min(self._seconds)]
        return second

    def _forget(self, now: float) -> None:
        for at in [at for at in self._seconds if not now - SPAN - 2 <= at <= now + _SPARE]:
            del self._seconds[at]
        for name in [name for name, beat in self._beats.items() if now - beat.at > SPAN]:
            del self._beats[name]
            self._queues.pop(name, None)


def _series(app: str, seconds: list[_Second]) -> dict[str, list[float | None]]:
    return {
        "demand": [s.asked[app] for s in seconds],
        "good_rows": [s.good_rows[app] for s in seconds],
        "missed_rows": [s.missed_rows[app] for s in seconds],
        "accuracy": [s.accuracy.get(app, 0.0) / s.good[app] if s.good[app] else None for s in seconds],
    }


def _capacity(app: str, carried: list[Carries]) -> dict[str, list[float | None]]:
    """By second, what the plan that was in force then carries, and what its slices would with the best alone."""
    found = [of.get(app) for of in carried]
    return {
        "capacity": [pair[0] if pair else None for pair in found],
        "best_only": [pair[1] if pair else None for pair in found],
    }


def _mix(app: str, seconds: list[_Second]) -> dict[str, list[int]]:
    """Answers on time by variant and second."""
    counted = [s.mix.get(app) or Counter() for s in seconds]
    return {name: [of[name] for of in counted] for name in sorted({name for of in counted for name in of})}


def _miss(end: End) -> dict[str, Any]:
    return {
        "id": end.query_id[:64],
        "source": end.source[:64],
        "app": end.app,
        "at": end.at,
        "kind": "late" if end.late else end.kind,
        "reason": end.reason,
        "detail": end.detail[:200],
        "device": end.device,
        "variant": end.variant,
        "waited_ms": 1e3 * end.took,
    }


def _summed(counters: Iterable[Counter[Any]]) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _top(why: Counter[str]) -> list[dict[str, Any]]:
    return [{"why": name, "count": count} for name, count in why.most_common(8)]


def _promised(promise: Promise) -> str:
    row = promise.max_consecutive
    pairs = [f"{w.m} of {w.k}" for w in promise.weakly_hard] + ([] if row is None else [f"{row} in a row"])
    return f"at most {', '.join(pairs)}" if pairs else ""


def _quantile(ordered: list[float], share: float) -> float | None:
    return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
