"""Promises announced as not to be counted on: told with the first reason of an app, withdrawn with its last."""

from math import inf

from sluicegate.domain.actions import Announce
from sluicegate.policies.promises.notices import PromiseNotices

T = 1.7e9


def unsafe(app: str, why: str) -> list[Announce]:
    return [Announce(f"app:{app}", "safe_mode", why)]


def kept(app: str, why: str) -> list[Announce]:
    return [Announce(f"app:{app}", "promise_kept", why)]


def test_of_several_reasons_the_first_is_told_and_the_last_to_go() -> None:
    notices = PromiseNotices()
    assert notices.begin("a", "missed", "nothing is hosted") == unsafe("a", "nothing is hosted")
    assert notices.begin("a", "missed", "still") == []
    assert notices.begin("a", "twice", "copies") == []
    assert notices.begin("b", "twice", "copies of b") == unsafe("b", "copies of b"), "another app has its own"
    assert notices.end("a", "missed", "hosted") == []
    assert notices.end("a", "missed", "again") == []
    assert notices.end("a", "twice", "no copies") == kept("a", "no copies")
    assert notices.end("a", "twice", "again") == []
    assert notices.begin("a", "twice", "copies") == unsafe("a", "copies")


def test_a_reason_with_a_time_goes_by_itself_when_that_has_come_and_may_be_given_longer() -> None:
    notices = PromiseNotices()
    assert notices.due == inf
    notices.begin("a", "twice", "copies", T + 2)
    notices.begin("b", "missed", "nothing is hosted")
    notices.begin("b", "twice", "copies", T + 1)
    assert notices.due == T + 1
    assert notices.over(T + 1.5) == [], "b is missed yet"
    assert notices.due == T + 2
    notices.begin("a", "twice", "copies", T + 3)
    assert notices.over(T + 2.5) == []
    assert notices.over(T + 3) == kept("a", "twice no more")
    assert notices.due == inf
    assert notices.end("b", "missed", "hosted") == kept("b", "hosted")
