"""The simulated system as its control plane sees it: what that does to it, and what it hears of it, and when."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import DemandCounted, DeviceReported, InstanceRead, PlanAcknowledged, Registered
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.planner.policy_tables.keys import Shelf
from sluicegate.planner.policy_tables.table_schedule import LoadMissing
from sluicegate.policies.serving.device_actions import Beat
from sluicegate.policies.serving.router import RouterCore
from sluicegate.simulator.arrivals.sampling import Chunk
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.ledger import ConservationError, Observer
from sluicegate.simulator.engine.system_model import RunResult
from sluicegate.simulator.scenario import build, scenario_of

WARM = 4.0
"""The clock begins so long before the first arrival."""
HOP = 0.25


class Noted:
    """A control plane that does what it is told to at a time, and notes what it hears: (seconds, event)."""

    cost: Mapping[Any, float] = MappingProxyType({})
    solve_s: Sequence[float] = (0.5, 0.25)
    epochs = 3
    nondeterministic = 2

    def __init__(self, *does: tuple[float, str, tuple[Any, ...]]) -> None:
        self.does = does
        self.told: list[tuple[float, Any]] = []

    def start(self, plant: Any, now: float) -> None:
        self.plant = plant
        self.began = now
        for at, what, given in self.does:
            plant.timeline.at(at, lambda call, when: getattr(plant, call[0])(*call[1], when), (what, given))

    def heard(self, event: Any, now: float) -> None:
        self.told.append((now, event))

    def of(self, kind: type) -> list[tuple[float, Any]]:
        return [one for one in self.told if isinstance(one[1], kind)]


class Given:
    """Arrivals written down: (seconds, index of the app)."""

    def __init__(
        self, *arrivals: tuple[float, int], apps: tuple[str, ...] = ("a", "b"), duration: float = 10.0
    ) -> None:
        self.arrivals = arrivals
        self.apps = apps
        self.duration = duration

    def chunks(self) -> Iterator[Chunk]:
        times = np.array([at for at, _ in self.arrivals])
        yield times, np.array([index for _, index in self.arrivals], dtype=np.intp)


class Ends:
    """How queries ended, by arrival: (app, what became of it, seconds to its deadline)."""

    def __init__(self) -> None:
        self.by_arrival: dict[float, tuple[str, OutcomeKind, float]] = {}
        self.sequences: list[int] = []

    def add(self, outcome: Outcome) -> None:
        allowed = round(outcome.deadline - outcome.arrival, 9)
        self.by_arrival[outcome.arrival] = (outcome.app, outcome.kind, allowed)
        self.sequences.append(outcome.sequence)


def engine(control: Noted, *observers: Observer, **changes: Any) -> Engine:
    """Two devices of unequal kinds for two apps of unequal latencies."""
    document: dict[str, Any] = {
        "catalogue": {
            "variants": [
                {
                    "name": "v",
                    "app": "a",
                    "accuracy": 0.9,
                    "load_s": 0.5,
                    "latency_ms": {"old": {1: 50}, "new": {1: 20}},
                },
                {
                    "name": "w",
                    "app": "b",
                    "accuracy": 0.6,
                    "load_s": 1.0,
                    "latency_ms": {"old": {1: 30}, "new": {1: 10}},
                },
            ]
        },
        "apps": {"a": {"slo_ms": 100}, "b": {"slo_ms": 400}},
        "devices": [{"type": "old"}, {"type": "new"}],
        "traces": {"qps": [1, 2]},
        "policies": {"batching": "eager"},
        "simulation": {"warm_up_s": WARM, "control_ms": 1e3 * HOP, "drain_s": 3.0},
    }
    system = build(scenario_of({**document, **changes}), lambda: 0.0)
    return Engine(replace(system, make_control=lambda: control), np.random.default_rng(3), observers)


def run(control: Noted, *arrivals: tuple[float, int], **changes: Any) -> RunResult:
    return engine(control, **changes).run(Given(*arrivals))


PLAN = Plan(
    epoch=Epoch(1, 1),
    created=-3.0,
    placements=(Placement("old0", "a", ("v",), 1.0, 1), Placement("new0", "b", ("w",), 1.0, 1)),
    demand={"a": 1.0, "b": 1.0},
    served={"a": 1.0, "b": 1.0},
    incarnations={"old0": "old0.1", "new0": "new0.1"},
)


def test_a_plan_reaches_devices_after_a_hop_and_their_word_comes_back_after_loading_and_another() -> None:
    control = Noted((-3.0, "publish", (PLAN,)))
    result = run(control, (1.0, 0), (2.0, 1), (2.5, 1))
    assert control.began == -WARM
    acknowledged = control.of(PlanAcknowledged)
    assert [(event.device, event.variants, event.failed) for _, event in acknowledged] == [
        ("old0", ("v",), ()),
        ("new0", ("w",), ()),
    ]
    assert [at for at, _ in acknowledged] == pytest.approx([-3.0 + HOP + 0.5 + HOP, -3.0 + HOP + 1.0 + HOP])
    assert (result.summary.queries, result.summary.answered_on_time) == (3, 3)
    assert result.summary.variants_used == {"a": {"v": 1}, "b": {"w": 2}}
    assert result.summary.duration_s == 10.0
    assert (result.epochs, result.solve_s, result.nondeterministic, result.cost) == (3, (0.5, 0.25), 2, {})
    assert result.promises is None


def test_a_worker_that_ends_in_good_order_says_so_at_once_and_one_that_is_gone_says_no_more() -> None:
    control = Noted(
        (1.125, "stop_worker", ("new0",)), (1.25, "stop_worker", ("new0",)), (3.125, "begin_worker", ("new0",))
    )
    run(control)
    beats = [
        (at, beat.seen.incarnation, beat.seen.leaving) for at, beat in control.of(Beat) if beat.seen.device == "new0"
    ]
    assert [one for one in beats if one[2]] == [(1.125, "new0.1", True)]
    assert [at for at, *_ in beats if 1.0 < at < 3.5] == [1.125]
    assert (3.5, "new0.2", False) in beats
    assert all(event is not None for _, event in control.told)


def test_a_worker_that_ends_without_a_word_is_not_heard_of_again() -> None:
    control = Noted((1.125, "end_worker", ("old0",)))
    run(control)
    assert max(at for at, beat in control.of(Beat) if beat.seen.device == "old0") == 1.0
    assert max(at for at, beat in control.of(Beat) if beat.seen.device == "new0") == 10.0


def test_what_comes_for_a_dead_device_lies_on_its_work_topic_until_it_is_taken() -> None:
    control = Noted((-3.0, "publish", (PLAN,)), (1.125, "end_worker", ("new0",)))
    simulated = engine(control)
    source = Given((1.0, 1), (2.0, 1), (3.0, 1))
    taken: list[tuple[int, list[float]]] = []

    def take(_: object, now: float) -> None:
        start, queries = simulated.left("new0")
        taken.append((start, [query.arrival for query in queries]))
        for query in queries:
            simulated.ledger.ended(query, "expired", now)  # type: ignore[arg-type]

    for at in (2.5, 3.5, 3.75):
        simulated.timeline.at(at, take)
    simulated.run(source)
    # The first was answered: offset 0. Each of the others is taken once.
    assert taken == [(1, [2.0]), (2, [3.0]), (3, [])]
    assert simulated.work_topics == ("old0", "new0")


def test_records_of_instances_stand_at_once_and_are_read_after_a_hop_until_they_end() -> None:
    standing = Instance(app="a", variant="v", device="old0", qps=3.0)
    other = Instance(app="b", variant="w", device="new0", qps=5.0)
    control = Noted(
        (1.0, "record", (standing.key, standing)),
        (2.0, "record", (other.key, other)),
        (3.0, "record", (standing.key, None)),
    )
    simulated = engine(control)
    seen: list[tuple[tuple[Instance, ...], list[str]]] = []
    for at in (2.5, 3.5):
        simulated.timeline.at(
            at, lambda _, now: seen.append((simulated.instances_of("old0"), sorted(simulated.instances)))
        )
    simulated.run(Given())
    assert seen == [((standing,), [standing.key, other.key]), ((), [other.key])]
    assert control.of(InstanceRead) == [
        (1.0 + HOP, InstanceRead(standing.key, standing)),
        (2.0 + HOP, InstanceRead(other.key, other)),
        (3.0 + HOP, InstanceRead(standing.key, None)),
    ]


def test_planners_hear_of_a_load_without_a_table_after_a_hop_and_of_other_words_nothing() -> None:
    data: dict[str, float | str] = {"worker_class": "new", "slo": 0.4, "qps": 30.0}
    said = Announce("tables:b", "table_missing", "", data)
    control = Noted(
        (1.0, "announced", ("new0", said)),
        (2.0, "announced", ("new0", Announce("app:b", "safe_mode", ""))),
    )
    run(control)
    assert [(at, event.shelf, event.qps) for at, event in control.of(LoadMissing)] == [
        (1.0 + HOP, Shelf("b", "new", 0.4), 30.0)
    ]


def test_demand_is_counted_by_app_twice_a_second_from_the_start_however_rarely_devices_beat() -> None:
    control = Noted()
    run(control, (0.625, 0), (0.75, 1), (0.875, 1), (1.25, 0), simulation={"warm_up_s": WARM, "heartbeat_s": 2.0})
    counted = {(at, event.app): (event.count, event.window) for at, event in control.of(DemandCounted) if event.count}
    assert counted == {(1.0, "a"): (1, 0.5), (1.0, "b"): (2, 0.5), (1.5, "a"): (1, 0.5)}
    assert sorted({at for at, _ in control.of(Beat)}) == [-4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_queries_are_let_in_while_routers_live_however_rarely_devices_beat() -> None:
    ends = Ends()
    source = Given((45.0, 0), (59.0, 1), duration=60.0)
    engine(Noted(PUBLISHED), ends, simulation={"warm_up_s": WARM, "heartbeat_s": 70.0}).run(source)
    assert {kind for _, kind, _ in ends.by_arrival.values()} == {IN_TIME}


def test_arrivals_of_other_apps_or_in_another_order_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="arrivals are of b, a; the system serves a, b"):
        engine(Noted()).run(Given(apps=("b", "a")))


def test_an_arrival_without_an_app_is_an_error_and_not_lost() -> None:
    source = Given((1.0, 0), (2.0, 1))
    source.chunks = lambda: iter([(np.array([1.0, 2.0]), np.array([0], dtype=np.intp))])  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="shorter"):
        engine(Noted()).run(source)


def test_a_run_that_does_not_end_in_time_says_how_many_are_open() -> None:
    slow = {"warm_up_s": WARM, "drain_s": 0.25, "to_router_ms": 6000.0}
    with pytest.raises(ConservationError, match=r"2 queries are still open 0.25 s after the last arrival"):
        engine(Noted(), simulation=slow).run(Given((9.75, 0), (9.875, 1), duration=9.875))


IN_TIME = OutcomeKind.ANSWERED
PUBLISHED = (-3.0, "publish", (PLAN,))


def test_queries_of_an_app_are_numbered_from_the_first_and_what_was_promised_is_counted_of_them() -> None:
    """Of "a" nobody serves any: each third in a row breaks its promise. "b" is promised nothing."""
    ends = Ends()
    promised = {"a": {"slo_ms": 100, "promise": {"max_consecutive": 2}}, "b": {"slo_ms": 400}}
    arrivals = Given((1.0, 0), (2.0, 1), (3.0, 0), (4.0, 0), (5.0, 0))
    result = engine(Noted(), ends, apps=promised).run(arrivals)
    assert ends.sequences == [0, 0, 1, 2, 3]
    found = result.promises
    assert found is not None
    assert (found.queries, found.rejected, found.misses, found.broken_windows) == (4, 0, 4, 2)


def test_what_queries_ask_of_their_own_is_theirs_alone() -> None:
    ends = Ends()
    asked = {"a": {"slo_ms": 100, "queries": [{"share": 1.0, "latency_ms": 250}]}, "b": {"slo_ms": 400}}
    engine(Noted(PUBLISHED), ends, apps=asked).run(Given((1.0, 0), (2.0, 1)))
    assert ends.by_arrival == {1.0: ("a", IN_TIME, 0.25), 2.0: ("b", IN_TIME, 0.4)}


def test_a_device_that_fails_says_nothing_until_its_worker_returns() -> None:
    control = Noted()
    failures = [
        {"device": "new*", "at_s": 2.25, "until_s": 4.125},
        {"device": "*w0", "at_s": 2.5, "until_s": 3.0},  # ends while the other lasts
        {"device": "old*", "at_s": 7.125},
    ]
    run(control, simulation={"warm_up_s": WARM, "failures": failures})
    beats = {device: [at for at, b in control.of(Beat) if b.seen.device == device] for device in ("old0", "new0")}
    every = [n / 2 for n in range(-8, 21)]
    assert beats["old0"] == [at for at in every if at < 7.125]
    assert beats["new0"] == [at for at in every if not 2.25 <= at < 4.125]


def test_a_batch_fails_with_the_process_behind_its_executor_and_others_go_on() -> None:
    """Both begin at 1.0: 50 ms on "old0", whose executor dies 20 ms later, and 10 ms on "new0"."""
    ends = Ends()
    simulation = {
        "warm_up_s": WARM,
        "executor_failures": [{"device": "old0", "at_s": 1.02}],
        "executor_start_s": 0.5,
    }
    engine(Noted(PUBLISHED), ends, simulation=simulation).run(Given((1.0, 0), (1.0, 1), (3.0, 0)))
    assert ends.by_arrival[3.0] == ("a", IN_TIME, 0.1)
    apart = Ends()
    engine(Noted(PUBLISHED), apart, simulation=simulation).run(Given((1.0, 0), (1.005, 1)))
    (app, kind, _), other = apart.by_arrival[1.0], apart.by_arrival[1.005]
    assert (app, kind is IN_TIME, other) == ("a", False, ("b", IN_TIME, 0.4))


def test_hops_to_the_router_and_on_to_the_device_are_on_top_of_what_a_batch_takes() -> None:
    """50 ms of 100 for "a" on "old0": in time with hops of 49 ms in all, late with 51."""
    for to_router, to_device, kind in ((20.0, 29.0, True), (20.0, 31.0, False), (31.0, 20.0, False)):
        hops = {"warm_up_s": WARM, "to_router_ms": to_router, "to_device_ms": to_device}
        result = run(Noted(PUBLISHED), (1.0, 0), simulation=hops)
        assert result.summary.answered_on_time == int(kind)


def test_an_app_is_refused_as_not_known_until_it_is_registered_and_its_terms_count_from_then_on() -> None:
    """Registered at 3, which is known a hop later, and with another SLO from 5 on."""
    ends = Ends()
    changes = [{"at_s": 3.0, "app": "b", "slo_ms": 300}, {"at_s": 5.0, "app": "b", "slo_ms": 200}]
    control = Noted((3.5, "publish", (PLAN,)))
    simulated = engine(
        control, ends, apps={"a": {"slo_ms": 100}, "b": {"slo_ms": 400, "at_start": False}}, registrations=changes
    )
    simulated.run(Given((1.0, 1), (3.125, 1), (4.875, 1), (5.125, 1), (6.0, 1)))
    refused = OutcomeKind.REJECTED
    assert ends.by_arrival == {
        1.0: ("b", refused, 0.0),
        3.125: ("b", refused, 0.0),
        4.875: ("b", IN_TIME, 0.3),
        5.125: ("b", IN_TIME, 0.3),
        6.0: ("b", IN_TIME, 0.2),
    }
    assert [at for at, _ in control.of(Registered)] == [3.25, 5.25]
    assert {at for at, event in control.of(DemandCounted) if event.app == "b"} >= {3.5, 4.0}


def test_all_routers_hear_of_each_slice_how_busy_it_is_at_each_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two batches of "a" are with "old0" from 0.98 on: at 1.0 the first has 30 ms to go, and the other waits.

    Routers may still follow an older plan than the newest: who hosts what is theirs to know.
    """
    heard: list[tuple[float, str, DeviceReported]] = []
    handle = RouterCore.handle

    def noted(core: RouterCore, event: Any, now: float) -> Any:
        if isinstance(event, DeviceReported):
            heard.append((now, core.app.name, event))
        return handle(core, event, now)

    monkeypatch.setattr(RouterCore, "handle", noted)
    run(Noted(PUBLISHED), (0.98, 0), (0.98, 0))
    every = {(at, app, device) for at in np.arange(-WARM, 10.25, 0.5) for app in "ab" for device in ("old0", "new0")}
    assert {(at, app, event.device) for at, app, event in heard} == every and len(heard) == len(every)
    busy = [(app, round(e.busy_for, 9), e.queued) for at, app, e in heard if (at, e.device) == (1.0, "old0")]
    assert busy == [("a", 0.03, 1), ("b", 0.03, 1)]
    assert {(e.busy_for, e.queued) for at, _, e in heard if (at, e.device) != (1.0, "old0")} == {(0.0, 0)}
