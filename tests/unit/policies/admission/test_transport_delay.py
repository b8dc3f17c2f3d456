"""Transport of a front's queries: what deadlines allow for it, and whom a host that does not keep up refuses."""

from collections import deque

import pytest

from sluicegate.policies.admission.transport_delay import TransportDelay

EPOCH = 1.7e9
SLO = 0.25


def there_and_back(transport: TransportDelay, sent: float, left: float, held_s: float, now: float) -> None:
    transport.sent("q", sent)
    transport.ended("q", now, left, held_s)


def test_the_way_back_is_what_most_answers_took_and_not_the_way_there() -> None:
    transport = TransportDelay(SLO)
    for number in range(100):
        sent = EPOCH + number
        back = 0.040 if number % 32 == 7 else 0.010 + number * 1e-5
        there_and_back(transport, sent, sent + 0.130, 0.100, sent + 0.130 + back)
    assert transport.way_back == pytest.approx(0.01095, abs=2e-4)


@pytest.mark.parametrize("ahead", [-3.0, 3.0])
def test_a_device_whose_clock_is_off_is_not_taken_for_a_slow_way(ahead: float) -> None:
    transport = TransportDelay(SLO)
    for number in range(64):
        sent = EPOCH + number
        left = sent + 0.105 + number * 1e-4
        there_and_back(transport, sent, left + ahead, 0.100, left + 0.020)
    assert 0.0 <= transport.way_back <= 0.035


def test_old_answers_are_forgotten() -> None:
    transport = TransportDelay(SLO)
    for number in range(400):
        sent, back = EPOCH + number, 0.2 if number < 200 else 0.003
        there_and_back(transport, sent, sent + 0.05, 0.03, sent + 0.05 + back)
    assert transport.way_back == pytest.approx(0.003, abs=1e-6)


def through_a_host(rate: float, capacity: float, seconds: float, *, refusing: bool) -> tuple[float, float]:
    """(answered within the SLO a second, share refused) where a host takes 1/capacity a query, one after the other.

    The device behind it is never the narrow place, and holds each query for 20 ms.
    """
    transport, under_way = TransportDelay(SLO), deque[tuple[str, float, float]]()
    free, on_time, refused = EPOCH, 0, 0
    total = int(rate * seconds)
    for number in range(total):
        now = EPOCH + number / rate
        while under_way and under_way[0][2] <= now:
            query_id, sent, back = under_way.popleft()
            transport.ended(query_id, back, back - 0.001, 0.020)
            on_time += back - sent <= SLO
        if refusing and not transport.comes(now):
            refused += 1
            continue
        transport.sent(str(number), now)
        free = max(free, now) + 1.0 / capacity
        under_way.append((str(number), now, free + 0.020))
    return on_time / seconds, refused / total


@pytest.mark.parametrize("capacity", [100.0, 400.0])
@pytest.mark.parametrize("load", [1.2, 1.5, 3.0, 8.0])
def test_a_host_that_does_not_keep_up_answers_in_time_what_it_can(load: float, capacity: float) -> None:
    without, _ = through_a_host(load * capacity, capacity, 30.0, refusing=False)
    on_time, refused = through_a_host(load * capacity, capacity, 30.0, refusing=True)
    assert without < 0.1 * capacity
    assert on_time >= 0.9 * capacity
    assert refused >= 0.9 * (1.0 - 1.0 / load)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_a_host_that_keeps_up_refuses_nobody(load: float) -> None:
    on_time, refused = through_a_host(load * 200.0, 200.0, 20.0, refusing=True)
    assert refused == 0.0
    assert on_time >= load * 200.0 * 0.98


def test_who_is_overdue_tells_of_a_host_that_answers_nobody() -> None:
    transport = TransportDelay(SLO)
    there_and_back(transport, EPOCH, EPOCH + 0.03, 0.02, EPOCH + 0.031)
    went = []
    for number in range(200):
        now = EPOCH + 0.1 + 0.01 * number
        if transport.comes(now):
            transport.sent(str(number), now)
            went.append(now)
    assert EPOCH + 0.1 + SLO < went[-1] < EPOCH + 0.1 + 2 * SLO


def test_one_who_asked_for_more_time_does_not_look_like_a_host_that_stands_still() -> None:
    transport = TransportDelay(SLO)
    transport.sent("patient", EPOCH)
    for number in range(100):
        now = EPOCH + 0.1 * number
        assert all(_sent(transport, f"{number} {other}", now) for other in range(10))
        for other in range(10):
            transport.ended(f"{number} {other}", now + 0.05, now + 0.045, 0.04)


def test_it_recovers_when_nothing_is_under_way_any_more() -> None:
    transport = TransportDelay(SLO)
    for number in range(20):
        there_and_back(transport, EPOCH + 0.1 * number, EPOCH + 0.1 * number + 0.3, 0.01, EPOCH + 0.1 * number + 0.301)
    assert not all(_sent(transport, f"burst {number}", EPOCH + 3.0) for number in range(50))
    for number in range(50):
        transport.ended(f"burst {number}", EPOCH + 3.1)
    for number in range(20):
        assert _sent(transport, f"calm {number}", EPOCH + 4.0 + number)
        transport.ended(f"calm {number}", EPOCH + 4.03 + number, EPOCH + 4.02 + number, 0.01)
    assert all(_sent(transport, f"again {number}", EPOCH + 30.0) for number in range(50))


def _sent(transport: TransportDelay, query_id: str, now: float) -> bool:
    if transport.comes(now):
        transport.sent(query_id, now)
        return True
    return False


def test_the_way_back_is_not_reckoned_anew_for_each_answer() -> None:
    transport = TransportDelay(SLO)
    told = []
    for number in range(400):
        sent = EPOCH + number
        there_and_back(transport, sent, sent + 0.05, 0.03, sent + 0.05 + 0.001 * number)
        told.append(transport.way_back)
    assert len(set(told[:15])) > 10
    assert len(set(told[240:])) == len(range(240, 400, 16)) + 1


def test_a_burst_is_let_in_whole() -> None:
    transport = TransportDelay(SLO)
    for number in range(50):
        sent = EPOCH + number * 0.01
        there_and_back(transport, sent, sent + 0.03, 0.025, sent + 0.031)
    assert all(_sent(transport, str(number), EPOCH + 0.5 + 1e-5 * number) for number in range(1000))


def transported(transport: TransportDelay, there: float, back: float, at: float = EPOCH, held_s: float = 0.25) -> None:
    """An answer that comes back at ``at``."""
    left = at - back
    there_and_back(transport, left - held_s - there, left, held_s, at)


def test_a_host_is_behind_above_a_quarter_of_the_slo_and_keeps_up_again_below_an_eighth() -> None:
    """Of the latest nine answers the median counts."""
    transport = TransportDelay(1.0)
    found = []
    answers = [(0.125, 0.125), (0.125, 0.25), *[(0.0625, 0.0625)] * 3, *[(0.0625, 0.03125)] * 5]
    for there, back in answers:
        transported(transport, there, back)
        assert transport.comes(EPOCH), "nothing is under way"
        found.append(transport.behind)
    assert found == [False] + [True] * 8 + [False]


def test_behind_it_sends_four_and_more_where_more_come_back_while_devices_hold_them() -> None:
    """Twenty come back in a second; a quarter of it transport may take, and a quarter of it devices hold them."""
    transport = TransportDelay(1.0)
    transported(transport, 0.25, 0.25)
    assert [_sent(transport, f"few {number}", EPOCH) for number in range(6)] == [True] * 4 + [False] * 2
    transport.ended("few 0", EPOCH)
    assert _sent(transport, "another", EPOCH) and not _sent(transport, "one more", EPOCH)
    for number in (1, 2, 3):
        transport.ended(f"few {number}", EPOCH)
    transport.ended("another", EPOCH)
    for _ in range(19):
        transported(transport, 0.25, 0.25, EPOCH + 0.75)
    transported(transport, 0.25, 0.25, EPOCH + 1.0)
    assert [_sent(transport, f"many {number}", EPOCH + 1.0) for number in range(12)] == [True] * 10 + [False] * 2


def test_the_way_back_allows_for_all_but_one_in_twenty_and_for_what_clocks_differ() -> None:
    """The device's clock is half a second behind: the way there seems to take less than nothing."""
    transport = TransportDelay(1.0)
    for back in (0.25, 0.125):
        transported(transport, 0.0625, back)
    assert transport.way_back == 0.25
    off = TransportDelay(1.0)
    for back in (0.25, 0.125):
        off.sent("q", EPOCH)
        off.ended("q", EPOCH + 0.5 + back, EPOCH, 0.25)  # by its own clock it was done as the query was sent
    assert off.way_back == 0.5
