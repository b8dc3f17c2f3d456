"""Damaged records: a small part of what bench/records/mutations.py does a million times."""

from bench.records.mutations import examine, faults

NOW = 1.75e9


async def test_damaged_records_end_in_one_letter_each_or_are_refused_and_nothing_grows() -> None:
    found, memory = await examine(20_000, seed=11)
    assert not found.crashes, found.crashes
    assert faults(found, memory) == []
    assert found.records == 20_000 == sum(found.ends.values())
    assert all(found.ends[end] > 50 for end in ("query results", "query dead-letters", "query admitted", "other read"))


async def test_the_same_seed_damages_records_in_the_same_way() -> None:
    (one, _), (two, _) = await examine(300, seed=5, now=NOW), await examine(300, seed=5, now=NOW)
    assert one.ends == two.ends
