"""Benchmarks judge and say what was measured: whole rounds, CPU of its own, and no more than was run."""

from bench import soak


def test_a_process_that_does_not_grow_is_not_said_to_where_the_run_lasts_past_its_hour() -> None:
    memory = soak.Memory()
    for number in range(2 * int(soak.HOUR) + 9):
        second = number / 2
        # Low but for the last of every six minutes, so that a few seconds behind the hour hold none of that.
        memory.samples.setdefault("planner", []).append((second, 168.0 + 40.0 * (second % 360.0 < 40.0)))
    (held,) = memory.slopes().values()
    assert held["rounds_mib"] == [[168.0] * 3, [208.0] * 3]
    assert (held["floor_mib_per_hour"], held["ceiling_mib_per_hour"]) == (0.0, 0.0)


def test_growth_is_seen_to_the_end_of_the_run_and_a_run_that_is_shorter_than_a_round_is_one() -> None:
    memory = soak.Memory()
    memory.samples["router"] = [(float(second), 80.0 + 20.0 * second / soak.HOUR) for second in range(3604)]
    assert memory.slopes()["router"]["floor_mib_per_hour"] == 20.0
    assert memory.slopes()["router"]["rounds_mib"][1][-1] == 100.0
    memory.samples["router"] = [(3000.0, 80.0), (3001.0, 81.0)]
    assert memory.slopes()["router"]["rounds_mib"] == [[80.0], [81.0]]
