"""Apps that nobody routes: said once, queries held for a router that is just starting, then given up."""

from sluicegate.domain.query import Query
from sluicegate.policies.serving.routed import COMING_BACK, PATIENCE, SILENCE, GivenUp, RoutedApps

START = 1000.0


class Door:
    """Offers queries and takes down what became of them."""

    def __init__(self, *apps: str, most: int = 10) -> None:
        self.routed = RoutedApps(most=most)
        self.routed.watch(apps, START)
        self.ends: list[str] = []

    def offer(self, app: str, name: str, now: float, wait: float = 60.0) -> None:
        if self.routed.reads(app, now):
            self.ends.append(f"{name} on")
        else:
            one = self.routed.hold(Query(name, app, 0.0, wait), now, wait)
            self._gone([one] if one is not None else [])

    def heard(self, app: str, now: float) -> list[str]:
        released, said = self.routed.heard(app, now)
        self.ends += [f"{query.id} on" for query in released]
        return [one.state for one in said]

    def looked(self, now: float) -> list[tuple[str, str]]:
        given_up, said = self.routed.looked(now)
        self._gone(given_up)
        return [(one.subject, one.state) for one in said]

    def watch(self, *apps: str, now: float) -> None:
        self._gone(self.routed.watch(apps, now))

    def _gone(self, given_up: list[GivenUp]) -> None:
        for one in given_up:
            self.ends.append(f"{one.query.id} {'unrouted' if one.nobody else 'early'}{' due' if one.due else ''}")


def test_an_app_without_a_router_is_said_once_and_so_is_its_return() -> None:
    door = Door("a", "b")
    assert door.routed.due == START + SILENCE
    door.heard("b", START + SILENCE - 0.5)
    assert door.looked(START + SILENCE - 0.01) == []
    assert door.looked(START + SILENCE) == [("routing:a", "nothing_routes")]
    assert door.routed.due == START + 2 * SILENCE - 0.5
    assert door.looked(START + SILENCE + 0.1) == []
    assert door.heard("a", START + SILENCE + 0.2) == ["routed"]
    assert door.heard("a", START + SILENCE + 0.3) == []
    assert door.looked(START + 2 * SILENCE - 0.5) == [("routing:b", "nothing_routes")]


def test_queries_of_an_app_that_was_never_routed_are_held_and_then_given_up() -> None:
    door = Door("a", "b")
    door.heard("b", START)
    door.looked(START + SILENCE)
    door.offer("a", "long", START + 5, wait=60.0)
    door.offer("a", "short", START + 5, wait=0.5)
    door.offer("b", "other", START + 5)
    assert door.ends == ["other on"]
    assert door.routed.due == START + 5.5
    door.looked(START + 5.4)
    assert door.ends == ["other on"]
    door.looked(START + 5.5)
    assert door.ends[1:] == ["short unrouted due"]
    door.looked(START + 5 + PATIENCE)
    assert door.ends[2:] == ["long unrouted"]


def test_what_is_held_goes_on_in_order_when_a_router_comes() -> None:
    door = Door("a")
    for name in ("first", "second"):
        door.offer("a", name, START + 1)
    door.heard("z", START + 1.5)
    assert door.ends == []
    door.heard("a", START + 1.5)
    door.offer("a", "third", START + 1.6)
    assert door.ends == ["first on", "second on", "third on"]


def test_a_router_that_died_is_waited_for_by_its_queries_but_said_to_be_gone() -> None:
    door = Door("a")
    door.heard("a", START + 100)
    assert door.looked(START + 100 + SILENCE) == [("routing:a", "nothing_routes")]
    door.offer("a", "soon", START + 100 + COMING_BACK - 0.1)
    assert door.ends == ["soon on"]
    door.offer("a", "too late", START + 100 + COMING_BACK)
    door.looked(START + 100 + COMING_BACK + PATIENCE)
    assert door.ends[1:] == ["too late unrouted"]


def test_no_more_are_held_than_the_limit_nor_past_their_deadline_nor_of_an_app_that_is_gone() -> None:
    door = Door("a", most=2)
    door.offer("a", "expired", START, wait=0.0)
    for name in ("one", "two", "three"):
        door.offer("a", name, START)
    assert door.ends == ["expired early due", "three early"]
    door.watch("b", now=START + 1)
    assert door.ends[2:] == ["one early", "two early"]
    assert door.looked(START + 1 + SILENCE) == [("routing:b", "nothing_routes")], "watched since then only"


def test_a_deadline_that_passes_while_a_router_may_just_be_starting_is_told_apart() -> None:
    door = Door("a")
    door.offer("a", "short", START + 1, wait=SILENCE - 1.01)
    door.offer("a", "a little longer", START + 1, wait=SILENCE - 1.0)
    door.looked(START + SILENCE - 0.01)
    assert door.ends == ["short early due"]
    door.looked(START + SILENCE)
    assert door.ends[1:] == ["a little longer unrouted due"]
