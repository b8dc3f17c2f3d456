"""A device's core: each rule of ``sluicegate.policies.serving`` that has a name, on two slices that are not alike."""

from dataclasses import replace

import pytest

from sluicegate.domain.actions import Acknowledge, Announce
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import EndsCounted
from sluicegate.domain.outcome import OutcomeKind, PromiseState, Reason
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Query
from sluicegate.policies.placement.interference import InterferenceChanged
from sluicegate.policies.placement.repartition import Cut
from sluicegate.policies.serving.device_actions import (
    Abandon,
    Answer,
    Beat,
    CatchUp,
    DeviceAction,
    End,
    LoadVariant,
    Read,
    Repeated,
    RunBatch,
    Say,
    Seek,
    SendBack,
    UnloadVariant,
)
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BeatDue,
    CaughtUp,
    ExecutorEnded,
    Failure,
    Fenced,
    Joined,
    Leaving,
    Loaded,
    QueryCame,
    ReadingBegins,
    Reloaded,
    Suspended,
    Woken,
)
from sluicegate.policies.serving.kept_executor import KILLS, KILLS_WITHIN
from sluicegate.profiles.catalogue.catalogue import Catalogue, KnownCatalogue
from tests.simulation.device_world import BIG, SMALL, START, WHOLE, World, world_catalogue


def serving(*placed: tuple[str, str, object], **options: object) -> World:
    """With everything loaded."""
    world = World(**options)  # type: ignore[arg-type]
    world.plan(placed or (("a", "a-large", BIG), ("b", "b-only", SMALL)))  # type: ignore[arg-type]
    while world.loads():
        world.load(world.loads()[0])
    return world


def of(kind: type, actions: list[DeviceAction]) -> list[DeviceAction]:
    return [action for action in actions if isinstance(action, kind)]


def test_it_reads_only_once_a_plan_names_its_start_and_from_the_plans_fence() -> None:
    world = World()
    assert world.plan((("a", "a-large", BIG),), incarnations={"gpu0": "gpu0.9"}) == []
    with pytest.raises(IllegalEventError, match="no plan counts on this worker"):
        world.tell(QueryCame(Query("q", "a", START, START + 1.0), slice=BIG.name))
    actions = world.plan((("a", "a-large", BIG),), fences={"gpu0": 7, "gpu1": 9})
    assert [type(a) for a in actions] == [Read, LoadVariant, LoadVariant][:2]
    assert world.tell(ReadingBegins(3, 20, swept=9)) == [Seek(7)]
    assert world.tell(ReadingBegins(8, 20, swept=9)) == []
    for end, swept in ((6, 9), (20, 6), (20, 0)):  # a fence beyond the end, or beyond what was moved
        (said,) = world.tell(ReadingBegins(3, end, swept))
        assert isinstance(said, Say) and said.state == "fence_refused"


def test_it_acknowledges_an_epoch_once_when_both_slices_have_staged_it() -> None:
    world = World()
    world.plan((("a", "a-large", BIG), ("b", "b-only", SMALL)))
    world.load(SMALL.name)
    assert not of(Acknowledge, world.said)
    world.load(BIG.name, ok=False)
    assert of(Acknowledge, world.said) == [Acknowledge(Epoch(1, 1), ("b-only",), ("a-large",))]


def test_a_query_goes_to_the_slice_named_or_one_that_serves_it_or_back() -> None:
    world = serving(("a", "a-large", BIG))
    named = world.query("a", BIG.name)
    assert world.runs[BIG.name].run.queries == (named,)
    gone = world.query("b", "7g.0")
    assert gone is not None and world.ends[gone] == 1 and world.said[-1] == SendBack(gone)
    late = world.query("b", SMALL.name, late=True)
    assert late is not None and not of(SendBack, [world.said[-1]])
    elsewhere = world.query("a", "7g.0")
    world.end(BIG.name)
    assert elsewhere in world.runs[BIG.name].run.queries


def test_a_query_whose_input_cannot_be_had_fails_alone_and_is_a_miss() -> None:
    world = serving()
    running = world.query("a")
    flawed = world.query("a", flaw="s3://b/x is not there")
    waiting = world.query("a")
    assert running and flawed and waiting
    (end,) = [end for end in of(End, world.said) if isinstance(end, End) and end.query == flawed]
    assert (end.kind, end.reason, end.detail) == (
        OutcomeKind.FAILED, Reason.OBJECT_UNREADABLE, "s3://b/x is not there"
    )  # fmt: skip
    assert world.runs[BIG.name].run.queries == (running,)
    world.end(BIG.name)
    assert world.runs[BIG.name].run.queries == (waiting,)
    elsewhere = world.query("b", "7g.0", flaw="x")
    (other,) = [end for end in of(End, world.said) if isinstance(end, End) and end.query == elsewhere]
    assert (other.part, other.reason) == (SMALL.name, Reason.OBJECT_UNREADABLE)


@pytest.mark.parametrize("hosted", [True, False])
def test_a_promise_that_refused_queries_break_is_announced_before(hosted: bool) -> None:
    world = serving() if hosted else World()
    if not hosted:
        world.plan((("b", "b-only", SMALL),))
    for _ in range(5 if hosted else 0):  # of what came before nothing is known at first
        world.query("b", SMALL.name)
        world.end(SMALL.name)
    heard = len(world.said)
    for _ in range(2):
        world.query("b", SMALL.name, flaw="its object cannot be read")
    told = [a.state for a in world.said[heard:] if isinstance(a, Announce)]
    assert told == ([] if hosted else ["safe_mode"])
    heard = len(world.said)
    world.query("b", SMALL.name, flaw="its object cannot be read")
    last = [a for a in world.said[heard:] if isinstance(a, Announce | End)]
    assert [type(a) for a in last] == ([Announce, End] if hosted else [End])
    end = last[-1]
    assert isinstance(end, End) and end.kind is OutcomeKind.FAILED
    assert end.promise is None or (end.promise.mcd, end.promise.safe_mode) == (3, True)


def test_a_batch_that_fails_is_run_again_query_by_query_and_ends_as_one() -> None:
    world = serving()
    first = world.query("a")
    second, third = world.query("a"), world.query("a")
    assert first and second and third
    world.end(BIG.name)
    started = world.now
    assert set(world.runs[BIG.name].run.queries) == {second, third}
    (again,) = of(RunBatch, world.end(BIG.name, fails=True))
    assert isinstance(again, RunBatch) and again.again and again.run.queries == (second,) and again.run.rows == 1
    world.end(BIG.name, fails=True)
    assert not world.ends[second]
    ended = world.end(BIG.name, 0.03)
    (failed,) = of(End, ended)
    (answer,) = of(Answer, ended)
    assert isinstance(failed, End) and isinstance(answer, Answer)
    assert (failed.query, failed.kind, failed.reason) == (second, OutcomeKind.FAILED, Reason.MODEL_ERROR)
    assert (failed.started, failed.detail) == (started, "it broke")
    assert (answer.queries, answer.run.rows, answer.execution_s) == ((third,), 2, 0.03)
    assert failed.at < answer.at


def beats(world: World, after: float = 0.5) -> Beat:
    world.now += after
    (beat,) = of(Beat, world.tell(BeatDue()))
    assert isinstance(beat, Beat)
    return beat


def test_a_batch_that_is_overdue_at_two_heartbeats_is_told_and_what_waits_behind_it_goes_back_once() -> None:
    world = serving(("a", "a-large", BIG))
    running, waiting = world.query("a"), world.query("a")
    assert running and waiting and world.runs[BIG.name].run.queries == (running,)
    beats(world, 0.1)
    assert beats(world).slices[0].overdue == 0.0, "by one alone this process may be the late one"
    told = beats(world)
    assert told.slices[0].age == pytest.approx(1.1)
    assert 0.0 < told.slices[0].overdue < 1.1
    assert SendBack(waiting) in world.said and not world.ends[running]
    after = world.query("a")
    assert after
    assert beats(world).slices[0].overdue > 1.0
    assert SendBack(after) not in world.said, "once: it would go to and fro"
    world.end(BIG.name)
    assert beats(world).slices[0].overdue == 0.0
    assert world.ends[running] == world.ends[waiting] == 1


def test_a_batch_within_a_few_times_its_profile_is_not_overdue() -> None:
    world = serving(("a", "a-large", BIG))
    world.query("a")
    beats(world, 0.1)
    assert beats(world, 0.05).slices[0].overdue == 0.0
    assert beats(world, 0.05).slices[0].overdue == 0.0


def patient(*placed: tuple[str, str, object]) -> World:
    """Serving, with queries that outlast a start of the executor, which has lived for long enough."""
    world = serving(*placed)
    apps = world.catalogue.apps
    assert isinstance(apps, dict)
    apps["a"] = replace(apps["a"], slo=30.0)
    world.now += 2.0
    return world


def mended(world: World, part: str) -> None:
    while part in world.down:
        world.mend(part)


def test_a_query_that_ends_the_executor_alone_fails_by_that_name_and_the_others_are_answered() -> None:
    world = patient()
    world.query("a")
    guilty, innocent = world.query("a"), world.query("a")
    assert guilty and innocent
    world.end(BIG.name)
    assert set(world.runs[BIG.name].run.queries) == {guilty, innocent}
    world.die(BIG.name)
    mended(world, BIG.name)
    assert world.runs[BIG.name].run.queries == (guilty,)
    world.die(BIG.name)
    mended(world, BIG.name)
    assert world.runs[BIG.name].run.queries == (innocent,)
    said = world.end(BIG.name)
    (failed,) = of(End, said)
    (answer,) = of(Answer, said)
    assert isinstance(failed, End) and isinstance(answer, Answer)
    assert (failed.query, failed.reason) == (guilty, Reason.EXECUTOR_KILLED)
    assert answer.queries == (innocent,)


def quarantined(world: World) -> list[str]:
    return [said.detail for said in world.said if isinstance(said, Say) and said.state == "quarantined"]


def test_a_variant_that_ends_its_executor_again_and_again_is_done_without_and_that_is_said() -> None:
    world = patient()
    acknowledged = len(of(Acknowledge, world.said))
    for _ in range(KILLS):
        assert not quarantined(world)
        world.query("a")
        variant = world.runs[BIG.name].run.variant
        world.die(BIG.name)
        mended(world, BIG.name)
        world.now += 2.0
    (said,) = quarantined(world)
    assert variant in said
    (again,) = of(Acknowledge, world.said)[acknowledged:]
    assert isinstance(again, Acknowledge)
    assert variant in again.failed and variant not in again.variants


def test_a_variant_that_seldom_ends_its_executor_goes_on() -> None:
    world = patient()
    for _ in range(2 * KILLS):
        world.query("a")
        world.die(BIG.name)
        mended(world, BIG.name)
        world.now += KILLS_WITHIN / (KILLS - 2)
    assert not quarantined(world)


def test_one_that_had_no_part_in_the_end_of_its_executor_is_run_once_more_and_no_oftener() -> None:
    world = patient()
    query = world.query("a")
    assert query
    world.die(BIG.name, Failure.BLAMELESS)
    mended(world, BIG.name)
    assert world.runs[BIG.name].run.queries == (query,)
    assert not world.ends[query]
    world.die(BIG.name, Failure.BLAMELESS)
    mended(world, BIG.name)
    (failed,) = of(End, world.said)
    assert isinstance(failed, End)
    assert (failed.query, failed.reason) == (query, Reason.EXECUTOR_KILLED)


def test_what_is_due_before_its_second_try_expires() -> None:
    world = serving()
    world.query("a")
    world.query("a")
    last = world.query("a")
    world.end(BIG.name)
    ended = world.end(BIG.name, 0.6, fails=True)
    assert last is not None
    assert [e.kind for e in of(End, ended) if isinstance(e, End)] == [OutcomeKind.EXPIRED] * 2
    assert not world.runs and all(world.ends[q] == 1 for q in world.read)


def test_who_was_declared_dead_names_what_others_answer_and_joins_anew() -> None:
    world = serving()
    running, waiting = world.query("a"), world.query("a")
    (gone,) = of(Abandon, world.plan((), incarnations={"gpu0": "other"}))
    assert isinstance(gone, Abandon) and gone.queries == (running, waiting)
    assert gone.why == "is run by another worker too (one a device may run)"
    assert world.core.incarnation == "gpu0.2"
    assert not of(Answer, world.end(BIG.name))
    assert Read() in world.plan((("a", "a-large", BIG), ("b", "b-only", SMALL)))
    assert world.query("a") in world.runs[BIG.name].run.queries


@pytest.mark.parametrize("ended", ["named", "leaves", "nobody"])
def test_who_waits_long_beside_another_of_its_device_says_so_once(ended: str) -> None:
    world = World()
    world.plan((("a", "a-large", BIG),), incarnations={"gpu0": "gpu0.9", "gpu1": "gpu1.1"})
    said = [a for _ in range(9) for a in of(Say, world.tell(BeatDue()))]
    assert said == []
    match ended:
        case "named":
            world.plan((("a", "a-large", BIG),))
        case "leaves":
            world.tell(Leaving())
        case _:
            world.plan((), incarnations={"gpu1": "gpu1.1"})
    assert not [a for _ in range(30) for a in of(Say, world.tell(BeatDue()))]
    world = World()
    world.plan((("a", "a-large", BIG),), incarnations={"gpu0": "gpu0.9"})
    (told,) = (a for _ in range(30) for a in of(Say, world.tell(BeatDue())))
    assert isinstance(told, Say) and told.state == "stands_by"
    assert "count on gpu0.9, not on gpu0.1" in told.detail and "--device" in told.detail


def test_who_stands_by_speaks_for_itself_alone_and_goes_unsaid() -> None:
    world = World()
    world.plan((("a", "a-large", BIG),), incarnations={"gpu0": "gpu0.9"})
    told = beats(world)
    assert (told.seen.incarnation, told.seen.slices, told.slices, told.stands_by) == ("gpu0.1", (), (), True)
    assert world.tell(Leaving()) == [] == world.tell(BeatDue())
    gone = serving()
    (last,) = of(Beat, gone.tell(Leaving()))
    assert isinstance(last, Beat) and last.seen.leaving and last.slices and not last.stands_by


def test_who_joins_again_tells_after_whom() -> None:
    world = serving()
    assert beats(world).seen.after == ""
    world.plan((), incarnations={})
    assert (beats(world).seen.incarnation, beats(world).seen.after) == ("gpu0.2", "gpu0.1")


def test_what_was_fenced_is_abandoned_once() -> None:
    world = serving()
    world.query("a")
    assert of(Abandon, world.tell(Fenced()))
    assert world.tell(Fenced()) == []


def test_ends_wait_for_the_newest_plan_after_a_standstill() -> None:
    world = serving()
    asked = world.query("a")
    assert world.tell(Suspended(1.4)) == []
    assert world.tell(Suspended(1.6)) == [CatchUp()]
    assert world.tell(Suspended(1.6)) == []
    assert asked is not None and not of(Answer, world.end(BIG.name)) and not world.ends[asked]
    at = world.now
    world.now += 5.0
    world.caught_up()
    assert world.ends[asked] == 1
    assert [a.at for a in world.said if isinstance(a, Answer)] == [at]
    with pytest.raises(IllegalEventError, match="nothing waits for it"):
        world.tell(CaughtUp())


def test_who_stands_still_again_while_the_newest_plan_is_read_has_it_read_once_more() -> None:
    """What is read may have been the newest before the second standstill, in which it was declared dead."""
    world = serving()
    asked = world.query("a")
    assert world.tell(Suspended(1.6)) == [CatchUp()]
    world.end(BIG.name)
    world.now += 1.4
    assert world.tell(Suspended(3.0)) == [], "as long as it may, though no heartbeat came between"
    world.now += 0.2
    assert world.tell(Suspended(1.6)) == []
    assert world.tell(CaughtUp()) == [CatchUp()]
    assert asked is not None and not world.ends[asked]
    world.now += 9.0
    assert world.tell(Suspended(0.5)) == [], "reading takes a while"
    world.caught_up()
    assert world.ends[asked] == 1


def test_what_is_withheld_is_abandoned_with_the_rest() -> None:
    world = serving()
    asked = world.query("a")
    world.tell(Suspended(9.0))
    world.end(BIG.name)
    waits = world.query("a")
    (gone,) = of(Abandon, world.plan((), incarnations={}))
    assert isinstance(gone, Abandon) and set(gone.queries) == {asked, waits} and gone.why == "was declared dead"
    world.caught_up()
    assert all(world.ends[q] == 1 for q in world.read)


def test_a_variant_is_forgotten_only_after_the_batch_that_runs_with_it() -> None:
    world = serving(("a", "a-large", BIG))
    world.query("a")
    world.plan((("a", "a-small", BIG),))
    assert [c.variant for c in world.commands[BIG.name]] == ["a-small"]
    world.load(BIG.name)
    assert not of(UnloadVariant, world.said)
    assert of(UnloadVariant, world.end(BIG.name)) == [UnloadVariant(BIG.name, "a-large")]


def test_it_is_cut_once_nothing_is_left_and_says_so() -> None:
    world = serving()
    running = world.query("a")
    wanted = {"gpu0": (WHOLE,)}
    assert Say("draining", "a plan cuts it otherwise") in world.plan((), geometries=wanted)
    world.end(BIG.name)
    while world.cut is None:
        assert world.wake()
    assert running is not None and world.ends[running] == 1
    assert world.cut == Cut(("7g",)) and world.now < START + 3.0
    back = world.query("a")
    assert back is not None and world.ends[back] == 1
    assert world.plan((("a", "a-large", BIG),), geometries=wanted) == [Acknowledge(Epoch(1, 3), (), ())]
    world.finish_cut()
    assert Say("serving", "7g.0") in world.said
    (beat,) = world.tell(BeatDue())
    assert isinstance(beat, Beat) and beat.seen.slices == (WHOLE,) and [s.kind for s in beat.slices] == ["gpu:7g"]


def test_a_load_that_ends_while_its_slice_is_cut_away_counts_for_nothing() -> None:
    world = World()
    world.plan((("a", "a-large", BIG), ("b", "b-only", SMALL)))
    world.plan((), geometries={"gpu0": (WHOLE,)})
    while world.cut is None:
        assert world.wake()
    assert world.tell(Loaded(BIG.name, "a-large", ok=True, seconds=0.2)) == []
    assert world.tell(ExecutorEnded(SMALL.name)) == []
    world.finish_cut()
    assert Say("serving", "7g.0") in world.said


def test_what_an_executor_cannot_load_again_is_withdrawn_and_the_rest_is_served() -> None:
    world = serving()
    world.die(BIG.name)
    world.mend(BIG.name)
    del world.down[BIG.name]
    told = world.tell(Reloaded(BIG.name, "a-large", False))
    assert of(Acknowledge, told) == [Acknowledge(Epoch(1, 1), ("b-only",), ("a-large",))]
    assert [said.state for said in of(Say, told) if isinstance(said, Say)] == ["not_reloaded"]


def test_what_an_executor_cannot_load_again_is_not_run_and_the_next_plan_has_it_loaded_anew() -> None:
    world = serving()
    world.die(BIG.name)
    world.mend(BIG.name)
    del world.down[BIG.name]
    world.tell(Reloaded(BIG.name, "a-large", False))
    world.loaded[BIG.name].clear()
    assert world.core.slices[BIG.name].loaded == () and world.core.slices[SMALL.name].loaded == ("b-only",)
    waits = world.query("a")
    assert waits is not None and BIG.name not in world.runs and not world.ends[waits]
    world.plan((("a", "a-large", BIG), ("b", "b-only", SMALL)))
    assert world.loads() == [BIG.name]
    world.load(BIG.name)
    assert world.runs[BIG.name].run.queries == (waits,)


def test_what_an_executor_ends_under_once_more_while_it_is_loaded_again_is_not_given_up() -> None:
    world = serving()
    world.die(BIG.name)
    world.mend(BIG.name)
    world.die(BIG.name)
    world.mend(BIG.name)
    world.mend(BIG.name)
    assert world.core.slices[BIG.name].loaded == ("a-large",)
    ran = world.query("a")
    assert world.runs[BIG.name].run.queries == (ran,)


def test_a_cut_that_fails_says_why_and_of_which_plan() -> None:
    world = serving()
    world.plan((), geometries={"gpu0": (WHOLE,)})
    while world.cut is None:
        assert world.wake()
    world.finish_cut(fault="a process runs there")
    (beat,) = world.tell(BeatDue())
    assert isinstance(beat, Beat)
    assert (beat.seen.slices, beat.seen.fault) == ((BIG, SMALL), "a process runs there")
    assert beat.seen.fault_epoch == Epoch(1, 2)
    assert Say("cut_failed", "a process runs there") in world.said


@pytest.mark.parametrize("bound", [False, True])
def test_what_waits_goes_back_after_a_drains_patience_unless_it_is_bound(bound: bool) -> None:
    world = serving(("b", "b-only", SMALL), bound=("b",) if bound else ())
    world.query("b", SMALL.name)
    waiting = world.query("b", SMALL.name)
    world.plan((), geometries={"gpu0": (WHOLE,)})
    world.now = START + 3.3  # the batch still runs
    world.tell(Woken("/patience"))
    assert waiting is not None and world.ends[waiting] == (0 if bound else 1)


def test_a_worker_that_leaves_says_so_and_begins_no_cut() -> None:
    world = serving()
    world.plan((), geometries={"gpu0": (WHOLE,)})
    (beat,) = world.tell(Leaving())
    assert isinstance(beat, Beat) and beat.seen.leaving
    while world.wake():
        pass
    assert world.cut is None


def test_several_slices_that_host_an_app_share_its_queries_and_goals_stay() -> None:
    world = serving(("a", "a-large", BIG), ("a", "a-large", SMALL), shared=True)
    for _ in range(3):
        world.query("a", SMALL.name)
    assert {BIG.name, SMALL.name} == set(world.runs)
    alone = serving(("a", "a-large", BIG), ("a", "a-large", SMALL), shared=True)
    for _ in range(3):
        alone.query("a", SMALL.name, goal=True)
    assert set(alone.runs) == {SMALL.name}


def test_a_heartbeat_tells_what_waits_runs_and_was_measured_once() -> None:
    world = serving()
    world.query("a")
    world.query("a")
    world.end(BIG.name, 0.07)
    world.query("b", SMALL.name)
    (beat,) = world.tell(BeatDue())
    assert isinstance(beat, Beat)
    big, small = beat.slices
    assert (beat.queued, big.rows, small.rows) == (2, 0, 0)
    assert (beat.busy_s, [m.execution_s for m in big.measured], small.measured) == (0.07, [0.07], ())
    assert big.busy_for > 0.0 and small.busy_for > big.busy_for
    assert beat.ended == (EndsCounted("a", 1, 0),)
    (again,) = world.tell(BeatDue())
    assert isinstance(again, Beat) and again.busy_s == 0.0 and not again.slices[0].measured
    assert again.ended == ()


def test_a_slice_on_which_batches_take_longer_than_profiled_is_told_until_they_do_no_more() -> None:
    world = serving(("a", "a-large", BIG), ("a", "a-large", SMALL))
    alone = {BIG.name: 1.5 * 0.04, SMALL.name: 2.5 * 0.04}  # median of one row, by ``world_catalogue``

    def run(part: str, times: float, batches: int) -> list[DeviceAction]:
        said = []
        for _ in range(batches):
            world.query("a", part)
            while part not in world.runs:
                assert world.wake()
            world.end(part, times * alone[part])
            said += of(InterferenceChanged, world.tell(BeatDue()))
        return said

    assert run(SMALL.name, 1.0, 5) == run(BIG.name, 1.0, 5) == []  # each by the profile of its own slice
    (begun,) = run(SMALL.name, 2.0, 10)
    assert isinstance(begun, InterferenceChanged)
    assert begun.slice == SMALL.name and begun.on and begun.ratio > 1.25
    assert run(BIG.name, 1.0, 5) == []
    (over,) = run(SMALL.name, 1.0, 30)
    assert isinstance(over, InterferenceChanged)
    assert over.slice == SMALL.name and not over.on


def test_illegal_events_tell_the_story() -> None:
    world = serving()
    asked = world.query("a")
    assert asked is not None
    with pytest.raises(IllegalEventError, match="here already") as told:
        world.tell(QueryCame(asked, slice=BIG.name))
    assert any("QueryCame q1" in line for line in told.value.story)
    world.end(BIG.name)
    with pytest.raises(IllegalEventError, match="while nothing runs there"):
        world.tell(BatchEnded(BIG.name, 0.1, 0.1))
    with pytest.raises(IllegalEventError, match="no slice 9g"):
        world.tell(BatchEnded("9g", 0.1, 0.1))
    with pytest.raises(IllegalEventError, match="ended loading"):
        world.tell(Loaded(BIG.name, "a-small", True))
    with pytest.raises(IllegalEventError, match="joins at"):
        world.tell(Joined("gpu0.3"))


def spoken(actions: list[DeviceAction]) -> list[tuple[str, str]]:
    return [(action.subject, action.state) for action in actions if isinstance(action, Announce)]


def test_a_promise_is_not_broken_in_silence_before_anything_is_hosted_for_it() -> None:
    world = World()
    world.plan((("a", "a-large", BIG), ("b", "b-only", SMALL)))
    asked = [world.query("b", SMALL.name) for _ in range(4)] + [world.query("a", BIG.name)]
    while not all(world.ends[query] for query in asked):
        assert world.wake()
    ends = of(End, world.said)
    assert sorted(end.query.app for end in ends) == ["a", "b", "b", "b", "b"]
    assert spoken(world.said) == [("app:b", "safe_mode")]
    (warning,) = of(Announce, world.said)
    assert world.said.index(warning) < world.said.index(next(end for end in ends if end.query.app == "b"))
    world.load(SMALL.name)
    assert spoken(world.said)[1] == ("app:b", "promise_kept")


def test_who_is_to_host_it_no_more_takes_back_that_a_promise_may_be_broken() -> None:
    world = World()
    world.plan((("a", "a-large", BIG), ("b", "b-only", SMALL)))
    query = world.query("b", SMALL.name)
    while not world.ends[query]:
        assert world.wake()
    assert spoken(world.said) == [("app:b", "safe_mode")]
    assert spoken(world.plan((("a", "a-large", BIG),))) == [("app:b", "promise_kept")]


def test_a_load_that_fails_is_acknowledged_as_failed_and_what_was_served_goes_on() -> None:
    world = serving()
    world.plan((("a", "a-small", BIG), ("b", "b-only", SMALL)))
    assert world.loads() == [BIG.name]
    world.load(BIG.name, ok=False)
    assert world.loads() == []
    told = of(Acknowledge, world.said)[-1]
    assert (told.failed, set(told.variants)) == (("a-small",), {"b-only"})
    query = world.query("a", BIG.name)
    world.end(BIG.name)
    assert world.ends[query]


def test_each_end_says_how_its_stream_stands_where_it_was_promised_something() -> None:
    world = serving()
    world.query("a")
    (answer,) = of(Answer, world.end(BIG.name, 0.07))
    assert isinstance(answer, Answer) and set(answer.promises) <= {None}
    stands: list[PromiseState | None] = []
    for late in (False, True, True, False):
        world.query("b", SMALL.name)
        for action in world.end(SMALL.name, 3.0 if late else 0.25):
            if isinstance(action, Answer):
                stands += action.promises
            elif isinstance(action, End):
                stands.append(action.promise)
    assert [(s.queries, s.misses, s.mcd, s.max_consecutive) for s in stands if s] == [
        (1, 0, 0, 2),
        (2, 1, 1, 2),
        (3, 2, 2, 2),
        (4, 2, 2, 2),
    ]


@pytest.mark.parametrize("ended", [False, True])
def test_a_promised_query_whose_record_was_written_twice_is_answered_and_counted_once(ended: bool) -> None:
    world = serving()
    first = world.query("b", SMALL.name)
    assert first is not None
    if ended:
        world.end(SMALL.name, 0.25)
    again = replace(first)
    assert world.tell(QueryCame(again, -1, SMALL.name, 9)) == [Repeated(again)]
    assert again not in world.core.queries
    if not ended:
        world.end(SMALL.name, 0.25)
    world.query("b", SMALL.name)
    world.end(SMALL.name, 0.25)
    answers = [action for action in world.said if isinstance(action, Answer)]
    assert [p.queries for answer in answers for p in answer.promises if p is not None] == [1, 2]
    plain = world.query("a", BIG.name)
    assert plain is not None
    assert of(Repeated, world.tell(QueryCame(replace(plain), -1, BIG.name, 11))) == []


def test_what_is_sent_back_waits_for_the_newest_plan_too_and_is_abandoned_with_the_rest() -> None:
    """What the planner has moved to others must not come to them a second time from here."""
    world = serving(("a", "a-large", BIG))
    runs, waits = world.query("a"), world.query("a")
    world.tell(Suspended(9.0))
    strange = world.query("b")  # not served here: sent back at once, were it not for the standstill
    assert {runs, waits, strange}.isdisjoint(query for query, ends in world.ends.items() if ends)
    (gone,) = of(Abandon, world.plan((), incarnations={}))
    assert isinstance(gone, Abandon) and set(gone.queries) == {runs, waits, strange}
    assert not of(SendBack, world.said)


def test_what_is_to_be_sent_back_is_once_the_newest_plan_counts_on_the_worker() -> None:
    world = serving(("a", "a-large", BIG))
    world.tell(Suspended(9.0))
    strange = world.query("b")
    assert strange is not None and not of(SendBack, world.said)
    world.caught_up()
    assert of(SendBack, world.said) == [SendBack(strange)]


def test_a_plan_of_a_variant_without_a_profile_here_is_followed_once_there_is_one() -> None:
    """Plans and registrations come by two topics, in any order."""
    whole = world_catalogue()
    kinds = {("a-small", kind) for _, kind in whole.profiles}
    known = KnownCatalogue(
        Catalogue.of(
            list(whole.apps.values()),
            list(whole.variants.values()),
            [profile for key, profile in whole.profiles.items() if key not in kinds],
        )
    )
    world = World(catalogue=known)
    assert world.plan((("a", "a-small", BIG), ("b", "b-only", SMALL))) == []
    assert not world.core.named
    world.tell(whole.registered)
    assert world.core.named and of(Read, world.said) == [Read()]
    assert {place: [c.variant for c in asked] for place, asked in world.commands.items()} == {
        BIG.name: ["a-small"],
        SMALL.name: ["b-only"],
    }
