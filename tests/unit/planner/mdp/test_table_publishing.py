"""What is published of selection tables, in which order; what a worker follows; when a promise is said to be broken."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import IllegalEventError, InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.table import SelectionTable, TableObserved, TablesChanged
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel
from sluicegate.planner.policy_tables.keys import Shelf, TableName, decode_name, encode_name
from sluicegate.planner.policy_tables.promise_monitor import DriftWatch, Held, held
from sluicegate.planner.policy_tables.table_codec import encode
from sluicegate.planner.policy_tables.table_fields import TableFields
from sluicegate.planner.policy_tables.table_library import peak_rate
from sluicegate.planner.policy_tables.table_requests import LibraryRules, Question, TableRules, questions
from sluicegate.planner.policy_tables.table_schedule import (
    Asked,
    LoadMissing,
    Made,
    Make,
    PublishingAction,
    PutTable,
    TablePublishing,
    TableSeen,
    WithdrawTable,
    make_tables,
    missing_load,
)
from sluicegate.policies.mdp_serving.known_tables import KnownTables
from sluicegate.stages.worker.table_follower import table_came
from sluicegate.streams.ports import Record
from tests.harness import toy_catalogue

RULES = LibraryRules(spacing=0.2)
SHELF = Shelf("a", "cpu", 0.1)
SMALL = Candidate("small", 0.6, (0.01, 0.014, 0.018, 0.022))
LARGE = Candidate("large", 0.9, (0.03, 0.05, 0.07, 0.09))


def question(workers: int = 2, qps: float = 40.0, shelf: Shelf = SHELF) -> Question:
    model = SelectionModel(variants=(SMALL, LARGE), slo=0.09, workers=workers, qps=qps, grid=10, queue=4)
    return Question(shelf, model)


def test_a_load_without_a_table_is_heard_of_and_nothing_else_that_workers_say() -> None:
    data: dict[str, float | str] = {"qps": 500.0, "slo": 0.1, "worker_class": "cpu"}
    said = Announce("tables:a", "table_missing", "", data)
    assert missing_load(said) == LoadMissing(SHELF, 500.0)
    assert missing_load(replace(said, state="drift")) is None
    assert missing_load(replace(said, data=None)) is None
    for wrong in ({"qps": 0.0}, {"qps": -1.0}, {"qps": 1e12}, {"slo": "soon"}):
        with pytest.raises(InvalidInputError, match=r"status\.data"):
            missing_load(replace(said, data={**data, **wrong}))
    with pytest.raises(InvalidInputError, match="names no load"):
        missing_load(replace(said, data={"qps": 500.0}))


def puts(actions: list[PublishingAction]) -> list[TableName]:
    return [a.name for a in actions if isinstance(a, PutTable)]


def gone(actions: list[PublishingAction]) -> list[TableName]:
    return [a.name for a in actions if isinstance(a, WithdrawTable)]


def makes(actions: list[PublishingAction]) -> list[Make]:
    return [a for a in actions if isinstance(a, Make)]


def answered(publishing: TablePublishing, make: Make) -> list[PublishingAction]:
    return publishing.handle(Made(make, make_tables(make, RULES)))


def filled(asked: Question) -> TablePublishing:
    publishing = TablePublishing(RULES)
    pending = makes(publishing.handle(Asked((asked,))))
    while pending:
        pending = makes(answered(publishing, pending[0]))
    return publishing


def test_the_load_planned_for_comes_first_then_the_whole_library() -> None:
    publishing = TablePublishing(RULES)
    (first,) = makes(publishing.handle(Asked((question(qps=40.0),))))
    assert first.loads == pytest.approx((44.0,))
    actions = answered(publishing, first)
    assert [n.qps for n in puts(actions)] == pytest.approx([44.0])
    (library,) = makes(actions)
    assert library.loads == ()
    actions = answered(publishing, library)
    loads = [n.qps for n in puts(actions)]
    assert len(loads) >= 2
    assert loads == sorted(loads, reverse=True)
    assert gone(actions) == [TableName(SHELF, pytest.approx(44.0))]
    assert not makes(actions)


def test_an_unchanged_question_is_not_asked_again_whatever_its_load() -> None:
    publishing = filled(question(qps=40.0))
    assert publishing.handle(Asked((question(qps=10.0),))) == []


def test_a_changed_question_replaces_its_tables_and_an_old_one_comes_back_at_once() -> None:
    publishing = filled(question(workers=2))
    actions = publishing.handle(Asked((question(workers=1),)))
    assert not gone(actions)  # the old ones serve until the new library is there
    (library,) = makes(actions)
    assert library.loads == ()
    assert gone(answered(publishing, library))
    back = publishing.handle(Asked((question(workers=2),)))
    assert len(puts(back)) >= 2
    assert not makes(back)


def test_answers_to_questions_that_are_not_asked_any_more_are_not_published() -> None:
    publishing = TablePublishing(RULES)
    (first,) = makes(publishing.handle(Asked((question(),))))
    assert publishing.handle(Asked(())) == []
    assert answered(publishing, first) == []


def test_tables_of_classes_that_are_no_more_are_withdrawn_also_those_of_an_earlier_term() -> None:
    publishing = TablePublishing(RULES)
    old = TableName(Shelf("a", "cpu", 0.3), 5.0)
    publishing.handle(TableSeen(old, "f"))
    assert gone(publishing.handle(Asked((question(),)))) == [old]


def test_tables_of_workers_that_left_stay_for_their_return() -> None:
    publishing = filled(question())
    assert publishing.handle(Asked(())) == []
    publishing.handle(TableSeen(TableName(Shelf("b", "gpu", 0.1), 5.0), "f"))
    back = publishing.handle(Asked((question(),)))
    assert not gone(back)
    assert not makes(back)


def test_a_load_that_workers_miss_is_made_before_the_library_unless_it_is_covered() -> None:
    publishing = TablePublishing(RULES)
    (first,) = makes(publishing.handle(Asked((question(qps=40.0),))))
    assert publishing.handle(LoadMissing(SHELF, 60.0)) == []  # one question out at a time
    (asked,) = makes(answered(publishing, first))
    assert asked.loads == pytest.approx((66.0,))
    publishing.handle(LoadMissing(SHELF, 50.0))
    (library,) = makes(answered(publishing, asked))
    assert library.loads == ()
    answered(publishing, library)
    assert publishing.handle(LoadMissing(SHELF, 1e6)) == []  # above capacity: no table would help


def test_a_load_beyond_what_the_workers_could_answer_is_not_made_and_holds_up_no_other() -> None:
    publishing = TablePublishing(RULES)
    asked = question(workers=2, qps=0.0)
    other = question(workers=3, qps=0.0, shelf=Shelf("b", "cpu", 0.1))
    (library,) = makes(publishing.handle(Asked((asked, other))))
    peak = peak_rate(asked.model)
    assert peak < 370.0 < peak_rate(other.model)
    for shelf in (SHELF, other.shelf):
        publishing.handle(LoadMissing(shelf, 370.0))
        publishing.handle(LoadMissing(shelf, 1e7))
    (made,) = makes(publishing.handle(Made(library, ())))
    assert (made.question.shelf, made.loads) == (other.shelf, pytest.approx((407.0,)))


def test_a_table_that_promises_too_many_violations_is_not_published() -> None:
    publishing = TablePublishing(RULES)
    (first,) = makes(publishing.handle(Asked((question(qps=5000.0),))))
    assert puts(answered(publishing, first)) == []


def test_a_question_that_cannot_be_answered_is_not_asked_for_ever() -> None:
    publishing = TablePublishing(RULES)
    (first,) = makes(publishing.handle(Asked((question(),))))
    (library,) = makes(publishing.handle(Made(first, ())))
    assert publishing.handle(Made(library, ())) == []


def test_a_library_that_could_not_be_made_takes_no_table_away_and_is_tried_once_more_when_it_is_asked_again() -> None:
    publishing = TablePublishing(RULES)
    (first,) = makes(publishing.handle(Asked((question(),))))
    (library,) = makes(answered(publishing, first))
    failed = Made(library, (), failed=True)
    assert publishing.handle(failed) == [], "what is published stays, and it is not asked for ever"
    (urgent,) = makes(publishing.handle(LoadMissing(SHELF, 60.0)))
    assert urgent.loads == pytest.approx((66.0,)), "loads are answered while no library is there"
    assert puts(answered(publishing, urgent)) == [TableName(SHELF, pytest.approx(66.0))]
    assert publishing.handle(Asked((question(),))) == [library]
    assert publishing.handle(failed) == []
    assert publishing.handle(Asked((question(),))) == [], "it was tried twice"
    assert publishing.handle(Asked(())) == []
    assert publishing.handle(Asked((question(),))) == [library], "the failure is no answer to a shelf that returns"
    assert publishing.handle(failed) == []
    assert publishing.handle(Asked((question(),))) == [library]
    assert len(puts(answered(publishing, library))) >= 2
    assert publishing.handle(Asked((question(),))) == [] == publishing.handle(LoadMissing(SHELF, 320.0))


def test_a_library_that_could_not_be_made_for_a_question_of_before_is_no_try_of_the_one_that_is_asked() -> None:
    publishing = TablePublishing(RULES)
    (library,) = makes(publishing.handle(Asked((question(qps=0.0),))))
    assert publishing.handle(Asked((question(workers=1, qps=0.0),))) == []
    (other,) = makes(publishing.handle(Made(library, (), failed=True)))
    assert other.question.model.workers == 1
    publishing.handle(Made(other, (), failed=True))
    assert publishing.handle(Asked((question(workers=1, qps=0.0),))) == [other]


@pytest.mark.parametrize(("allowed", "published"), [(1.0, [44.0]), (0.999, [])])
def test_a_table_that_promises_as_many_violations_as_are_tolerated_is_published(
    allowed: float, published: list[float]
) -> None:
    (table,) = make_tables(Make(question(qps=40.0), (44.0,)), RULES)
    assert table.expected.violation > 0.0
    publishing = TablePublishing(LibraryRules(spacing=0.2, max_violation=allowed * table.expected.violation))
    (first,) = makes(publishing.handle(Asked((question(qps=40.0),))))
    assert [n.qps for n in puts(publishing.handle(Made(first, (table,))))] == published


def test_where_no_load_is_planned_for_the_library_comes_first() -> None:
    (library,) = makes(TablePublishing(RULES).handle(Asked((question(qps=0.0),))))
    assert library.loads == ()


def test_an_answer_that_nobody_waits_for_or_of_other_loads_is_an_error() -> None:
    publishing = TablePublishing(RULES)
    with pytest.raises(IllegalEventError, match="which nobody asked for"):
        publishing.handle(Made(Make(question(), (44.0,)), ()))
    (first,) = makes(publishing.handle(Asked((question(),))))
    for other in (replace(first, loads=(45.0,)), Make(question(shelf=replace(SHELF, slo=0.2)), first.loads)):
        with pytest.raises(IllegalEventError, match="which nobody asked for"):
            publishing.handle(Made(other, ()))
    (library,) = makes(publishing.handle(Made(first, ())))
    assert publishing.handle(Made(library, ())) == []
    with pytest.raises(IllegalEventError, match="which nobody asked for"):
        publishing.handle(Made(library, ()))


def test_what_a_load_misses_is_what_its_own_tables_do_not_cover_and_the_largest_counts() -> None:
    publishing = TablePublishing(RULES)
    other = Shelf("b", "cpu", 0.1)
    (first,) = makes(publishing.handle(Asked((question(), question(workers=3, qps=0.0, shelf=other)))))
    for load in (44.0, 50.0, 70.0, 60.0):
        assert publishing.handle(LoadMissing(SHELF, load)) == []
    publishing.handle(LoadMissing(replace(SHELF, worker_class="gpu"), 30.0))
    publishing.handle(LoadMissing(other, 7.0))
    (asked,) = makes(answered(publishing, first))
    assert (asked.question.shelf, asked.loads) == (SHELF, pytest.approx((77.0,)))
    (asked,) = makes(answered(publishing, asked))
    assert (asked.question.shelf, asked.loads) == (other, pytest.approx((7.7,)))
    assert publishing.handle(LoadMissing(SHELF, 77.0)) == [], "covered now"
    (library,) = makes(answered(publishing, asked))
    assert (library.question.shelf, library.loads) == (SHELF, ())


def test_a_load_of_ten_million_a_second_is_the_highest_that_is_believed() -> None:
    data: dict[str, float | str] = {"qps": 1e7, "slo": 0.1, "worker_class": "cpu"}
    assert missing_load(Announce("tables:a", "table_missing", "", data)) == LoadMissing(SHELF, 1e7)
    with pytest.raises(InvalidInputError, match=r"status\.data\.qps: 1\.00001e\+07 is no load"):
        missing_load(Announce("tables:a", "table_missing", "", {**data, "qps": 1.00001e7}))


def test_answers_to_eight_questions_are_kept() -> None:
    publishing = TablePublishing(RULES)
    for workers in range(1, 10):
        (library,) = makes(publishing.handle(Asked((question(workers=workers, qps=0.0),))))
        publishing.handle(Made(library, ()))
    for workers, asked_again in ((2, False), (9, False), (1, True)):
        again = makes(publishing.handle(Asked((question(workers=workers, qps=0.0),))))
        assert bool(again) is asked_again, workers


def plan(shares: tuple[float, ...], slos: tuple[float, ...] | None = None) -> Plan:
    names = ("toy-v2", "toy-v1", "toy-v0")
    placements = tuple(
        Placement(f"d{i}", "toy", names, share, 8, slo=slos[i] if slos else 0.0) for i, share in enumerate(shares)
    )
    return Plan(epoch=Epoch(1, 1), created=0.0, placements=placements, demand={"toy": 100.0})


DEVICES = tuple(Device(name=f"d{i}", type="cpu") for i in range(4))


def test_equal_shares_are_a_round_robin_over_all_workers() -> None:
    (asked,) = questions(plan((0.25,) * 4), toy_catalogue(), DEVICES, {}, TableRules(hop_s=0.01, guard_s=0.02))
    assert asked.shelf == Shelf("toy", "cpu", 0.25)
    assert (asked.model.workers, asked.model.dispatch, asked.model.qps) == (4, "round_robin", 100.0)
    assert asked.model.slo == pytest.approx(0.22)
    assert [v.name for v in asked.model.variants] == ["toy-v0", "toy-v1", "toy-v2"]


def test_unequal_shares_are_weighted() -> None:
    (asked,) = questions(plan((0.5, 0.3, 0.2)), toy_catalogue(), DEVICES, {}, TableRules())
    assert asked.model.dispatch == "weighted"
    assert asked.model.share == pytest.approx(1 / 3)


def test_each_slo_class_has_its_own_workers_and_load() -> None:
    tight, loose = questions(
        plan((0.4, 0.4, 0.1, 0.1), (0.1, 0.1, 0.3, 0.3)), toy_catalogue(), DEVICES, {}, TableRules()
    )
    assert (tight.shelf.slo, tight.model.workers) == (0.1, 2)
    assert tight.model.qps == pytest.approx(80.0)
    assert (loose.shelf.slo, loose.model.workers) == (0.3, 2)
    assert loose.model.qps == pytest.approx(20.0)


def test_measured_latency_slows_what_tables_count_on() -> None:
    slow = {("toy-v2", "cpu"): 2.0}
    (plain,) = questions(plan((0.5, 0.5)), toy_catalogue(), DEVICES, {}, TableRules())
    (asked,) = questions(plan((0.5, 0.5)), toy_catalogue(), DEVICES, slow, TableRules())
    assert asked.model.variants[-1].latency[0] == pytest.approx(2.0 * plain.model.variants[-1].latency[0])
    assert asked.slowdown == {"toy-v2": 2.0}
    table = make_tables(Make(asked, (50.0,)), RULES)[0]
    assert table.assumptions["slowdown.toy-v2"] == 2.0
    assert table.slo_class == 0.25


def test_tables_are_made_for_the_arrivals_and_the_batching_that_settings_name() -> None:
    rules = TableRules(arrival_shape=0.25, batching="variable", late="drop", library=RULES)
    (asked,) = questions(plan((0.5, 0.5)), toy_catalogue(), DEVICES, {}, rules)
    (plain,) = questions(plan((0.5, 0.5)), toy_catalogue(), DEVICES, {}, TableRules())
    bursty, poisson = (make_tables(Make(q, (50.0,)), RULES)[0] for q in (asked, plain))
    assert (bursty.assumptions["arrival_shape"], poisson.assumptions["arrival_shape"]) == (0.25, 1.0)
    assert bursty.batches
    assert not poisson.batches
    assert bursty.fingerprint != poisson.fingerprint
    assert bursty.expected.violation > poisson.expected.violation
    with pytest.raises(ValidationError, match="phases"):
        TableFields(phases=2, batching="variable")


def test_an_slo_that_hops_take_whole_is_no_question() -> None:
    assert questions(plan((1.0,)), toy_catalogue(slo=0.01), DEVICES, {}, TableRules()) == ()


@pytest.fixture(scope="module")
def tables() -> list[SelectionTable]:
    return list(make_tables(Make(question(), (20.0, 40.0)), RULES))


def record(table: SelectionTable | None, name: TableName | None = None, key: bytes | None = None) -> Record:
    name = name or TableName(SHELF, table.qps if table else 0.0)
    value = encode(table) if table else None
    return Record("policies", 0, 0, key if key is not None else encode_name(name), value, (), 0.0)


def test_a_worker_goes_by_the_newest_fingerprint_of_its_kind(tables: list[SelectionTable]) -> None:
    known = KnownTables()
    (first, second) = (known.came(table_came(record(table))) for table in tables)
    assert first is not None and [t.qps for t in first.tables] == [20.0]
    assert second is not None and [t.qps for t in second.tables] == [20.0, 40.0]
    assert known.of("gpu") == []
    (other,) = make_tables(Make(question(workers=1), (30.0,)), RULES)
    third = known.came(table_came(record(other)))
    assert third is not None and [t.qps for t in third.tables] == [30.0]
    assert known.of("cpu") == [third]
    assert known.came(table_came(record(None, TableName(SHELF, 30.0)))) == TablesChanged("a", ())
    assert known.came(table_came(record(None, TableName(SHELF, 31.0)))) is None


@pytest.mark.parametrize("key", [b"", b"[]", b"nonsense", b'["a","cpu",-1,3]', b'["a","cpu",0.1,"x"]', b"{}"])
def test_a_malformed_record_is_refused(tables: list[SelectionTable], key: bytes) -> None:
    with pytest.raises(InvalidInputError):
        table_came(record(tables[0], key=key))
    with pytest.raises(InvalidInputError):
        table_came(record(tables[0], TableName(Shelf("b", "cpu", 0.1), 20.0)))


def test_a_table_of_another_slo_class_than_its_key_says_is_refused(tables: list[SelectionTable]) -> None:
    with pytest.raises(InvalidInputError, match=r"table: is for an SLO of 0\.1 s; its key says .*slo=0\.25"):
        table_came(record(tables[0], TableName(replace(SHELF, slo=0.25), 20.0)))
    unsaid = {name: value for name, value in tables[0].assumptions.items() if name != "slo_class"}
    with pytest.raises(InvalidInputError, match=r"is for an SLO of 0\.09 s"):
        table_came(record(replace(tables[0], assumptions=unsaid)))


@pytest.mark.parametrize("name", ["share", "slo_class", "slowdown.small"])
@pytest.mark.parametrize("value", [0.0, -1.0, "much"])
def test_assumptions_that_workers_count_with_must_be_numbers_above_0(
    tables: list[SelectionTable], name: str, value: float | str
) -> None:
    wrong = replace(tables[0], assumptions={**tables[0].assumptions, name: value})
    with pytest.raises(InvalidInputError, match=name):
        table_came(record(wrong))


def test_names_survive_the_topic() -> None:
    name = TableName(Shelf("app/|x", "1g.10gb", 0.15), 1234.5)
    assert decode_name(encode_name(name)) == name
    assert decode_name(encode_name(replace(name, qps=0.0))).qps == 0.0


def seen(table: SelectionTable, queries: int = 1000, **changed: float) -> TableObserved:
    e = table.expected
    on_time = int(changed.pop("on_time", queries))
    return replace(
        TableObserved(
            app="a",
            worker_class="cpu",
            slo=0.1,
            fingerprint=table.fingerprint,
            qps=table.qps,
            share=0.5,
            seconds=queries / (0.5 * table.qps),
            arrivals=queries,
            queries=queries,
            on_time=on_time,
            accuracy_sum=on_time * e.accuracy,
            accuracy_squares=on_time * (e.accuracy**2 + 0.001),
            ratios=(1.0,) * 20,
        ),
        **changed,
    )


def watching(table: SelectionTable) -> DriftWatch:
    return DriftWatch({(table.fingerprint, table.qps): table}, period=10.0)


def test_a_broken_promise_is_said_once_with_its_reason_and_its_end_too(tables: list[SelectionTable]) -> None:
    table = tables[0]
    watch = watching(table)
    assert watch.handle([seen(table)], 0.0) == []
    assert watch.handle([seen(table)], 10.0) == []
    assert watch.handle([seen(table, on_time=800, ratios=(1.5,) * 20)], 10.5) == []
    (said,) = watch.handle([seen(table, on_time=800, ratios=(1.5,) * 20)], 21.0)
    assert (said.subject, said.state) == ("tables:a/cpu/100ms", "drift")
    assert "violation 0.2 where" in said.detail
    assert "latency is 1.5 times" in said.detail
    watch.handle([seen(table, on_time=800)], 22.0)
    assert watch.handle([], 32.0) == []  # still, but said
    watch.handle([seen(table)], 33.0)
    (end,) = watch.handle([], 43.0)
    assert end.state == "as_promised"


def test_counts_of_all_workers_add_up_before_they_are_judged(tables: list[SelectionTable]) -> None:
    watch = watching(tables[0])
    few = [seen(tables[0], queries=60, on_time=54) for _ in range(2)]
    assert watch.handle(few, 0.0) == []
    assert watch.handle([], 11.0) == []  # too few to judge
    (said,) = watch.handle(few, 12.0)
    assert said.data is not None
    assert said.data["queries"] == 240.0


def test_what_was_held_weighs_tables_by_the_queries_they_served(tables: list[SelectionTable]) -> None:
    by_name = {(t.fingerprint, t.qps): t for t in tables}
    found = held([seen(tables[0], 900), seen(tables[1], 100, on_time=90)], by_name)
    assert found is not None
    low, high = (t.expected.accuracy for t in tables)
    assert found.expected_accuracy == pytest.approx((900 * low + 90 * high) / 990)
    assert found.observed_violation == pytest.approx(0.01)
    assert found.accuracy_held
    assert not found.violation_held
    assert held([], by_name) is None


@pytest.mark.parametrize(
    ("accuracy", "violation", "holds"),
    [(0.77, 0.15, (True, True)), (0.7699, 0.1501, (False, False)), (0.9, 0.0, (True, True))],
)
def test_what_was_promised_is_held_within_three_standard_errors_and_what_the_hops_took(
    accuracy: float, violation: float, holds: tuple[bool, bool]
) -> None:
    """Of 0.8 with an error of 0.01, and of 0.1 with one of 0.01 where 0.02 came late to the queue."""
    found = Held(
        queries=9, expected_accuracy=0.8, observed_accuracy=accuracy, standard_error=0.01, expected_violation=0.1,
        observed_violation=violation, violation_error=0.01, delayed=0.02,
    )  # fmt: skip
    assert (found.accuracy_held, found.violation_held) == holds
