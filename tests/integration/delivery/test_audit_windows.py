"""The audit by fault window: what was broken when, from a file or from what the planner said of devices."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.actions import Announce
from sluicegate.domain.outcome import Outcome, OutcomeKind, PromiseState
from sluicegate.sluice.commands.reading import audit as command
from sluicegate.streams import connect
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import TopicSpec
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics

app = typer.Typer()
command.register(app)
TOPICS = Topics("sluice")
NOON = 1_750_000_000.0
KILL = {"name": "kill d1", "began": NOON + 10, "ended": NOON + 20}
RESTART = {"name": "restart", "began": "2025-06-15T15:07:10+00:00", "ended": NOON + 40}
CALM = {"name": "calm", "began": NOON + 50, "ended": NOON + 60}


def run_of(folder: Path, *, broken: bool) -> Path:
    """The dump of a run of 60 queries, one a second; with ``broken``: some of them went wrong at known moments."""
    asyncio.run(write(folder, broken=broken))
    return folder


async def write(folder: Path, *, broken: bool) -> None:
    """Every record of it."""
    broker = connect("memory://")
    assert isinstance(broker, MemoryBroker)
    names = (TOPICS.queries("toy"), TOPICS.results("toy"), TOPICS.dead_letters, TOPICS.status)
    await broker.admin().create_topics([TopicSpec(name=name, partitions=1) for name in names])
    producer = broker.producer()
    await producer.start()
    for second in range(60):
        at = NOON + second + 0.5
        asked = codec.encode_query(f"q{second}", (), app="toy", now=at)
        await producer.send(TOPICS.queries("toy"), asked.value, key=asked.key, headers=asked.headers, timestamp=at)
        if broken and second == 12:
            continue  # lost
        for _ in range(2 if broken and second == 33 else 1):
            missed = broken and second in {14, 15}
            ended = outcome(second, at, OutcomeKind.EXPIRED if missed else OutcomeKind.ANSWERED)
            message = codec.encode_outcome(ended, ())
            written = {"key": message.key, "headers": message.headers, "timestamp": ended.at}
            await producer.send(TOPICS.results("toy"), message.value, **written)  # type: ignore[arg-type]
    for state, at in (("joined", NOON), ("lost", NOON + 14), ("returned", NOON + 18)):
        said = control.encode_announce(Announce("device:d1", state, ""))
        await producer.send(TOPICS.status, said, key=b"device:d1", timestamp=at)
    await producer.stop()
    broker.dump(folder)
    await broker.close()


def outcome(second: int, at: float, kind: OutcomeKind) -> Outcome:
    promised = PromiseState(weakly_hard=((1, 5),))  # a second miss among five breaks it
    whole = Outcome(query_id=f"q{second}", app="toy", kind=kind, arrival=at, deadline=at + 1, at=at + 0.1)
    return replace(whole, sequence=second, promise=promised)


def audit(folder: Path, *windows: dict[str, object], source: str | None = None) -> tuple[int, list[dict[str, object]]]:
    file = folder / "windows.json"
    file.write_text(json.dumps(windows))
    ran = CliRunner().invoke(app, [str(folder), "--windows", source or str(file), "--json"])
    return ran.exit_code, json.loads(ran.stdout)["windows"]


def counts(row: dict[str, object]) -> dict[str, object]:
    return {name: n for name, n in row.items() if name in COUNTED and n}


COUNTED = ("lost", "duplicates", "late_unmarked", "promises_broken")


def test_each_fault_is_told_of_the_window_it_fell_into(tmp_path: Path) -> None:
    code, rows = audit(run_of(tmp_path, broken=True), CALM, KILL, RESTART)
    assert code == 1
    assert [row["name"] for row in rows] == ["kill d1", "restart", "calm"]
    assert [counts(row) for row in rows] == [{"lost": 1, "promises_broken": 1}, {"duplicates": 1}, {}]
    assert [row["queries"] for row in rows] == [10, 10, 10]


def test_a_run_without_faults_exits_with_zero(tmp_path: Path) -> None:
    code, rows = audit(run_of(tmp_path, broken=False), KILL, RESTART)
    assert (code, [counts(row) for row in rows]) == (0, [{}, {}])


def test_windows_come_from_the_status_topic_too(tmp_path: Path) -> None:
    code, rows = audit(run_of(tmp_path, broken=True), source="status")
    (missed,) = rows
    assert (code, missed["name"], missed["lost"], missed["duplicates"]) == (1, "d1 missed", 1, 0)
    assert missed["began"] < NOON + 14 and missed["ended"] > NOON + 18


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ('{"name": "x"}', "not a list"),
        ('[{"began": 1, "ended": 2}]', "entry 0 has no name"),
        ('[{"name": "x", "began": 2, "ended": 1}]', "ended lies before began"),
        ('[{"name": "x", "began": "noon", "ended": 1}]', "neither seconds"),
        ('[{"name": "x", "began": "2025-06-15T12:00:00", "ended": 1}]', "time zone"),
    ],
)
def test_a_wrong_file_of_windows_is_told_in_one_line(text: str, told: str, tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", broken=False)
    (tmp_path / "windows.json").write_text(text)
    ran = CliRunner().invoke(app, [str(folder), "--windows", str(tmp_path / "windows.json")])
    assert ran.exit_code == 2
    assert told in " ".join(ran.stderr.split())


def test_an_audit_of_nothing_says_so(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", broken=False)
    wrong = CliRunner().invoke(app, [str(folder), "--prefix", "slucie"])
    assert "nothing to audit" in wrong.stdout
    assert "--prefix" in wrong.stdout
    right = CliRunner().invoke(app, [str(folder)])
    assert "Audit: balanced" in right.stdout
