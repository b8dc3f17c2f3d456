"""Ids and words of strangers, as results, explanations and audits show them: to the letter."""

import asyncio
import io
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.profiles.catalogue import registered_apps
from sluicegate.profiles.formats.catalogue_json import AppDocument, PointDocument, ProfileDocument, VariantDocument
from sluicegate.sluice import console
from sluicegate.sluice.audit.fault_windows import FaultWindow
from sluicegate.sluice.audit.promise_audit import StreamReport
from sluicegate.sluice.audit.topic_audit import Audit
from sluicegate.sluice.commands.models.register import show
from sluicegate.sluice.commands.reading import dead_letters, explain
from sluicegate.sluice.commands.reading.audit import promises_table, table, windows_table
from sluicegate.sluice.commands.reading.results import line
from sluicegate.sluice.console import out
from sluicegate.sluice.registration.register import Registration
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate.streams.records import dead_letters as dead_letters_format
from sluicegate.streams.records.codec_types import Message
from sluicegate.streams.topics import Topics

TOPICS = Topics("t")


def shown(what: RenderableType) -> str:
    with out.capture() as captured:
        out.print(what, highlight=False, soft_wrap=True)
    return captured.get()


@pytest.fixture(params=["cam[/7]", "[red]7", "a[b]c", "[/]", "a:on:b"])
def strange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(out, "_width", 200)
    return str(request.param)


def outcome(strange: str) -> Outcome:
    return Outcome(
        query_id=strange, app="cats", source=f"/{strange}", kind=OutcomeKind.FAILED, reason="model_error",
        detail=f"no {strange}", arrival=1.0, deadline=2.0, at=1.5,
    )  # fmt: skip


def test_a_result_is_shown_to_the_letter(strange: str) -> None:
    assert (
        shown(line(outcome(strange))).rstrip() == f"failed    {strange}  cats     500.0 ms  model_error  no {strange}"
    )
    hosted = replace(outcome(strange), variant=f"v{strange}", device=f"d{strange}")
    assert f"v{strange} (0.0 %)  d{strange}  batch 0" in shown(line(hosted))


def test_what_a_stranger_wrote_is_one_line_and_no_order_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tab title, a colour, a line that looks like another outcome, text that runs backwards."""
    monkeypatch.setattr(out, "_width", 200)
    hostile = replace(
        outcome("q"),
        detail="parameters.\x1b]0;mine\x07\x1b[31m\nanswered  other\r\x9b1m\u202e: is unknown",
        variant="v\x1b[1m",
        promise=None,
    )
    seen = r"parameters.\x1b]0;mine\x07\x1b[31m\nanswered  other\r\x9b1m\u202e: is unknown"
    assert shown(line(hostile)).endswith(f"  model_error  {seen}\n")
    told = shown(explain.table(hostile, None, [("other\x1b[1m", "too slow")]))
    assert f"model_error: {seen}" in told and r"other\x1b[1m, too slow" in told
    assert not set(told) - {"\n"} - {c for c in told if c.isprintable()}
    stream = StreamReport(
        app="cats", stream="s\x1b[1m\n", queries=1, rejected=0, misses=1, mcd=1, worst={2: 1}, kept=False, broken=1,
        unannounced=1, agrees=True, example=(), broken_at=(), unannounced_at=(),
    )  # fmt: skip
    assert r"cats/s\x1b[1m\n" in shown(promises_table([stream]))


def test_a_dead_letter_is_shown_in_its_own_lines_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    about = {
        "topic": TOPICS.queries("cats"), "partition": "0", "offset": "7", "timestamp": "10", "reason": "invalid\x1b[1m",
        "message": "no\x1b[31m\n1970-01-01 00:00:11+00:00  t.app.cats.queries/0/8",
    }  # fmt: skip
    letter = Message(b"{}", None, tuple((f"{dead_letters_format.PREFIX}{k}", v.encode()) for k, v in about.items()))

    async def written() -> None:
        await broker.admin().create_topics(TOPICS.specs(["cats"]))
        producer = broker.producer()
        await producer.start()
        await (await producer.send(TOPICS.dead_letters, letter.value, headers=letter.headers))
        await producer.stop()

    asyncio.run(written())
    monkeypatch.setattr(dead_letters, "open_broker", lambda *_: broker)
    app = typer.Typer()
    dead_letters.register(app)
    asked = ["dead-letters", "list", "--prefix", "t"]
    assert CliRunner().invoke(app, asked).stdout.splitlines() == [
        "1970-01-01 00:00:10+00:00  t.app.cats.queries/0/7",
        r"  invalid\x1b[1m: no\x1b[31m\n1970-01-01 00:00:11+00:00  t.app.cats.queries/0/8",
        "  asked again: yes",
        "1 dead letters",
    ]
    others = CliRunner().invoke(app, [*asked, "--reason", "unreadable"])
    assert r"there are: invalid\x1b[1m of cats" in others.stderr


def test_nothing_ends_before_it_arrives_and_a_producers_clock_that_is_ahead_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(out, "_width", 200)
    rounded = replace(outcome("q"), arrival=10.0, at=9.9997)
    assert "  q  cats       0.0 ms  model_error" in shown(line(rounded))
    assert "0.0 ms after arrival " in shown(explain.table(rounded, None, []))
    ahead = shown(explain.table(replace(rounded, at=8.0), None, []))
    assert "0.0 ms after arrival; its producer's clock is at least 2000 ms ahead " in ahead


def test_an_explanation_is_shown_to_the_letter(strange: str) -> None:
    text = shown(explain.table(outcome(strange), None, [(f"v{strange}", "too slow")]))
    for told in (f"Query {strange}", f"/{strange}", f"model_error: no {strange}", f"v{strange}, too slow"):
        assert told in text


@pytest.mark.parametrize(
    ("device", "part", "chosen"),
    [
        ("g0", "3g-0", ["b on g0/3g-0"]),
        ("g0", "4g-0", ["a on g0/4g-0"]),
        ("g1", "4g-0", ["c on g1/4g-0"]),
        ("g0", None, ["a on g0/4g-0", "b on g0/3g-0"]),  # by an outcome of a version that told no slice
        (None, None, []),
    ],
)
def test_what_was_chosen_is_the_slice_that_answered_not_all_of_its_device(
    device: str | None, part: str | None, chosen: list[str]
) -> None:
    hosted = [("g0", "a", "4g-0"), ("g0", "b", "3g-0"), ("g1", "c", "4g-0")]
    placements = tuple(Placement(on, "cats", (variant,), 0.3, 8, cut) for on, variant, cut in hosted)
    plan = Plan(epoch=Epoch(1, 1), created=0.0, placements=placements, reason="start")
    ended = replace(outcome("q"), device=device, slice=part)
    told = explain.table(ended, plan, [("d", "too slow")])
    rows = list(zip(*(column.cells for column in told.columns), strict=True))
    assert [text for name, text in rows if name == "chosen"] == [f"{one}, share 30%" for one in chosen]
    assert sum(name == "alternative" for name, _ in rows) == 3 - len(chosen)
    as_json = explain.planned(ended, plan, [("d", "too slow")])
    offered = [
        (f"{p['variants'][0]} on {p['device']}/{p['slice']}", p["chosen"]) for p in as_json["plan"]["placements"]
    ]
    assert [f"{v} on {d}/{s}" for d, v, s in hosted] == [name for name, _ in offered]
    assert [name for name, was_chosen in offered if was_chosen] == chosen
    assert as_json["plan"]["reason"] == "start" and as_json["not_hosted"] == [{"variant": "d", "why": "too slow"}]


def test_a_query_that_nobody_has_asked_is_named_to_the_letter(strange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "open_broker", lambda *_: MemoryBroker())
    app = typer.Typer()
    explain.register(app)
    ended = CliRunner().invoke(app, [strange])
    assert ended.exit_code == 1 and f"no outcome of {strange} yet" in ended.stderr


def test_an_audit_is_shown_to_the_letter(strange: str) -> None:
    audit = Audit(TOPICS, timed=True)
    message = codec.encode_query(strange, (), app="cats", now=10.0, source="a")
    audit.add_query(Record(TOPICS.queries("cats"), 0, 0, message.key, message.value, message.headers, 10.0))
    stream = StreamReport(
        app="cats", stream=strange, queries=1, rejected=0, misses=1, mcd=1, worst={2: 1}, kept=False, broken=1,
        unannounced=1, agrees=True, example=(), broken_at=(), unannounced_at=(),
    )  # fmt: skip
    report = replace(audit.report([FaultWindow(name=f"w{strange}", began=9.0, ended=11.0)]), promises=(stream,))
    assert report.examples["lost"] == (strange,)
    assert strange in shown(table(report))
    assert f"cats/{strange}" in shown(promises_table(report.promises))
    assert f"w{strange}" in shown(windows_table(report.windows))


def registered(strange: str) -> Registration:
    """With words of its model and of the tools: what a candidate failed by, what was changed, what was not made."""
    point = PointDocument(batch=1, median_s=0.1, p95_s=0.2)
    candidate = registered_apps.CandidateDocument(
        variant=VariantDocument(name="cats.v1.fp32", app="cats", accuracy=0.5), recipe="fp32", gap=0.0, gap_se=0.0,
        finite=True, served=False, reason=f"fails {strange}",
        profiles=(ProfileDocument(variant="cats.v1.fp32", device_type="cpu", points=(point,)),), spreads={},
    )  # fmt: skip
    record = registered_apps.Record(
        app=AppDocument(name="cats", slo_s=0.1), version=1, key="", metric="accuracy", chance=0.1, answer_output="",
        answer_reading="label", scored_rows=30, calibration_rows=0, source="", source_digest="", validation_digest="",
        registered_at=1.0, machine="", notes=(f"output {strange} is left out",), candidates=(candidate,),
        skipped={"fp16": f"cannot {strange}"},
    )  # fmt: skip
    return Registration(record, Path())


def test_what_a_registration_says_of_its_model_is_shown_to_the_letter(strange: str) -> None:
    with out.capture() as captured:
        show(registered(strange), None, 0.0, added=False, as_json=False)
    for told in (f"fp32: fails {strange}", f"output {strange} is left out", f"fp16: cannot {strange}"):
        assert told in captured.get()


def test_a_step_is_shown_to_the_letter(strange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=shown, force_terminal=True, emoji=False, width=200))
    with console.steps("register") as told:
        told(f"check {strange}.onnx", 0.5)
    assert f"check {strange}.onnx" in shown.getvalue()
