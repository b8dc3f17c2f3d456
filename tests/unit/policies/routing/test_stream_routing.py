"""Routing by streams: turns for the app's own, one place for each other."""

from collections import Counter

import pytest

from sluicegate.domain.actions import Drop, Send
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import Arrived, PlanActivated
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.outcome import Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Query
from sluicegate.policies.routing.keyed_streams import StreamRouting


def plan(number: int, *devices: str) -> PlanActivated:
    placements = tuple(
        Placement(app="a", device=d, slice="whole", variants=("v",), share=1 / len(devices), max_batch=8)
        for d in devices
    )
    return PlanActivated(Plan(epoch=Epoch(1, number), created=0.0, placements=placements))


def place(policy: StreamRouting, stream: str, of: QueryClass = QueryClass.STRICT) -> str:
    (sent,) = policy.handle(Arrived(Query("q", "a", 0.0, 1.0, stream=stream, query_class=of)), 0.0)
    assert isinstance(sent, Send)
    return sent.device


def test_the_apps_own_stream_goes_round_in_strict_turns() -> None:
    policy = StreamRouting("a")
    policy.handle(plan(1, "x", "y", "z"), 0.0)
    seen = [place(policy, "a") for _ in range(30)]
    assert all(seen[i] == seen[i + 3] for i in range(27))
    assert set(seen) == {"x", "y", "z"}


def test_best_effort_queries_take_no_turns_of_strict_ones() -> None:
    """They are promised nothing: a window of strict queries has no more of a place's for those that come between."""
    shares = {"x": 0.25, "y": 0.75}
    placements = tuple(
        Placement(app="a", device=d, slice="whole", variants=("v",), share=share, max_batch=8)
        for d, share in shares.items()
    )
    both = PlanActivated(Plan(epoch=Epoch(1, 1), created=0.0, placements=placements))
    alone, mixed = StreamRouting("a"), StreamRouting("a")
    for policy in (alone, mixed):
        policy.handle(both, 0.0)
    others: Counter[str] = Counter()
    for strict in range(40):
        others.update(place(mixed, "", QueryClass.BEST_EFFORT) for _ in range(strict % 3))
        assert place(mixed, "") == place(alone, "")
    assert others["x"] * 2 < others["y"] < others["x"] * 4


def test_a_stream_stays_and_only_those_of_a_lost_device_move() -> None:
    policy = StreamRouting("a")
    policy.handle(plan(1, "x", "y", "z"), 0.0)
    before = {f"s{i}": place(policy, f"s{i}") for i in range(600)}
    assert all(place(policy, stream) == device for stream, device in before.items())
    policy.handle(plan(2, "x", "z"), 1.0)
    after = {stream: place(policy, stream) for stream in before}
    assert {before[s] for s in before if after[s] != before[s]} == {"y"}
    assert all(count > 120 for count in Counter(before.values()).values())


def test_two_routers_agree_on_every_place() -> None:
    one, other = StreamRouting("a"), StreamRouting("a")
    for policy in (one, other):
        policy.handle(plan(1, "x", "y"), 0.0)
    assert [place(one, f"s{i}") for i in range(50)] == [place(other, f"s{i}") for i in reversed(range(50))][::-1]


def test_without_capacity_it_drops_and_before_a_plan_it_complains() -> None:
    policy = StreamRouting("a")
    query = Query("q", "a", 0.0, 1.0)
    with pytest.raises(IllegalEventError):
        policy.handle(Arrived(query), 0.0)
    policy.handle(plan(1), 0.0)
    assert policy.handle(Arrived(query), 0.0) == [Drop(query, Reason.NO_CAPACITY)]
