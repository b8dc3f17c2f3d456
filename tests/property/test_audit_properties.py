"""The auditor itself: whatever lies on the topics, in any order, it counts what a plain recount does, and sees lies."""

from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.actions import Announce
from sluicegate.domain.models.app import Promise, QueryClass, WeaklyHard
from sluicegate.domain.outcome import Outcome, OutcomeKind, PromiseState
from sluicegate.domain.query import QueryKey
from sluicegate.sluice.audit.fault_windows import MARGIN, DevicesMissed, FaultWindow, report_by_window
from sluicegate.sluice.audit.promise_audit import PromiseAudit, StreamReport
from sluicegate.sluice.audit.topic_audit import Audit, AuditReport
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

TOPICS = Topics("t")
T0 = 1.8e9
KEYS = [QueryKey(app, source, name) for app in ("cats", "words") for source in ("/a", "/b") for name in ("1", "2")]
"""One id of two sources and two apps: four queries."""


@dataclass(frozen=True)
class Fate:
    """What lies there of one query: its records, what is said of each, and its outcomes (kind, late, marked late)."""

    key: QueryKey
    said: tuple[str | None, ...]
    ends: tuple[tuple[OutcomeKind, bool, bool], ...]


ENDS = st.tuples(st.sampled_from(OutcomeKind), st.booleans(), st.booleans())
SAID = st.sampled_from([None, None, codec.DUPLICATE_ID, "invalid", "unreadable"])
FATES = st.lists(
    st.builds(
        Fate, st.sampled_from(KEYS), st.lists(SAID, max_size=3).map(tuple), st.lists(ENDS, max_size=3).map(tuple)
    ),
    unique_by=lambda fate: fate.key,
)
"""Without a record: an outcome that nobody asked for."""


def outcome(key: QueryKey, kind: OutcomeKind, late: bool) -> Outcome:
    """Its deadline is 1 s after it was asked."""
    at = T0 + 3.0 if late else T0 + 0.5
    return Outcome(
        query_id=key.id, app=key.app, source=key.source, kind=kind, arrival=T0, deadline=T0 + 1.0, at=at, accuracy=0.5
    )


def result(key: QueryKey, kind: OutcomeKind, late: bool, marked: bool) -> Record:
    message = codec.encode_outcome(outcome(key, kind, late), ())
    value = message.value.replace(b'"late":false', b'"late":true') if marked else message.value
    value = value if marked else value.replace(b'"late":true', b'"late":false')
    return Record(TOPICS.results(key.app), 0, 0, message.key, value, message.headers, T0)


def letters(fate: Fate, number: int) -> tuple[list[Record], list[Record]]:
    """Its records, and what dead letters say of them."""
    asked, dead = [], []
    for copy, said in enumerate(fate.said):
        message = codec.encode_query(fate.key.id, (), app=fate.key.app, now=T0, source=fate.key.source[1:])
        place = (TOPICS.queries(fate.key.app), number % 2, 10 * number + copy)
        asked.append(Record(*place, message.key, message.value, message.headers, T0 + number))
        if said is not None:
            about = zip(("topic", "partition", "offset", "reason"), (*map(str, place), said), strict=True)
            headers = tuple((f"__dlq.errors.{name}", told.encode()) for name, told in about)
            dead.append(Record(TOPICS.dead_letters, 0, 0, None, b"", headers, T0))
    return asked, dead


def audited(fates: list[Fate], rng: Random) -> AuditReport:
    """The auditor's, of all that lies there in a random order."""
    audit = Audit(TOPICS)
    steps = []
    for number, fate in enumerate(fates):
        asked, dead = letters(fate, number)
        steps += [(audit.add_query, record) for record in asked]
        steps += [(audit.add_dead_letter, record) for record in dead]
        steps += [(audit.add_result, result(fate.key, *end)) for end in fate.ends]
    steps.append((audit.add_result, Record(TOPICS.results("cats"), 0, 0, None, b"{}", (), T0)))
    rng.shuffle(steps)
    for take, record in steps:
        take(record)
    return audit.report()


@given(FATES, st.randoms(use_true_random=False))
def test_it_counts_what_a_plain_recount_counts(fates: list[Fate], rng: Random) -> None:
    report = audited(fates, rng)
    known = [fate for fate in fates if fate.said]
    expected = [f for f in known if any(said in (None, codec.DUPLICATE_ID) for said in f.said)]
    assert report.queries == sum(len(f.said) for f in fates)
    assert report.outcomes == sum(len(f.ends) for f in fates)
    unended = sum(max(0, f.said.count(None) - len(f.ends)) for f in known)
    assert report.lost == unended + sum(not f.ends and None not in f.said for f in expected)
    twice = {f.key: len(f.ends) - (f in expected or not f.said) for f in fates}
    beyond = {f.key: len(f.ends) - f.said.count(None) for f in known}  # each record with a dead letter has its end
    assert report.duplicates == sum(max(0, n, beyond.get(key, 0)) for key, n in twice.items())
    assert report.unknown == sum(bool(f.ends) and not f.said for f in fates)
    assert report.max_copies == max((len(f.ends) for f in fates), default=0)
    answered = OutcomeKind.ANSWERED
    assert report.late_unmarked == sum(k is answered and late != marked for f in fates for k, late, marked in f.ends)
    assert report.kinds == {
        **dict.fromkeys(OutcomeKind, 0),
        **Counter(kind for f in fates for kind, _, _ in f.ends),
    }
    assert report.dead_letters == sum(said is not None for f in fates for said in f.said)
    assert report.duplicate_ids == sum(said == codec.DUPLICATE_ID for f in fates for said in f.said)
    assert report.unreadable == 1
    assert report.summary.queries == sum(bool(f.ends) for f in fates) + report.lost
    assert report.summary.queries == sum(app["queries"] for app in report.summary.per_app.values())
    assert report.balanced == (not (report.lost or report.duplicates or report.unknown or report.late_unmarked))


HONEST = [
    Fate(key, (None,), ((OutcomeKind.ANSWERED, late, late),)) for key, late in zip(KEYS, [True, False] * 4, strict=True)
]


@pytest.mark.parametrize("number", range(len(KEYS)))
@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"ends": ()}, "lost"),
        ({"ends": ((OutcomeKind.EXPIRED, True, False), (OutcomeKind.ANSWERED, False, False))}, "duplicates"),
        ({"said": (codec.DUPLICATE_ID,)}, "duplicates"),
        ({"said": (codec.DUPLICATE_ID, codec.DUPLICATE_ID)}, "duplicates"),
        ({"said": ("invalid", codec.DUPLICATE_ID)}, "duplicates"),
        ({"said": ()}, "unknown"),
        ({"ends": ((OutcomeKind.ANSWERED, True, False),)}, "late_unmarked"),
        ({"ends": ((OutcomeKind.ANSWERED, False, True),)}, "late_unmarked"),
    ],
)
def test_one_lie_among_honest_outcomes_is_told_with_its_query(
    number: int, change: dict[str, tuple[()]], seen: str
) -> None:
    assert audited(HONEST, Random(1)).balanced
    fates = [replace(fate, **change) if i == number else fate for i, fate in enumerate(HONEST)]  # type: ignore[arg-type]
    report = audited(fates, Random(number))
    assert not report.balanced
    found = {name: getattr(report, name) for name in ("lost", "duplicates", "unknown", "late_unmarked")}
    assert found == {**dict.fromkeys(found, 0), seen: 1}
    assert report.examples[seen] == (KEYS[number].id,)


# Promises.

PROMISE = Promise(max_consecutive=2, weakly_hard=(WeaklyHard(2, 5),))
PLACES = (("d1", "left"), ("d1", "right"))
STREAM = st.lists(st.tuples(st.booleans(), st.sampled_from(PLACES)), max_size=24)
"""In the order of the stream: missed, and the slice that it went to."""


def run_of(misses: list[bool]) -> int:
    """The longest run, by trying all."""
    return max(n for n in range(len(misses) + 1) if any(all(misses[i : i + n]) for i in range(len(misses) - n + 1)))


def worst_of(misses: list[bool], k: int) -> int:
    return max((sum(misses[max(0, i - k + 1) : i + 1]) for i in range(len(misses))), default=0)


def state_of(misses: list[bool]) -> PromiseState:
    return PromiseState(
        max_consecutive=2,
        weakly_hard=((2, 5),),
        turns=2,
        queries=len(misses),
        misses=sum(misses),
        mcd=run_of(misses),
        worst=((3, worst_of(misses, 3)), (5, worst_of(misses, 5))),
    )


def ended(order: int, missed: bool, place: tuple[str, str], state: PromiseState) -> Outcome:
    kind = OutcomeKind.DROPPED if missed else OutcomeKind.ANSWERED
    return Outcome(
        query_id=f"q{order}",
        app="vow",
        stream="s",
        kind=kind,
        query_class=QueryClass.STRICT,
        arrival=T0,
        deadline=T0 + 100.0,
        at=T0,
        device=place[0],
        slice=place[1],
        promise=state,
    )


def judged(
    stream: list[tuple[bool, tuple[str, str]]], rng: Random, lie: dict[tuple[str, str], PromiseState]
) -> StreamReport:
    """The auditor's report. Each slice tells its own tracker, ``lie`` what it tells last instead."""
    audit = PromiseAudit()
    ends = []
    own: dict[tuple[str, str], list[bool]] = {place: [] for place in PLACES}
    for order, (missed, place) in enumerate(stream):
        own[place].append(missed)
        ends.append([7 * order, missed, place, state_of(own[place])])
    for place, state in lie.items():
        last = [end for end in ends if end[2] == place][-1]
        last[3] = state
    rng.shuffle(ends)
    for order, missed, place, state in ends:
        audit.add_outcome(ended(order, missed, place, state), order, T0 + order)
    (report,) = audit.report()
    return report


@given(STREAM.filter(bool), st.randoms(use_true_random=False))
def test_a_stream_is_recounted_whatever_the_order_in_which_it_ended(
    stream: list[tuple[bool, tuple[str, str]]], rng: Random
) -> None:
    report = judged(stream, rng, {})
    misses = [missed for missed, _ in stream]
    assert (report.queries, report.misses, report.mcd) == (len(misses), sum(misses), run_of(misses))
    assert report.worst == {3: worst_of(misses, 3), 5: worst_of(misses, 5)}
    assert report.agrees
    broken = sum(
        missed and (sum(misses[max(0, i - 4) : i + 1]) > 2 or sum(misses[max(0, i - 2) : i + 1]) > 2)
        for i, missed in enumerate(misses)
    )
    assert (report.broken, report.unannounced) == (broken, broken)
    assert report.kept == (not broken)


TERMS = st.sampled_from([None, None, (1, 3), (2, 5), (0, 2), (3, 4)])


@given(st.lists(st.tuples(st.booleans(), TERMS), min_size=1, max_size=24))
def test_each_miss_is_judged_by_what_was_promised_when_it_ended(
    stream: list[tuple[bool, tuple[int, int] | None]],
) -> None:
    """One that says nothing of it goes by those before, else by those behind it."""
    audit = PromiseAudit()
    for order, (missed, terms) in enumerate(stream):
        state = PromiseState(weakly_hard=(terms,)) if terms is not None else None
        audit.add_outcome(replace(ended(order, missed, PLACES[0], state_of([])), promise=state), order, T0 + order)
    broken, told = 0, [terms for _, terms in stream if terms is not None]
    for i, (missed, _) in enumerate(stream):
        if missed and told:
            m, k = ([terms for _, terms in stream[: i + 1] if terms is not None] or told[:1])[-1]
            broken += sum(before for before, _ in stream[max(0, i - k + 1) : i + 1]) > m
    reports = audit.report()
    assert [(one.broken, one.unannounced, one.kept) for one in reports] == (
        [(broken, broken, not broken)] if told else []
    )


SAID_AT = st.integers(0, 24).map(lambda n: n + 0.5)


@given(
    st.lists(st.booleans(), min_size=1, max_size=24),
    st.dictionaries(SAID_AT, st.tuples(TERMS.filter(bool), st.booleans()), max_size=6),
    st.randoms(use_true_random=False),
)
def test_a_stream_that_says_nothing_goes_by_what_was_said_of_its_app_at_that_time(
    stream: list[bool], said: dict[float, tuple[tuple[int, int], bool]], rng: Random
) -> None:
    """By outcomes of another stream, or by the registry."""
    audit = PromiseAudit()
    for at, (terms, registered) in rng.sample(sorted(said.items()), len(said)):
        if registered:
            audit.add_promise("vow", Promise(weakly_hard=(WeaklyHard(*terms),)), T0 + at)
        else:
            state = PromiseState(weakly_hard=(terms,))
            audit.add_outcome(replace(ended(0, False, PLACES[0], state), stream=f"told {at}"), 0, T0 + at)
    for order, missed in rng.sample(list(enumerate(stream)), len(stream)):
        audit.add_outcome(replace(ended(order, missed, PLACES[0], state_of([])), promise=None), order, T0 + order)
    broken = 0
    for i, missed in enumerate(stream):
        if missed and said:
            m, k = said[max((at for at in said if at <= i), default=min(said))][0]
            broken += sum(stream[max(0, i - k + 1) : i + 1]) > m
    reports = [report for report in audit.report() if report.stream == "s"]
    assert [(one.broken, one.kept, one.agrees) for one in reports] == ([(broken, not broken, True)] if said else [])


@given(
    STREAM.filter(lambda s: {place for _, place in s} == set(PLACES)),
    st.sampled_from(PLACES),
    st.sampled_from(["mcd", "worst", "queries"]),
    st.randoms(use_true_random=False),
)
def test_one_slice_of_two_whose_tracker_lies_is_seen(
    stream: list[tuple[bool, tuple[str, str]]], liar: tuple[str, str], about: str, rng: Random
) -> None:
    honest = state_of([missed for missed, place in stream if place == liar])
    told = {
        "mcd": replace(honest, mcd=honest.mcd + 1),
        "worst": replace(honest, worst=((3, honest.worst[0][1]), (5, honest.worst[1][1] + 1))),
        "queries": replace(honest, queries=honest.queries + 1),
    }
    assert not judged(stream, rng, {liar: told[about]}).agrees
    assert judged(stream, rng, {}).agrees


SPELLS = st.lists(st.tuples(st.integers(0, 90), st.sampled_from(["d1", "d2"])), max_size=6, unique_by=lambda s: s[0])


@given(STREAM.filter(bool), SPELLS)
def test_who_announced_safe_mode_within_the_window_is_believed_and_nobody_else(
    stream: list[tuple[bool, tuple[str, str]]], said: list[tuple[int, str]]
) -> None:
    """Announcers turn safe mode on and off by turns; times are half seconds off those of outcomes."""
    audit = PromiseAudit()
    misses = [missed for missed, _ in stream]
    for order, (missed, place) in enumerate(stream):
        audit.add_outcome(ended(order, missed, place, state_of([missed])), order, T0 + order)
    on: dict[str, list[float]] = {"d1": [], "d2": []}
    for at, who in sorted(said):
        state = "promise_kept" if len(on[who]) % 2 else "safe_mode"
        on[who].append(T0 + 0.25 * at + 0.1)
        audit.add_status(f"app:vow@{who}", Announce("app:vow", state, ""), on[who][-1])

    def announced(first: float, last: float) -> bool:
        moments = [first + 0.05 * i for i in range(round((last - first) / 0.05) + 1)]
        return any(sum(t <= moment for t in times) % 2 for times in on.values() for moment in moments)

    silent = 0
    at = [i for i, missed in enumerate(misses) if missed]
    for number, i in enumerate(at):
        for m, k in ((2, 3), (2, 5)):
            if number >= m and i - at[number - m] < k:
                silent += not announced(T0 + at[number - m], T0 + i)
                break
    (report,) = audit.report()
    assert report.unannounced == silent == len(report.unannounced_at)


# Windows.

MOMENTS = st.integers(0, 40).map(lambda n: T0 + n / 2)
WINDOWS = st.lists(
    st.tuples(MOMENTS, st.integers(0, 20)).map(lambda w: FaultWindow(name="w", began=w[0], ended=w[0] + w[1]))
)


@given(
    WINDOWS,
    st.dictionaries(st.sampled_from(KEYS), MOMENTS),
    st.sets(st.sampled_from(KEYS)),
    st.dictionaries(st.sampled_from(KEYS), st.integers(1, 3)),
    st.lists(st.sampled_from(KEYS)),
    st.lists(MOMENTS),
)
def test_a_window_counts_what_lies_between_its_ends_and_nothing_else(
    windows: list[FaultWindow],
    asked: dict[QueryKey, float],
    lost: set[QueryKey],
    copies: dict[QueryKey, int],
    late: list[QueryKey],
    broken: list[float],
) -> None:
    found = report_by_window(
        windows, asked, lost=lost, duplicates=copies, late_unmarked=late, broken_at=broken, unannounced_at=broken[::2]
    )
    assert [(w.name, w.began, w.ended) for w in found] == [(w.name, w.began, w.ended) for w in windows]
    for window in found:
        inside = {key for key, at in asked.items() if window.began <= at <= window.ended}
        assert window.queries == len(inside)
        assert window.lost == len(inside & lost)
        assert window.duplicates == sum(n for key, n in copies.items() if key in inside)
        assert window.late_unmarked == sum(key in inside for key in late)
        assert window.promises_broken == sum(window.began <= at <= window.ended for at in broken)
        assert window.promises_unannounced == sum(window.began <= at <= window.ended for at in broken[::2])


def test_devices_that_were_missed_have_windows_of_their_own_with_a_margin() -> None:
    missed = DevicesMissed()
    for subject, state, at in (
        ("device:d1", "lost", 10.0),
        ("device:d2", "joined", 11.0),  # was not missed
        ("device:d2", "lost", 20.0),
        ("device:d1", "lost", 25.0),  # is missed already
        ("app:d1", "joined", 26.0),
        ("device:d1", "restarted", 30.0),
    ):
        missed.add(Announce(subject, state, ""), T0 + at)
    assert missed.windows(T0 + 50.0) == (
        FaultWindow(name="d1 missed", began=T0 + 10.0 - MARGIN, ended=T0 + 30.0 + MARGIN),
        FaultWindow(name="d2 missed", began=T0 + 20.0 - MARGIN, ended=T0 + 50.0 + MARGIN),
    )


@given(
    st.lists(st.tuples(st.sampled_from([None, *OutcomeKind]), st.floats(0.1, 40.0)), min_size=1, max_size=12),
    st.floats(-10.0, 150.0),
    st.floats(-10.0, 150.0),
)
def test_what_topics_let_go_of_is_neither_lost_nor_unknown_and_all_else_is(
    ends: list[tuple[OutcomeKind | None, float]], queries_until: float, results_until: float
) -> None:
    """One query in 10 s, each ended after a while, or never."""
    asked, said = TOPICS.queries("cats"), TOPICS.results("cats")
    audit = Audit(TOPICS, timed=True)
    kept: list[int] = []
    ended: list[int] = []
    for number in range(len(ends)):
        at, key = T0 + 10.0 * number, QueryKey("cats", "/a", str(number))
        if at >= T0 + queries_until:
            if not kept and queries_until > 0.0:
                audit.let_go(asked, at)
            kept.append(number)
            message = codec.encode_query(key.id, (), app="cats", now=at, source="a")
            audit.add_query(Record(asked, 0, number, message.key, message.value, message.headers, at))
    if not kept:
        audit.let_go(asked, inf)
    results = sorted((10.0 * n + after, n, kind) for n, (kind, after) in enumerate(ends) if kind is not None)
    held = [one for one in results if one[0] >= results_until]
    if len(held) < len(results):
        audit.let_go(said, T0 + held[0][0] if held else inf)
    for after, number, kind in held:
        ended.append(number)
        told = replace(outcome(QueryKey("cats", "/a", str(number)), kind, False), arrival=T0 + 10.0 * number)
        message = codec.encode_outcome(replace(told, at=T0 + after, deadline=T0 + after + 1.0), ())
        audit.add_result(Record(said, 0, number, message.key, message.value, message.headers, T0 + after))
    report = audit.report()
    never = {n for n, (kind, _) in enumerate(ends) if kind is None}
    assert report.unknown == 0
    assert set(report.examples["lost"]) <= {str(n) for n in never}
    if len(held) == len(results):
        assert report.lost == len(never & set(kept))
    since = held[0][0] if held else inf
    surely = {n for n in never & set(kept) if 10.0 * n > since + 5.0 or len(held) == len(results)}
    assert report.lost >= len(surely)
    assert report.gone_by == len(set(kept) - set(ended)) - report.lost + len(set(ended) - set(kept))
