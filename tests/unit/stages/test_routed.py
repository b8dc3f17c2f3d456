"""Apps that nobody routes: said once, queries held for a router that is just starting, then given up."""

from sluicegate.stages.following.routed_apps import COMING_BACK, PATIENCE, SILENCE, RoutedApps

START = 1000.0


class Door:
    """Offers queries and takes down what became of them."""

    def __init__(self, *apps: str, limit: int = 10) -> None:
        self.routed = RoutedApps(apps, START, limit=limit)
        self.ends: list[str] = []

    def offer(self, app: str, name: str, now: float, wait: float = 60.0) -> None:
        ends = self.ends

        def give_up(nothing_routes: bool) -> None:
            ends.append(f"{name} given up" if nothing_routes else f"{name} given up early")

        self.routed.offer(app, now, wait, lambda: ends.append(f"{name} on"), give_up)

    def said(self, now: float) -> list[tuple[str, str]]:
        return [(one.subject, one.state) for one in self.routed.looked(now)]


def test_an_app_without_a_router_is_said_once_and_so_is_its_return() -> None:
    door = Door("a", "b")
    door.routed.heard("b", START + SILENCE - 0.5)
    assert door.said(START + SILENCE - 0.01) == []
    assert door.said(START + SILENCE) == [("routing:a", "nothing_routes")]
    assert door.said(START + SILENCE + 0.1) == []
    door.routed.heard("a", START + SILENCE + 0.2)
    assert door.said(START + SILENCE + 0.3) == [("routing:a", "routed")]
    assert door.said(START + 2 * SILENCE - 0.5) == [("routing:b", "nothing_routes")]


def test_queries_of_an_app_that_was_never_routed_are_held_and_then_given_up() -> None:
    door = Door("a", "b")
    door.routed.heard("b", START)
    door.offer("a", "long", START + 5, wait=60.0)
    door.offer("a", "short", START + 5, wait=0.5)
    door.offer("b", "other", START + 5)
    assert door.ends == ["other on"]
    door.routed.looked(START + 5.4)
    assert door.ends == ["other on"]
    door.routed.looked(START + 5.5)
    assert door.ends[1:] == ["short given up"]
    door.routed.looked(START + 5 + PATIENCE)
    assert door.ends[2:] == ["long given up"]


def test_what_is_held_goes_on_in_order_when_a_router_comes() -> None:
    door = Door("a")
    for name in ("first", "second"):
        door.offer("a", name, START + 1)
    door.routed.heard("z", START + 1.5)
    assert door.ends == []
    door.routed.heard("a", START + 1.5)
    door.offer("a", "third", START + 1.6)
    assert door.ends == ["first on", "second on", "third on"]


def test_a_router_that_died_is_waited_for_by_its_queries_but_said_to_be_gone() -> None:
    door = Door("a")
    door.routed.heard("a", START + 100)
    assert door.said(START + 100 + SILENCE) == [("routing:a", "nothing_routes")]
    door.offer("a", "soon", START + 100 + COMING_BACK - 0.1)
    assert door.ends == ["soon on"]
    door.offer("a", "too late", START + 100 + COMING_BACK)
    door.routed.looked(START + 100 + COMING_BACK + PATIENCE)
    assert door.ends[1:] == ["too late given up"]


def test_no_more_are_held_than_the_limit_nor_past_their_deadline_nor_of_an_app_that_is_gone() -> None:
    door = Door("a", limit=2)
    door.offer("a", "expired", START, wait=0.0)
    for name in ("one", "two", "three"):
        door.offer("a", name, START)
    assert door.ends == ["expired given up early", "three given up early"]
    door.routed.watch(["b"], START + 1)
    assert door.ends[2:] == ["one given up early", "two given up early"]
    assert door.said(START + 1 + SILENCE) == [("routing:b", "nothing_routes")], "watched since then only"


def test_a_deadline_that_passes_while_a_router_may_just_be_starting_is_told_apart() -> None:
    door = Door("a")
    door.offer("a", "short", START + 1, wait=SILENCE - 1.01)
    door.offer("a", "a little longer", START + 1, wait=SILENCE - 1.0)
    door.routed.looked(START + SILENCE - 0.01)
    assert door.ends == ["short given up early"]
    door.routed.looked(START + SILENCE)
    assert door.ends[1:] == ["a little longer given up"]
