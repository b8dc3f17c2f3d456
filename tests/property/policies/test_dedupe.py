"""The window of queries: what it must remember, what it must forget, and how many it holds."""

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.policies.admission.dedupe import DedupeWindow

SECONDS = 8.0
SPAN = SECONDS / 8
steps = st.lists(st.tuples(st.integers(0, 30), st.sampled_from((0.0, 0.1, 0.9, 1.0, 3.0, 7.5, 30.0))), max_size=200)


@given(steps)
def test_an_id_is_remembered_for_the_window_and_an_eighth_of_it_longer_at_most(steps: list[tuple[int, float]]) -> None:
    window, added, now = DedupeWindow(SECONDS, 10_000), dict[str, float](), 0.0
    for place, (number, wait) in enumerate(steps):
        now += wait
        query_id = str(number)
        since = now - added.get(query_id, -1e9)
        new = window.add("toy", "/a", query_id, place, now)
        if since <= SECONDS:
            assert not new
        if since > SECONDS + SPAN + 1e-9:
            assert new
        if new:
            added[query_id] = now


@given(st.integers(1, 60), st.integers(1, 200))
def test_a_full_window_keeps_the_newest_and_no_more_than_it_may(entries: int, queries: int) -> None:
    window = DedupeWindow(1e9, entries)
    for number in range(queries):
        assert window.add("toy", "/a", str(number), number, 0.0)
        assert sum(map(len, window._generations)) <= entries
    share = max(1, entries // 9)
    kept = min(queries, (entries // share - 1) * share + 1)
    assert not any(window.add("toy", "/a", str(number), -1, 0.0) for number in range(queries - kept, queries))


def test_the_same_record_read_again_is_no_second_asking() -> None:
    window = DedupeWindow(SECONDS, 10)
    assert window.add("toy", "/a", "a", 7, 0.0)
    assert window.add("toy", "/a", "a", 7, 1.0)
    assert not window.add("toy", "/a", "a", 8, 1.0)


def test_an_id_is_its_apps_and_its_sources() -> None:
    window = DedupeWindow(SECONDS, 10)
    asked = (("toy", "/a", "q"), ("toy", "/b", "q"), ("other", "/a", "q"), ("toy", "", "q"), ("toy", "/a/q", ""))
    assert all(window.add(*query, place, 0.0) for place, query in enumerate(asked))
    assert not any(window.add(*query, 100 + place, 1.0) for place, query in enumerate(asked))
