"""What every stage is handed to be watched by: meters, and traces where they are asked for."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.plan import Plan
from sluicegate.planner.control.reclaiming import MOST_READ
from sluicegate.stages.runtime.consumer_loop import Intake
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.telemetry.metrics import Labels, Meters, Reading
from sluicegate.stages.telemetry.tracing import Tracing
from sluicegate.streams.ports import Letter, Record
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)


class Slice(Protocol):
    """Where queries wait and variants are loaded."""

    @property
    def queued(self) -> int:
        """Queries waiting or running."""
        ...

    @property
    def loaded(self) -> tuple[str, ...]:
        """Variants ready."""
        ...


_BY_APP = ("sluice_plan_served", "sluice_plan_demand_rows", "sluice_plan_share", "sluice_predicted_misses")
_OF_A_PLAN = ("sluice_plan_solve_seconds", "sluice_plan_objective", "sluice_plan_bound", "sluice_devices_planned")


def buried(
    record: Record, error: InvalidInputError, *, stage: str, now: float, topics: Topics, meters: Meters
) -> Letter:
    """The dead letter of a record that ``stage`` could not understand, counted and logged."""
    reason = codec.letter_reason(error, record)
    meters.add("sluice_dead_letters", stage, reason)
    log.info("dead letter of %s (%s): %s", stage, reason, error, extra={"record": record.place})
    dead = codec.dead_letter(record, error, stage=stage, now=now)
    return Letter(topics.dead_letters, dead.value, dead.key, dead.headers)


def stands_by(meters: Meters) -> None:
    """Another planner leads: what was said here of the last plan is said no more."""
    meters.set("sluice_planner_leading", 0.0)
    for name in ("sluice_plan_term", "sluice_plan_number"):
        meters.clear(name, "planner")
    for name in (*_OF_A_PLAN, *_BY_APP):
        meters.clear(name)


def count_plan(meters: Meters, plan: Plan) -> None:
    """A plan was published: what it says."""
    for name in _BY_APP:
        meters.clear(name)
    meters.add("sluice_plans_published")
    meters.set("sluice_plan_term", plan.epoch.term, "planner")
    meters.set("sluice_plan_number", plan.epoch.number, "planner")
    meters.set("sluice_plan_solve_seconds", plan.solve_s)
    meters.set("sluice_plan_objective", plan.objective)
    meters.set("sluice_plan_bound", plan.bound)
    meters.set("sluice_devices_planned", len({p.device for p in plan.placements}))
    for app, share in plan.served.items():
        meters.set("sluice_plan_served", share, app)
    for app, rows in plan.demand.items():
        meters.set("sluice_plan_demand_rows", rows, app)
        meters.set("sluice_predicted_misses", rows * (1.0 - min(1.0, plan.served.get(app, 0.0))), app)
    for placed in plan.placements:
        variants = " ".join(placed.variants)
        meters.set("sluice_plan_share", placed.share, placed.app, placed.device, placed.slice, variants)


class SafeModes:
    """What planners have announced, as the status topic has it: an app is in safe mode while it is for any device.

    Anybody's keys stand on that topic: told are ``apps`` alone, which are served, and no more than ``MOST_READ`` kept.
    """

    def __init__(self, meters: Meters, apps: Iterable[str]) -> None:
        self._meters = meters
        self._subjects = {f"app:{app}" for app in apps}
        self._standing: set[tuple[str, str]] = set()

    def registered(self, apps: Iterable[str]) -> None:
        """These are served from now on."""
        before, self._subjects = self._subjects, {f"app:{app}" for app in apps}
        for subject in before - self._subjects:
            self._meters.clear("sluice_safe_mode", subject, "planner")
        for subject in {subject for subject, _ in self._standing} & self._subjects:
            self._meters.set("sluice_safe_mode", 1.0, subject, "planner")

    def told(self, subject: str, device: str, *, on: bool) -> None:
        """``subject`` is in safe mode for the sake of ``device``, or no more."""
        if not on:
            self._standing.discard((subject, device))
        elif len(self._standing) < MOST_READ:
            self._standing.add((subject, device))
        if subject in self._subjects:
            stands = any(one == subject for one, _ in self._standing)
            self._meters.set("sluice_safe_mode", float(stands), subject, "planner")


@dataclass(slots=True)
class Telemetry:
    """Of one process. Without one, a stage counts for itself alone."""

    meters: Meters = field(default_factory=Meters)
    tracing: Tracing | None = None
    intakes: dict[str, Callable[[], Intake | None]] = field(default_factory=dict)
    _readings: dict[str, list[tuple[str, Reading]]] = field(default_factory=dict, init=False)
    """By the name of the stage that is read."""

    def standing(self, now: float, after: float) -> dict[str, float]:
        """Stages whose reading has stood still for more than ``after`` seconds at ``now`` of the event loop's clock."""
        steps = {name: found.stepped for name, intake in self.intakes.items() if (found := intake()) is not None}
        return {name: now - at for name, at in sorted(steps.items()) if at is not None and now - at > after}

    def of_outbox(self, stage: str, outbox: Outbox) -> None:
        """What the outbox of ``stage`` counts is read when metrics are told."""
        self._read(stage, "sluice_records_sent", lambda: [((stage,), float(outbox.posted))])
        self._read(stage, "sluice_records_resent", lambda: [((stage,), float(outbox.resent))])
        self._read(stage, "sluice_unacknowledged_records", lambda: [((stage,), float(outbox.unacknowledged))])

    def of_intake(self, stage: str, intake: Callable[[], Intake | None]) -> None:
        """What the intake that ``stage`` has just then counts is read when metrics are told."""
        self.intakes[stage] = intake

        def reading(value: Callable[[Intake], float | None]) -> Reading:
            def told() -> list[tuple[Labels, float]]:
                now = intake()
                found = None if now is None else value(now)
                return [] if found is None else [((stage,), float(found))]

            return told

        self._read(stage, "sluice_records_read", reading(lambda now: now.read))
        self._read(stage, "sluice_in_flight_records", reading(lambda now: now.in_flight))
        self._read(stage, "sluice_lag_records", reading(lambda now: now.lag))

    def of_slices(self, stage: str, device: str, slices: Callable[[], Iterable[tuple[str, Slice]]]) -> None:
        """What the slices that a device has just then know of themselves is read when metrics are told."""

        def queued() -> list[tuple[Labels, float]]:
            return [((device, part), float(one.queued)) for part, one in slices()]

        def loaded() -> list[tuple[Labels, float]]:
            return [((device, part, variant), 1.0) for part, one in slices() for variant in one.loaded]

        self._read(stage, "sluice_queue_queries", queued)
        self._read(stage, "sluice_variant_loaded", loaded)

    def over(self, stage: str) -> None:
        """``stage`` has ended, and may come again in this process: nothing is read of it, and nothing kept."""
        for name, reading in self._readings.pop(stage, ()):
            self.meters.read_no_more(name, reading)
        self.intakes.pop(stage, None)

    def _read(self, stage: str, name: str, reading: Reading) -> None:
        self._readings.setdefault(stage, []).append((name, reading))
        self.meters.read(name, reading)
