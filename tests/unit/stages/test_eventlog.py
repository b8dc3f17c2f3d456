"""Recording decisions: deciding goes on where it cannot be written, and what was cut off replays up to there."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import pytest

from sluicegate.domain.events import Registered, Woke
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.runtime import append_file
from sluicegate.stages.runtime.decision_log import DecisionLog, Handle, encode_step, read_steps, recording, replay


def idle(event: Woke, now: float) -> Sequence[str]:
    return ()


class Disk:
    """Of a decision log: ``room`` bytes, or none at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        write = FileIO.write

        def limited(file: FileIO, data: memoryview) -> int:
            if self.full:
                write(file, data[:5])
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(file, data)

        monkeypatch.setattr(append_file, "FileIO", type("Limited", (FileIO,), {"write": limited}))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def steps(recorded: Handle[Woke, str], seconds: range) -> None:
    for second in seconds:
        assert recorded(Woke(), float(second)) == ()


def test_while_the_disk_is_full_decisions_wait_in_memory_and_none_is_missing(disk: Disk, tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    now = [1000.0]
    lines = DecisionLog(
        tmp_path / "router-toy.jsonl",
        monotonic=lambda: now[0],
        say=lambda subject, state, detail: said.append((subject, state)),
    )
    recorded = recording(idle, lines)
    steps(recorded, range(500))
    disk.full = True
    for start in (500, 1000, 1500):
        steps(recorded, range(start, start + 500))
        now[0] += 2.0
    assert said == [("log:router-toy", "paused")]
    disk.full = False
    steps(recorded, range(2000, 2500))
    assert said == [("log:router-toy", "paused"), ("log:router-toy", "resumed")]
    lines.close()
    assert [at for _, at, _ in read_steps(tmp_path / "router-toy.jsonl")] == [float(n) for n in range(2500)]


def test_a_log_for_which_there_is_no_room_at_last_ends_whole_and_deciding_goes_on(disk: Disk, tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "log.jsonl"
    lines = DecisionLog(
        file, monotonic=lambda: 5.0, say=lambda _subject, state, _detail: said.append(state), most=20_000
    )
    recorded = recording(idle, lines)
    steps(recorded, range(300))
    kept = [at for _, at, _ in read_steps(file)]
    assert kept
    disk.full = True
    steps(recorded, range(300, 2000))
    disk.full = False
    steps(recorded, range(2000, 3000))
    lines.close()
    assert said == ["paused", "ended"]
    assert [at for _, at, _ in read_steps(file)] == kept


def test_a_log_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    line = encode_step(Woke(), 1.0, ())
    file = tmp_path / "log.jsonl"
    file.write_bytes(line + b"\n" + line + b"\n" + line[:-5])
    assert [now for _, now, _ in read_steps(file)] == [1.0, 1.0]


@dataclass(frozen=True, slots=True)
class Greeted:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    text: str


class Host:
    """Answers with all whom it was ever told of."""

    def __init__(self, greeting: str) -> None:
        self.greeting = greeting
        self.known: list[str] = []

    def handle(self, event: Greeted | Registered | Woke, now: float) -> Sequence[Answer]:
        if isinstance(event, Greeted):
            self.known += event.names
        elif isinstance(event, Registered):
            self.known += Catalogue.of(event.apps, event.variants, event.profiles).variants
        return (Answer(f"{self.greeting} {', '.join(self.known)} at {now}"),)


def test_a_core_with_events_of_its_own_replays_and_another_one_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "host.jsonl"
    lines = DecisionLog(file, monotonic=lambda: 5.0, say=lambda *_: None)
    handle = recording(Host("hello").handle, lines)
    catalogue = Catalogue.of(
        [App(name="toy", slo=0.25)],
        [Variant(name="small", app="toy", accuracy=0.75)],
        [Profile(variant="small", device_type="cpu", points=(BatchLatency(1, 0.125, 0.25),), load=0.5)],
    )
    for event, now in ((Greeted(("a", "b")), 1000.5), (catalogue.registered, 1001.0), (Woke(), 1002.25)):
        handle(event, now)
    lines.close()
    said = [actions[0]["value"]["text"] for _, _, actions in read_steps(file, Greeted | Woke)]
    assert said == ["hello a, b at 1000.5", "hello a, b, small at 1001.0", "hello a, b, small at 1002.25"]
    assert replay(file, Host("hello").handle, Greeted) == []
    assert len(replay(file, Host("hallo").handle, Greeted)) == 3
