"""The same input that ended an executor ends none again: on its device, on its other slices, and behind its routers."""

import pytest

from sluicegate.domain.events import Arrived, DeviceReported, PoisonTold
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.query import Query, QueryKey
from sluicegate.policies.routing.known_poison import REMEMBERED, KnownPoison
from sluicegate.policies.serving.device_actions import Answer, Beat, DeviceAction, End, Say
from sluicegate.policies.serving.device_events import BeatDue, Failure
from sluicegate.policies.serving.router import POISON_S
from tests.simulation.device_world import BIG, SMALL, World
from tests.unit.policies.serving.test_router_core import PROMISE, Router, T, ends, sent
from tests.unit.test_device_core import mended, of, patient


def poisoned(world: World) -> tuple[Query, list[DeviceAction]]:
    """A query that killed, with its batch and then apart; what was said when it was named."""
    first, guilty, innocent = world.query("a"), world.query("a", content="poison"), world.query("a")
    assert first and guilty and innocent
    world.end(BIG.name)
    assert set(world.runs[BIG.name].run.queries) == {guilty, innocent}
    world.die(BIG.name)
    mended(world, BIG.name)
    return guilty, world.die_apart(BIG.name)


def failed(actions: list[DeviceAction]) -> list[Query]:
    ends = [end for end in actions if isinstance(end, End)]
    assert all((e.kind, e.reason) == (OutcomeKind.FAILED, Reason.EXECUTOR_KILLED) for e in ends)
    return [end.query for end in ends]


def test_a_batch_is_ended_once_and_what_is_found_apart_ends_nothing_more() -> None:
    world = patient()
    guilty, said = poisoned(world)
    assert not world.down, "the executor lives"
    (told,) = of(Say, said)
    assert isinstance(told, Say) and told.state == "poisoned" and guilty.id in told.detail
    said = world.end(BIG.name)
    assert failed(said) == [guilty]
    assert len(of(Answer, said)) == 1


def test_the_same_input_again_fails_without_a_run_and_another_is_run() -> None:
    world = patient()
    poisoned(world)
    world.end(BIG.name)
    again = world.query("a", content="poison")
    assert failed(world.said[-1:]) == [again]
    assert BIG.name not in world.runs
    other = world.query("a", content="harmless")
    assert world.runs[BIG.name].run.queries == (other,)


def test_what_waits_or_is_retried_with_the_same_input_goes_with_it() -> None:
    world = patient()
    first = world.query("a")
    twins = [world.query("a", content="poison") for _ in range(2)]
    innocent = world.query("a")
    world.end(BIG.name)
    assert first and set(world.runs[BIG.name].run.queries) == {*twins, innocent}
    waiting, behind = world.query("a", content="poison"), world.query("a")
    world.die(BIG.name)
    mended(world, BIG.name)
    said = world.die_apart(BIG.name)
    assert failed(said) == [waiting], "at once; it need not wait for the batch"
    assert world.runs[BIG.name].run.queries == (innocent,), "its twin is not run alone"
    said = world.end(BIG.name)
    assert failed(said) == twins
    assert behind is not None and world.runs[BIG.name].run.queries == (behind,)


def test_what_is_named_on_one_slice_waits_and_runs_on_no_other() -> None:
    world = patient(("a", "a-large", BIG), ("a", "a-small", SMALL))
    world.query("a", SMALL.name)
    elsewhere = world.query("a", SMALL.name, content="poison")
    _, said = poisoned(world)
    assert failed(said) == [elsewhere]
    last = world.query("a", SMALL.name, content="poison")
    assert failed(world.said[-1:]) == [last]


def test_a_process_that_somebody_else_ended_names_nobody() -> None:
    world = patient()
    world.query("a")
    suspect, innocent = world.query("a", content="x"), world.query("a")
    world.end(BIG.name)
    world.die(BIG.name, Failure.BLAMELESS)
    mended(world, BIG.name)
    world.die_apart(BIG.name, Failure.BLAMELESS)
    assert world.runs[BIG.name].run.queries == (suspect,)
    world.end(BIG.name)
    world.end(BIG.name)
    again = world.query("a", content="x")
    assert innocent and world.runs[BIG.name].run.queries == (again,)


def test_heartbeats_tell_it_until_it_is_forgotten() -> None:
    world = patient()
    (before,) = of(Beat, world.tell(BeatDue()))
    poisoned(world)
    world.end(BIG.name)
    (beat,) = of(Beat, world.tell(BeatDue()))
    assert isinstance(before, Beat) and isinstance(beat, Beat)
    assert (before.poison, beat.poison) == ((), (("a", "poison"),))
    assert world.core.watches
    world.now += REMEMBERED + 1.0
    (beat,) = of(Beat, world.tell(BeatDue()))
    assert isinstance(beat, Beat) and beat.poison == ()
    assert not world.core.watches
    again = world.query("a", content="poison")
    assert world.runs[BIG.name].run.queries == (again,)


def test_the_same_bytes_of_another_app_are_not_refused_and_the_oldest_are_forgotten_first() -> None:
    known = KnownPoison()
    known.watch(0.0)
    asked = [Query(f"q{n}", "a", 0.0, 9.0) for n in range(100)]
    other = Query("other", "b", 0.0, 9.0)
    for query in asked:
        known.told(query.key, query.id)
        known.name(query, 1.0)
    known.told(other.key, asked[-1].id)
    assert known.refuses(asked[-1], 2.0) and not known.refuses(other, 2.0)
    assert not known.refuses(asked[0], 2.0)
    assert len(known.all(2.0)) == 64
    known.told(QueryKey("a", "", "twin"), asked[-1].id)
    assert known.refuses(Query("twin", "a", 0.0, 9.0), 2.0)


@pytest.mark.parametrize(("app", "refused"), [("a", True), ("b", False)])
def test_a_router_ends_what_devices_say_ends_them_and_forgets_it(app: str, refused: bool) -> None:
    router = Router()
    router.planned(T, ("d0", "good", 1.0))
    router.told(PoisonTold(((app, "poison"),)), T)
    assert router.core.refuses is refused
    said = router.told(Arrived(Query("q1", "a", T, T + 9), content="poison"), T + 1)
    assert ends(said) == ([("q1", OutcomeKind.FAILED, Reason.EXECUTOR_KILLED)] if refused else [])
    assert sent(router.told(Arrived(Query("q2", "a", T, T + 9), content="else"), T + 1)) == [("q2", "d0")]
    router.told(DeviceReported("d0", "whole", 0, 0.0), T + POISON_S + 1.0)
    assert not router.core.refuses
    assert sent(router.told(Arrived(Query("q3", "a", T, T + 99), content="poison"), T + 70)) == [("q3", "d0")]


def test_what_promised_streams_hold_goes_on_to_the_worker_that_counts_its_misses() -> None:
    router = Router(PROMISE)
    router.planned(T, ("d0", "good", 1.0))
    router.told(PoisonTold((("a", "poison"),)), T)
    assert sent(router.told(Arrived(Query("q1", "a", T, T + 9), content="poison"), T + 1)) == [("q1", "d0")]
