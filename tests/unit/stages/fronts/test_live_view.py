"""What the page shows, from what was heard: rates, violations, mix, decisions; bounded, whatever comes."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import DemandCounted, DeviceSeen
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, Promise, WeaklyHard
from sluicegate.domain.outcome import Outcome, OutcomeKind, PromiseState
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Query
from sluicegate.stages.fronts.live.live_page import end_of
from sluicegate.stages.fronts.live.live_view import SPAN, End, LiveView
from sluicegate.stages.fronts.live.plan_capacity import PlanCapacity
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate.streams.records.control import Heartbeat, SliceState
from tests.harness import toy_catalogue

NOW = 1000.0


def view() -> LiveView:
    catalogue = toy_catalogue()
    return LiveView(catalogue.apps, {name: v.accuracy for name, v in catalogue.variants.items()})


def end(at: float, kind: str = "answered", **why: Any) -> End:
    given: dict[str, Any] = {
        "query_id": "q", "app": "toy", "kind": kind, "arrival": at - 0.02, "at": at, "late": False, "reason": "",
        "variant": "toy-v2", "device": "d0", "accuracy": 0.9, "best": 0.9, "queue_s": 0.0, "detail": "",
    }  # fmt: skip
    return End(**{**given, **why})


def beat(device: str = "d0", at: float = NOW, **why: Any) -> Heartbeat:
    seen = DeviceSeen(device, "cpu", "i1", 0, 0.0, False, why.pop("leaving", False))
    return Heartbeat(seen=seen, at=at, **why)


def plan(number: int, **why: Any) -> Plan:
    placed = (Placement("d0", "toy", ("toy-v1", "toy-v2"), 1.0, 8),)
    return Plan(epoch=Epoch(1, number), created=NOW, placements=placed, reason=f"reason {number}", **why)


def test_a_worker_that_stands_by_is_not_taken_for_the_one_that_serves() -> None:
    seen = view()
    seen.beat(beat(queued=7, utilisation=0.5))
    seen.beat(beat(queued=0, stands_by=True))
    (device,) = seen.snapshot(NOW)["devices"]
    assert (device["queued"], device["utilisation"]) == (7, 0.5)


def test_the_misses_that_promised_streams_have_left_are_shown_the_least_of_the_last_ten_seconds() -> None:
    promise = Promise(max_consecutive=3, weakly_hard=(WeaklyHard(2, 10),))
    apps = {"toy": App(name="toy", slo=0.1, promise=promise), "plain": App(name="plain", slo=0.1)}
    seen = LiveView(apps, {})
    for at, left in ((NOW - 30, 0), (NOW - 5, 2), (NOW - 4, 1), (NOW - 3, None)):
        seen.ended(end(at, left=left))
    seen.ended(end(NOW - 3, "expired", app="plain"))
    plain, toy = seen.snapshot(NOW)["apps"]
    assert (toy["misses_left"], toy["promised"]) == (1, "at most 2 of 10, 3 in a row")
    assert (plain["misses_left"], plain["promised"]) == (None, "")


def test_what_a_stream_has_left_is_read_from_its_outcomes_and_nonsense_is_none() -> None:
    state = PromiseState(weakly_hard=((2, 10),), queries=20, misses=3, left=((3, 2), (10, 1)))
    query = Query("q", "toy", NOW, NOW + 1.0)

    def read(promise: PromiseState | None) -> End | None:
        outcome = Outcome.of(query, OutcomeKind.EXPIRED, NOW + 1.0, promise=promise)
        return end_of(record(codec.encode_outcome(outcome, ()).value or b""))

    told, untold = read(state), read(None)
    assert told is not None and untold is not None
    assert (told.left, untold.left) == (1, None)
    assert told.story["promise"]["left"] == [[3, 2], [10, 1]]
    for left in ([[3, float("nan")]], [[3]], "none", 7):
        body = orjson.loads(codec.encode_outcome(Outcome.of(query, OutcomeKind.EXPIRED, NOW + 1.0), ()).value or b"")
        body["parameters"]["promise"] = {"left": left}
        assert end_of(record(orjson.dumps(body))) is None


def test_goodput_violations_and_accuracy_are_those_of_the_last_ten_seconds() -> None:
    seen = view()
    for i in range(20):
        seen.ended(end(NOW - 5 + i / 10, accuracy=0.7 if i % 2 else 0.9))
    for _ in range(5):
        seen.ended(end(NOW - 4, "dropped", reason="hopeless"))
    seen.ended(end(NOW - 4, late=True))
    seen.ended(end(NOW - 50))
    app = seen.snapshot(NOW)["apps"][0]
    assert app["goodput"] == pytest.approx(2.0) and app["missed"] == pytest.approx(0.6)
    assert app["violations"] == pytest.approx(6 / 26)
    assert app["accuracy"] == pytest.approx(0.8) and app["of_best"] == pytest.approx(0.8 / 0.9)
    assert app["p50_ms"] == pytest.approx(20.0)


def test_the_series_ends_with_the_last_whole_second() -> None:
    seen = view()
    seen.demanded(DemandCounted("toy", 7, 0.5), NOW - 0.5)
    seen.ended(end(NOW - 0.5))
    seen.ended(end(NOW + 0.1))
    series = seen.snapshot(NOW)["series"]["toy"]
    assert len(series["good_rows"]) == SPAN
    assert series["good_rows"][-1] == 1 and sum(series["good_rows"]) == 1
    assert series["demand"][-1] == 7 and series["accuracy"][:-1] == [None] * (SPAN - 1)


def test_what_is_drawn_over_time_is_in_rows_and_rates_beside_it_in_queries() -> None:
    seen = view()
    seen.demanded(DemandCounted("toy", 9, 0.5), NOW - 0.5)
    for rows in (3, 1):
        seen.ended(end(NOW - 0.5, rows=rows))
    seen.ended(end(NOW - 0.5, "dropped", rows=5))
    shown = seen.snapshot(NOW)
    series, app = shown["series"]["toy"], shown["apps"][0]
    assert [series[name][-1] for name in ("demand", "good_rows", "missed_rows")] == [9, 4, 5]
    assert (app["goodput"], app["missed"]) == (0.2, 0.1)


def test_rows_are_read_from_outcomes_and_one_where_they_do_not_say() -> None:
    outcome = Outcome.of(Query("q", "toy", NOW, NOW + 1.0, rows=7), OutcomeKind.EXPIRED, NOW + 1.0)
    value = codec.encode_outcome(outcome, ()).value or b""
    told, older = end_of(record(value)), end_of(record(value.replace(b',"rows":7', b"")))
    assert told is not None and older is not None
    assert (told.rows, older.rows) == (7, 1)
    assert end_of(record(value.replace(b'"rows":7', b'"rows":"7"'))) is None


def test_a_device_shows_what_it_hosts_and_who_answered() -> None:
    seen = view()
    seen.planned(plan(1))
    seen.beat(beat(queued=3, utilisation=0.5, variants=("toy-v2",)))
    for variant, count in (("toy-v2", 3), ("toy-v1", 1)):
        for _ in range(count):
            seen.ended(end(NOW - 3, variant=variant))
    device = seen.snapshot(NOW)["devices"][0]
    assert (device["name"], device["alive"], device["queued"], device["utilisation"]) == ("d0", True, 3, 0.5)
    assert [(m["variant"], m["share"]) for m in device["mix"]] == [("toy-v2", 0.75), ("toy-v1", 0.25)]
    assert device["hosted"][0]["variants"] == ["toy-v1", "toy-v2"] and device["queue"] == [3]


def test_a_silent_device_is_shown_as_such_and_one_that_left_is_gone() -> None:
    seen = view()
    seen.beat(beat("quiet", NOW - 30))
    seen.beat(beat("left"))
    seen.beat(beat("left", leaving=True))
    devices = seen.snapshot(NOW)["devices"]
    assert [(d["name"], d["alive"]) for d in devices] == [("quiet", False)]
    assert not seen.snapshot(NOW + 500)["devices"]


def test_decisions_are_told_newest_first_and_repetitions_once() -> None:
    seen = view()
    for number in (1, 2, 2, 1):
        seen.planned(plan(number))
    said = Announce("app:toy", "safe_mode", "overload")
    for at, state in ((1.0, "safe_mode"), (2.0, "safe_mode"), (3.0, "promise_kept")):
        seen.said(replace(said, state=state), at)
    shown = seen.snapshot(NOW)
    assert [p["reason"] for p in shown["plans"]] == ["reason 2", "reason 1"]
    assert [(s["at"], s["state"]) for s in shown["said"]] == [(3.0, "promise_kept"), (1.0, "safe_mode")]
    assert shown["apps"][0]["state"] == "promise_kept"


def test_why_queries_missed_is_counted_by_reason() -> None:
    seen = view()
    seen.ended(end(NOW - 2, "rejected", reason="invalid", detail="inputs: none"))
    seen.ended(end(NOW - 2, "rejected", reason="invalid"))
    seen.ended(end(NOW - 1, late=True))
    shown = seen.snapshot(NOW)
    assert shown["why"] == [{"why": "rejected (invalid)", "count": 2}, {"why": "late", "count": 1}]
    assert [m["kind"] for m in shown["misses"]] == ["late", "rejected", "rejected"]


def test_nothing_ends_before_it_arrives_where_a_producers_clock_is_ahead() -> None:
    seen = view()
    for kind in ("answered", "rejected"):
        seen.ended(end(NOW - 1, kind, arrival=NOW - 0.9997))
    shown = seen.snapshot(NOW)
    assert shown["misses"][0]["waited_ms"] == 0.0
    assert shown["apps"][0]["p50_ms"] == 0.0


def test_memory_is_bounded_whatever_comes_and_however_seldom_it_is_looked_at() -> None:
    seen = view()
    for i in range(5000):
        seen.ended(end(float(i), "dropped", query_id="x" * 500))
        seen.planned(plan(i + 1))
        seen.beat(beat(queued=i))
        seen.said(Announce("app:toy", str(i), ""), float(i))
    assert len(seen._seconds) < 2 * SPAN + 10
    assert len(orjson.dumps(seen.snapshot(5000.0))) < 100_000


def test_what_strangers_say_of_devices_and_subjects_that_there_are_not_is_bounded() -> None:
    seen = view()
    for i in range(5000):
        seen.beat(beat(device=f"ghost{i}"))
        seen.said(Announce(f"ghost{i}", "on", "x" * 60_000), float(i))
    seen.said(Announce("host", "starved", "busy"), 5000.0)
    assert len(seen._beats) <= 1000
    assert seen.snapshot(NOW)["host"]["starved"]
    assert sum(len(subject) + len(detail) for subject, detail in seen._details.items()) < 1_100_000
    assert len(seen._states) <= 1000
    assert len(orjson.dumps(seen.snapshot(NOW))) < 1_000_000


def test_of_devices_that_come_and_leave_under_ever_new_names_nothing_stays() -> None:
    seen = view()
    for i in range(100):
        seen.beat(beat(device=f"d{i}", queued=7))
        seen.beat(beat(device=f"d{i}", leaving=True))
    assert not seen._beats and not seen._queues
    seen.beat(beat(device="d0", queued=1))
    assert seen.snapshot(NOW)["devices"][0]["queue"] == [1], "not what it had before it left"


def record(value: bytes) -> Record:
    return Record("sluice.app.toy.results", 0, 0, b"q", value, (), 0.0)


def test_an_outcome_is_read_as_it_was_written() -> None:
    outcome = Outcome(
        query_id="q", app="toy", kind=OutcomeKind.ANSWERED, arrival=1.0, deadline=2.0, at=3.0, variant="v", device="d",
        accuracy=0.5, epoch=(1, 2), batch_size=4, queue_s=0.25,
    )  # fmt: skip
    read = end_of(record(codec.encode_outcome(outcome, ()).value or b""))
    assert read is not None
    assert (read.query_id, read.kind, read.late, read.variant, read.queue_s) == ("q", "answered", True, "v", 0.25)


ODD = [
    *(b"", b"{}", b"[]", b'{"parameters": 1}', b'{"id": "a", "parameters": {"at": "x"}}'),
    *(
        b'{"id": "a", "model_name": "toy", "parameters": {"kind": "failed", "arrival": 1, "late": false, "at": %s}}'
        % at
        for at in (b'"nan"', b'"inf"', b"1e300", b"null")
    ),
]


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b'{"parameters": 1}', b'{"id": "a", "parameters": {"at": "x"}}', *ODD]
)
def test_what_is_no_outcome_is_passed_over(value: bytes) -> None:
    assert end_of(record(value)) is None


def test_capacity_is_that_of_the_plan_in_force_then_and_of_its_slices_with_the_best_alone() -> None:
    catalogue = toy_catalogue()
    capacity = PlanCapacity(catalogue, [Device(name="d0", type="cpu"), Device(name="d1", type="cpu")])
    both = capacity.of(plan(1))["toy"]
    assert both[0] > both[1] > 0.0, "the faster variant is hosted too"
    best = replace(plan(2), placements=(Placement("d1", "toy", ("toy-v2",), 1.0, 8),))
    assert capacity.of(best)["toy"] == (both[1], both[1])
    assert capacity.of(replace(best, placements=(Placement("strange", "toy", ("toy-v2",), 1.0, 8),))) == {}
    seen = LiveView(catalogue.apps, {}, capacity.of)
    seen.planned(replace(plan(1), created=NOW - 50))
    seen.planned(replace(best, created=NOW - 20))
    series = seen.snapshot(NOW)["series"]["toy"]
    assert series["capacity"][SPAN - 60] is None
    assert series["capacity"][SPAN - 30] == pytest.approx(both[0]) and series["best_only"][-1] == pytest.approx(both[1])
    assert series["capacity"][-1] == pytest.approx(both[1])


def test_the_mix_by_second_and_what_a_plan_changed_are_told() -> None:
    seen = view()
    seen.ended(end(NOW - 3))
    seen.ended(end(NOW - 3, variant="toy-v1"))
    seen.ended(end(NOW - 2, variant="toy-v1"))
    seen.planned(plan(1))
    seen.planned(replace(plan(2), placements=(Placement("d0", "toy", ("toy-v1",), 1.0, 8),)))
    shown = seen.snapshot(NOW)
    mix = shown["series"]["toy"]["mix"]
    assert (mix["toy-v1"][-3:], mix["toy-v2"][-3:]) == ([1, 1, 0], [1, 0, 0])
    assert shown["plans"][0]["changes"] == ["toy: toy-v1 instead of toy-v1+toy-v2"]
    assert shown["plans"][1]["changes"] == []
    for number in range(3, 42):
        seen.planned(replace(plan(number), placements=(Placement("d0", "toy", ("toy-v1",), 1.0, 8),)))
    shown = seen.snapshot(NOW)
    assert shown["plans"][-1]["changes"] == ["toy: toy-v1 instead of toy-v1+toy-v2"], (
        "though the one before is forgotten"
    )


def test_what_a_plan_carries_is_reckoned_once_however_often_it_is_looked_at() -> None:
    catalogue = toy_catalogue()
    reckoned: list[Epoch] = []

    def carries(plan: Plan) -> dict[str, tuple[float, float]]:
        reckoned.append(plan.epoch)
        return {"toy": (float(plan.epoch.number), 1.0)}

    seen = LiveView(catalogue.apps, {}, carries)
    for number in (1, 2, 2):
        seen.planned(replace(plan(number), created=NOW - 50 / number))
    for _ in range(3):
        capacity = seen.snapshot(NOW)["series"]["toy"]["capacity"]
    assert [capacity[-60], capacity[-40], capacity[-1]] == [None, 1.0, 2.0]
    assert reckoned == [Epoch(1, 1), Epoch(1, 2)]


def test_each_device_shows_its_own_mix_and_what_it_hosts_though_others_answer_for_the_same_apps() -> None:
    catalogue = toy_catalogue()
    seen = LiveView({**catalogue.apps, "other": App(name="other", slo=0.1)}, {})
    placed = (Placement("d1", "toy", ("toy-v2",), 0.4, 8), Placement("d0", "other", ("o",), 1.0, 4))
    seen.planned(replace(plan(1), placements=placed))
    for device, app, variant, times in (
        ("d0", "toy", "toy-v1", 1),
        ("d1", "toy", "toy-v2", 2),
        ("d0", "other", "o", 3),
    ):
        for i in range(times):
            seen.ended(end(NOW - 1.5 - i, app=app, device=device, variant=variant))
    d0, d1 = seen.snapshot(NOW)["devices"]
    assert [(m["app"], m["variant"], m["share"]) for m in d0["mix"]] == [("other", "o", 0.75), ("toy", "toy-v1", 0.25)]
    assert [(m["app"], m["variant"], m["share"]) for m in d1["mix"]] == [("toy", "toy-v2", 1.0)]
    assert ([h["app"] for h in d0["hosted"]], [h["app"] for h in d1["hosted"]]) == (["other"], ["toy"])
    assert (d0["rate"], d1["rate"]) == (0.4, 0.2)


def test_a_starved_host_late_loops_and_slices_are_shown() -> None:
    seen = view()
    seen.beat(beat(late=0.12, slices=(SliceState("a", 3, 0.02), SliceState("b", 0))))
    assert seen.snapshot(NOW)["host"] == {"starved": False, "detail": "", "late_ms": pytest.approx(120.0)}
    seen.said(Announce("host", "starved", "event loops wake late"), NOW)
    shown = seen.snapshot(NOW)
    assert shown["host"]["starved"] and shown["host"]["detail"] == "event loops wake late"
    assert [(part["name"], part["queued"]) for part in shown["devices"][0]["slices"]] == [("a", 3), ("b", 0)]
    seen.said(Announce("host", "keeps_up", ""), NOW)
    assert not seen.snapshot(NOW)["host"]["starved"]


def test_the_story_of_a_query_that_the_page_names_is_kept() -> None:
    seen = view()
    seen.ended(end(NOW, "expired", query_id="gone", story={"detail": "too late"}))
    seen.ended(end(NOW, query_id="fine", story={"variant": "toy-v2"}))
    assert seen.story("gone", "toy") == {"id": "gone", "app": "toy", "detail": "too late"}
    assert seen.story("fine", "toy") == {"id": "fine", "app": "toy", "variant": "toy-v2"}
    assert seen.story("fine", "other") is None
