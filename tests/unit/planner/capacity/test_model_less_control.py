"""Model-less scaling of a running system: two kinds of hardware with spare workers, one who leads and one beside."""

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import InstanceRead, Ticked
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.fleet.instance import Instance, InstanceState
from sluicegate.planner.capacity.cores import model_less_core
from sluicegate.planner.capacity.events import (
    CapacityAction,
    EndInstance,
    Leading,
    Start,
    Stop,
    Told,
    VariantWanted,
    Wishes,
    WorkerReported,
)
from sluicegate.planner.capacity.model_less_control import InstancesSeen, LiveScaling, ModelLessScaling
from sluicegate.planner.capacity.worker_count import WorkerBeat, WorkerLeft
from sluicegate.policies.model_less.instance_states import InstanceIndex

NOW = 1.7e9
SPARE = {"cpu7": "cpu", "gpu8": "gpu", "gpu9": "gpu"}
ACTIVE, INTERFERED = InstanceState.ACTIVE, InstanceState.INTERFERED


def scaling() -> LiveScaling:
    return LiveScaling(SPARE, timeout=2.0, hold=20.0, keep=30.0, idle=60.0, settle=5.0)


def beat(worker: str, used: float = 0.1, *variants: str) -> WorkerBeat:
    return WorkerBeat(worker, worker[:3], used, dict.fromkeys(variants, ACTIVE))


def instance(
    device: str, state: InstanceState = ACTIVE, *, variant: str = "v", expires: float = NOW + 9.0, slowdown: float = 0.0
) -> Instance:
    return Instance(app="a", variant=variant, device=device, state=state, expires=expires, slowdown=slowdown)


def seen(*instances: Instance, **recorded: tuple[str, ...]) -> InstancesSeen:
    return InstancesSeen(instances, recorded)


def test_a_device_with_an_interfered_instance_is_avoided_for_a_while_from_when_it_was_last_seen_so() -> None:
    rule = scaling()
    bad = instance("gpu0", INTERFERED, slowdown=1.625)
    (said,) = rule.handle(seen(instance("cpu0"), bad), NOW)
    detail = "v takes 1.62 times its profile on gpu0; it is moved where that can be"
    assert said == Announce("instance:a|v|gpu0|whole", "interfered", detail)
    assert rule.handle(seen(bad), NOW + 10.0) == [], "said once"
    assert rule.wishes(NOW + 29.9) == Wishes(("gpu0",), (), {})
    assert rule.wishes(NOW + 30.0).avoided == ()
    assert len(rule.handle(seen(bad), NOW + 30.0)) == 1, "said anew"


def test_a_variant_is_wanted_for_a_while_from_when_it_was_last_asked_for() -> None:
    rule = scaling()
    rule.handle(VariantWanted("w"), NOW)
    rule.handle(VariantWanted("v"), NOW + 5.0)
    rule.handle(VariantWanted("w"), NOW + 10.0)
    assert rule.wishes(NOW + 34.0).wanted == ("v", "w")
    assert rule.wishes(NOW + 35.0).wanted == ("w",)
    assert rule.wishes(NOW + 40.0).wanted == ()


def test_where_a_hardware_is_used_up_a_spare_of_it_is_started_in_their_order_until_none_is_left() -> None:
    rule = scaling()
    found = []
    for at, there in ((NOW, ()), (NOW + 31.0, ("gpu8",)), (NOW + 62.0, ("gpu8", "gpu9"))):
        rule.handle(beat("cpu0"), at)
        for device in ("gpu0", *there):
            rule.handle(beat(device, 0.9, "v"), at)
        found.append(rule.handle(Ticked(), at))
    why = "one more worker of gpu (used)"
    assert found == [
        [Start("gpu8"), Announce("workers:gpu", "started", f"{why}: gpu8")],
        [Start("gpu9"), Announce("workers:gpu", "started", f"{why}: gpu9")],
        [Announce("workers:gpu", "none_left", f"{why}; no spare is left")],
    ]


def test_a_hardware_that_no_spare_is_left_of_holds_up_none_of_the_others() -> None:
    rule = LiveScaling({"gpu8": "gpu"}, timeout=2.0)
    found = []
    for second in range(70):
        for worker, used in (("cpu0", 0.9), ("gpu0", 0.1 if second < 10 else 0.99)):
            rule.handle(beat(worker, used, "v"), NOW + second)
        if second > 14:
            rule.handle(beat("gpu8", 0.99, "v"), NOW + second)
        found += [(second, action) for action in rule.handle(Ticked(), NOW + second)]
    left = Announce("workers:cpu", "none_left", "one more worker of cpu (used); no spare is left")
    started = Announce("workers:gpu", "started", "one more worker of gpu (used): gpu8")
    assert found == [(0, left), (10, Start("gpu8")), (10, started), (40, left)]


def test_a_dead_worker_is_replaced_by_itself_where_it_is_a_spare_and_gets_what_was_recorded_of_it() -> None:
    rule = scaling()
    rule.handle(beat("gpu9", 0.1, "u", "v"), NOW)
    rule.handle(beat("gpu0", 0.1, "w"), NOW + 2.0)
    rule.handle(seen(gpu9=("v", "x")), NOW + 2.0)
    assert rule.handle(Ticked(), NOW + 2.0) == []
    told = "gpu9 is dead; another is to hold v, x: gpu9"
    assert rule.handle(Ticked(), NOW + 2.1) == [Start("gpu9"), Announce("workers:gpu", "started", told)]
    assert rule.wishes(NOW + 2.1).restored == {"gpu9": ("v", "x")}
    rule.handle(beat("gpu9"), NOW + 3.0)
    assert rule.wishes(NOW + 3.0).restored == {"gpu9": ("v", "x")}, "it holds nothing yet"
    rule.handle(beat("gpu9", 0.1, "v"), NOW + 4.0)
    assert rule.wishes(NOW + 4.0).restored == {}


def test_one_that_is_no_spare_is_replaced_by_the_first_spare_of_its_hardware_with_what_it_told_itself() -> None:
    rule = scaling()
    rule.handle(beat("gpu0", 0.1, "w", "v"), NOW)
    told = "gpu0 is dead; another is to hold v, w: gpu8"
    assert rule.handle(Ticked(), NOW + 2.1) == [Start("gpu8"), Announce("workers:gpu", "started", told)]
    rule.handle(WorkerLeft("gpu8"), NOW + 3.0)
    assert rule.wishes(NOW + 3.0).restored == {}
    rule.handle(beat("cpu0"), NOW + 3.0)
    told = "cpu0 is dead; another is to hold nothing: cpu7"
    assert rule.handle(Ticked(), NOW + 5.1) == [Start("cpu7"), Announce("workers:cpu", "started", told)]
    assert rule.wishes(NOW + 5.1).restored == {}
    rule.handle(beat("cpu1"), NOW + 6.0)
    (said,) = rule.handle(Ticked(), NOW + 8.1)
    assert said == Announce("workers:cpu", "none_left", "cpu1 is dead; another is to hold nothing; no spare is left")


def test_a_spare_that_holds_nothing_for_long_ends_and_is_a_spare_again_a_while_later() -> None:
    rule = scaling()
    for second in range(61):
        for device in ("cpu0", "gpu8", "gpu9"):
            rule.handle(beat(device, 0.1, *(("v",) if device == "gpu9" and second < 30 else ())), NOW + second)
        assert rule.handle(Ticked(), NOW + second) == []
    rule.handle(beat("gpu8"), NOW + 60.5)
    rule.handle(beat("gpu9"), NOW + 60.5)
    rule.handle(beat("cpu0"), NOW + 60.5)
    assert rule.handle(Ticked(), NOW + 60.5) == [Stop("gpu8")], "who held something until then stays"
    rule.handle(beat("gpu0", 0.9, "v"), NOW + 62.5)
    rule.handle(beat("gpu9", 0.9), NOW + 62.5)
    rule.handle(beat("cpu0"), NOW + 62.5)
    (said,) = rule.handle(Ticked(), NOW + 62.5)
    assert isinstance(said, Announce) and said.state == "none_left", "it is ending"
    rule = scaling()
    rule.handle(beat("gpu8"), NOW)
    assert rule.handle(Ticked(), NOW + 1.0) == []
    rule.handle(beat("gpu8"), NOW + 60.0)
    assert rule.handle(Ticked(), NOW + 61.0) == [Stop("gpu8")]
    rule.handle(beat("gpu9"), NOW + 66.0)
    rule.handle(beat("gpu0", 0.9, "v"), NOW + 66.0)
    rule.handle(WorkerLeft("gpu9"), NOW + 66.0)
    assert Start("gpu8") in rule.handle(Ticked(), NOW + 66.0)


def core(lead: bool) -> tuple[ModelLessScaling, InstanceIndex]:
    index = InstanceIndex()
    rule = ModelLessScaling(scaling(), index, lease=4.0)
    if lead:
        assert rule.handle(Leading(True), NOW) == []
    return rule, index


def reported(device: str, used: float, *, leaving: bool = False) -> WorkerReported:
    return WorkerReported(device, device[:3], used, 0, leaving=leaving)


def told(actions: list[CapacityAction]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Told)]


def test_who_leads_starts_ends_and_says_and_who_stands_by_only_knows() -> None:
    (leader, leaders), (other, others) = core(True), core(False)
    bad = instance("gpu0", INTERFERED, slowdown=2.0)
    for rule in (leader, other):
        rule.handle(InstanceRead(bad.key, bad), NOW)
        rule.handle(VariantWanted("w"), NOW)
        rule.handle(reported("gpu0", 0.95), NOW)
    does, knows = leader.handle(Ticked(), NOW), other.handle(Ticked(), NOW)
    assert knows == [Wishes(("gpu0",), ("w",), {})]
    assert [type(action) for action in does] == [Told, Announce, Told, Start, Told, Announce, Wishes]
    assert does[-1] == knows[-1]
    assert "starts the worker of gpu8" in told(does)
    assert any(text.startswith("interfered: v takes 2.00 times") for text in told(does))
    assert leader.handle(Leading(False), NOW + 1.0) == []
    assert leader.handle(Ticked(), NOW + 40.0) == [Wishes((), (), {})]
    for index in (leaders, others):
        assert [i.key for i in index.on("gpu0")] == [bad.key]


def test_who_takes_over_replaces_what_died_with_its_leader_and_nothing_that_was_long_dead() -> None:
    rule = scaling()
    for worker in ("cpu0", "cpu1", "gpu0", "gpu8"):
        rule.listen(beat(worker, 0.1, "v"), NOW)
    for worker in ("cpu0", "cpu1"):
        rule.listen(beat(worker, 0.1, "w"), NOW + 30.0)
    rule.listen(Ticked(), NOW + 32.5)
    rule.listen(beat("cpu1"), NOW + 34.0)
    told = "cpu0 is dead; another is to hold w: cpu7"
    assert rule.handle(Ticked(), NOW + 35.0) == [Start("cpu7"), Announce("workers:cpu", "started", told)]
    rule.handle(beat("gpu1"), NOW + 35.0)
    told = "gpu1 is dead; another is to hold nothing: gpu8"
    rule.handle(beat("cpu1"), NOW + 37.0)
    assert rule.handle(Ticked(), NOW + 37.5) == [Start("gpu8"), Announce("workers:gpu", "started", told)], "a spare"


def test_records_of_the_dead_are_ended_by_the_leader_once_they_expired_a_lease_ago() -> None:
    (leader, leaders), (other, others) = core(True), core(False)
    old, young = instance("gpu0", expires=NOW), instance("cpu0", expires=NOW + 1.0)
    for rule in (leader, other):
        for one in (old, young):
            rule.handle(InstanceRead(one.key, one), NOW)
        assert not any(isinstance(a, EndInstance) for a in rule.handle(Ticked(), NOW + 4.0))
    assert EndInstance(old.key) in leader.handle(Ticked(), NOW + 4.5)
    assert not any(isinstance(a, EndInstance) for a in other.handle(Ticked(), NOW + 4.5))
    assert (len(leaders.on("gpu0")), len(leaders.on("cpu0")), len(others.on("gpu0"))) == (0, 1, 1)
    leader.handle(InstanceRead(young.key, None), NOW + 4.6)
    assert not leaders.on("cpu0")


def ticked(rule: ModelLessScaling, at: float, *used: float) -> list[str]:
    """What is told of a tick after heartbeats of a gpu that was used so much."""
    for one in used:
        rule.handle(reported("gpu0", one), at)
    return told(rule.handle(Ticked(), at))


def test_use_is_smoothed_over_heartbeats_and_begins_with_the_first() -> None:
    """0.5, then 1 counts as 0.65, 0.755 and 0.8285."""
    more = ["starts the worker of gpu8", "started: one more worker of gpu (used): gpu8"]
    rule, _ = core(True)
    rule.handle(reported("cpu0", 0.1), NOW)
    assert ticked(rule, NOW, 0.5, 1.0, 1.0) == []
    rule.handle(reported("cpu0", 0.1), NOW + 2.0)
    assert ticked(rule, NOW + 2.0, 1.0) == more
    fresh, _ = core(True)
    assert ticked(fresh, NOW, 0.81) == more
    left, _ = core(True)
    assert ticked(left, NOW, 0.1) == []
    left.handle(reported("gpu0", 0.0, leaving=True), NOW + 2.0)
    assert ticked(left, NOW + 3.0) == [], "nobody replaces who left"
    assert ticked(left, NOW + 9.0, 0.9) == more, "one that comes back begins anew"


def test_a_spare_that_is_no_device_is_refused_by_name() -> None:
    devices = [Device(name="d0", type="cpu"), Device(name="d1", type="gpu")]
    with pytest.raises(ConfigurationError, match=r"planner\.spare: 'd2' is not among the devices"):
        model_less_core(["d1", "d2"], devices, InstanceIndex(), timeout=2.0, lease=4.0)
    rule = model_less_core(["d1"], devices, InstanceIndex(), timeout=3.0, lease=4.0)
    rule.handle(Leading(True), NOW)
    rule.handle(WorkerReported("d1", "gpu", 0.1, 0), NOW)
    assert not any(isinstance(a, Start) for a in rule.handle(Ticked(), NOW + 3.0))
    assert Start("d1") in rule.handle(Ticked(), NOW + 3.1)


def test_wishes_last_for_half_a_minute_and_an_idle_spare_for_one_as_it_is_set() -> None:
    devices = [Device(name="d0", type="cpu"), Device(name="d1", type="gpu")]
    rule = model_less_core(["d1"], devices, InstanceIndex(), timeout=200.0, lease=4.0)
    rule.handle(Leading(True), NOW)
    bad = instance("d0", INTERFERED, expires=NOW + 0.5)
    for event in (VariantWanted("w"), InstanceRead(bad.key, bad), WorkerReported("d1", "gpu", 0.1, 0), Ticked()):
        rule.handle(event, NOW)

    def wishes(after: float) -> list[Wishes]:
        return [a for a in rule.handle(Ticked(), NOW + after) if isinstance(a, Wishes)]

    assert wishes(29.9) == [Wishes(("d0",), ("w",), {})]
    assert wishes(30.0) == [Wishes((), (), {})]
    assert Stop("d1") not in rule.handle(Ticked(), NOW + 60.0)
    assert Stop("d1") in rule.handle(Ticked(), NOW + 60.1)
