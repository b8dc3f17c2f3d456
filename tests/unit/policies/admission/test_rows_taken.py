"""An app with a promise says once which of the queries that it declares to take are never let in."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sluicegate.domain.actions import Accept, Announce, End
from sluicegate.domain.events import PlanAcknowledged, PlanPublished
from sluicegate.domain.models.app import App, Promise
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.policies.admission.rows_taken import REFUSED, TAKEN, RowsTold, Taken, refused_rows
from sluicegate.policies.admission.sustainable import Mode, SustainableAdmission
from sluicegate.policies.serving.admission import (
    SETTLED,
    AdmissionCoreAction,
    AdmissionRules,
    Looked,
    RouterHeard,
    Serve,
)
from tests.unit.policies.serving.test_admission_core import PROMISE, STEADY, Door, T, catalogue, kinds

APP = App(name="a", slo=0.1, promise=Promise(max_consecutive=1), max_rows=8)


def spoken(actions: Sequence[AdmissionCoreAction]) -> list[tuple[str, str]]:
    said = [(a.subject, a.state) for a in actions if isinstance(a, Announce)]
    return [one for one in said if one[0].startswith("rows:")]


def sized(max_rows: int, mode: Mode = "enforce", promise: Promise = PROMISE) -> Door:
    """Where an app "a" of so many rows is served by plans."""

    def made() -> SustainableAdmission:
        return SustainableAdmission(bound=None, mode=mode)

    door = Door(AdmissionRules(make_policy=made, by_plan=True), promise=promise)
    known = catalogue(promise)
    known = replace(known, apps={**known.apps, "a": replace(known.apps["a"], max_rows=max_rows)})
    door.told(Serve(known.registered, STEADY), T)
    return door


def planned(door: Door, number: int, now: float, *apps: str) -> list[tuple[str, str]]:
    """What is said of a plan with the fast variant, whose largest batch has two rows, beside ``apps``, until it alone
    counts."""
    variants = {"a": "quick", "b": "other"}
    placements = tuple(Placement("d0", app, (variants[app],), 0.5, 2) for app in ("a", *apps))
    plan = Plan(epoch=Epoch(1, number), created=now, placements=placements, demand={"a": 1.0})
    hosted = tuple(variants[app] for app in ("a", *apps))
    said = [
        *door.told(PlanPublished(plan), now),
        *door.told(PlanAcknowledged("d0", Epoch(1, number), hosted), now),
        *door.told(Looked(STEADY + now - T + SETTLED), now + SETTLED),
        *door.told(RouterHeard("a", STEADY + now - T + SETTLED), now + SETTLED),
    ]
    return spoken(said)


def test_a_plan_that_leaves_large_queries_a_bound_of_0_is_told_of_once_and_does_so() -> None:
    door = sized(3)
    assert planned(door, 1, T + 1) == [("rows:a", REFUSED)]
    assert planned(door, 2, T + 10) == [], "as was said"
    assert kinds(door.came(T + 13.5, rows=3))[-1] == (OutcomeKind.REJECTED, Reason.OVER_SUSTAINABLE_RATE)
    assert kinds(door.came(T + 13.5, rows=2)) == [Accept], "as was said"
    assert not isinstance(door.came(T + 14.5, rows=1)[-1], End)


def test_a_plan_that_lets_in_nothing_says_why_and_one_that_does_again_withdraws_it() -> None:
    door = sized(2)
    assert planned(door, 1, T + 1) == []
    plan = Plan(
        epoch=Epoch(1, 2),
        created=T + 10,
        placements=(Placement("d0", "a", ("good",), 0.5, 2), Placement("d0", "b", ("other",), 0.5, 2)),
        demand={"a": 1.0},
    )
    said = [
        *door.told(PlanPublished(plan), T + 10),
        *door.told(PlanAcknowledged("d0", Epoch(1, 2), ("good", "other")), T + 10),
    ]
    (told,) = [a for a in said if isinstance(a, Announce) and a.subject == "rows:a"]
    assert told.state == REFUSED and "its SLO of 500 ms" in told.detail and "none of its queries" in told.detail
    assert kinds(door.came(T + 10, rows=1))[-1] == (OutcomeKind.REJECTED, Reason.OVER_SUSTAINABLE_RATE)
    assert planned(door, 3, T + 20) == [("rows:a", TAKEN)]


@pytest.mark.parametrize(
    ("rows", "mode", "promise"),
    [(2, "enforce", PROMISE), (3, "observe", PROMISE), (3, "enforce", Promise())],
)
def test_nothing_is_said_where_all_are_taken_or_nothing_was_promised(rows: int, mode: Mode, promise: Promise) -> None:
    assert planned(sized(rows, mode, promise), 1, T + 1) == []


def test_where_faster_variants_take_what_is_over_it_is_their_batch_that_counts() -> None:
    assert planned(sized(3, "degrade"), 1, T + 1) == [("rows:a", REFUSED)]
    assert planned(sized(2, "degrade"), 1, T + 1) == []


def test_it_is_said_again_only_where_less_is_taken_or_more_declared_and_withdrawn_once() -> None:
    told = RowsTold()
    taken = Taken(4, 5, 0.04)

    def states(*asked: tuple[App, Taken | None]) -> list[str | None]:
        return [said.state if (said := told.now(*one)) else None for one in asked]

    assert states((APP, taken), (APP, taken), (APP, Taken(6, 2, 0.04)), (APP, Taken(3, 6, 0.04))) == [
        REFUSED, None, None, REFUSED,
    ]  # fmt: skip
    assert states((replace(APP, max_rows=16), taken)) == [REFUSED]
    assert states((APP, Taken(8, 2, 0.04)), (APP, Taken(8, 2, 0.04)), (APP, None)) == [TAKEN, None, None]
    assert states((APP, taken)) == [REFUSED]
    told.registered({})
    assert states((APP, taken)) == [REFUSED], "another of that name"


def test_what_could_be_kept_and_what_would_help_is_told() -> None:
    said = refused_rows(APP, Taken(4, 5, 0.04), slo=0.25)
    assert said is not None and said.data == {"rows": 4.0, "max_rows": 8.0, "bound": 5.0, "window_s": 0.04}
    for part in ("5 to 8 rows", "Of queries of 4 rows 5 in any 40 ms (125/s)", "an SLO of 250 ms", "max_rows 4"):
        assert part in said.detail
    one = refused_rows(replace(APP, max_rows=2), Taken(1, 9, 0.04))
    assert one is not None and "no query of 2 rows" in one.detail and "Of queries of one row 9" in one.detail
