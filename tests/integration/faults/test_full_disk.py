"""A full disk: the sink pauses and says so, nobody else notices, and nothing is missing once there is room."""

import asyncio
import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.policies.serving.router import RouterEvent
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.catalogue.run_folders import new_run_folder
from sluicegate.sluice.system import process
from sluicegate.stages.runtime import append_file
from sluicegate.stages.runtime.decision_log import read_steps
from sluicegate.stages.sink import OutcomeStore
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import control
from tests.harness import PATIENCE_S, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual


class Disk:
    """A small disk. ``folder``: on a disk of its own, or on one that only seems full."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, real: bool) -> None:
        self.folder = folder
        self.real = real
        self._full = False
        if not real:
            plain = append_file.FileIO

            def write(file: append_file.FileIO, data: memoryview) -> int:
                if self._full:
                    plain.write(file, data[:7])
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return plain.write(file, data)

            monkeypatch.setattr(append_file, "FileIO", type("Limited", (plain,), {"write": write}))

    def fill(self) -> None:
        self._full = True
        if self.real:
            with (self.folder / "filler").open("wb") as file:
                free = os.statvfs(self.folder)
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_bsize)

    def empty(self) -> None:
        self._full = False
        (self.folder / "filler").unlink(missing_ok=True)


@pytest.fixture(params=["real", "injected"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    real = request.param == "real"
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if real and subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk cannot be mounted here")
    yield Disk(folder, monkeypatch, real=real)
    if real:
        subprocess.run(["umount", str(folder)], check=True)


async def said(run: Running, subject: str) -> list[str]:
    partition = TopicPartition(run.topics.status, 0)
    records = [r.value async for r in read_results(run.broker, [partition], follow=False) if r.value]
    return [told.state for told in map(control.decode_announce, records) if told.subject == subject]


async def until_said(run: Running, subject: str, state: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while state not in await said(run, subject):
            await asyncio.sleep(0.1)


async def test_the_sink_waits_for_room_and_then_has_everything(
    disk: Disk, broker_url: str, measured: Callable[[str, str], None]
) -> None:
    settings = settings_for(broker_url, disk.folder, partitions=1, devices=1, record=True)
    async with running(settings, connect(broker_url)) as run:
        await run.planned()
        await run.ask()
        await run.settled()
        disk.fill()
        for _ in range(30):
            await run.ask(parameters={"latency_ms": 5_000})
        await until_said(run, "stage:sink", "paused")
        report = await run.settled()
        assert report.balanced and report.kinds["answered"] == 31
        disk_is = "a tmpfs of 2 MiB, full" if disk.real else "writes fail with ENOSPC"
        measured(
            f"full disk, {broker_url.partition(':')[0]}: {disk_is}", "30 of 30 answered while it was; audit balanced"
        )
        assert not run.task.done()
        results = TopicPartition(run.topics.results("toy"), 0)
        assert (await run.broker.admin().committed(run.topics.sink_group, results) or 0) < 31
        disk.empty()
        await until_said(run, "stage:sink", "resumed")
        await run.ask(parameters={"latency_ms": 5_000})
        await run.settled()
    folder = run.system.run_folder
    lines = [orjson.loads(line) for line in (folder / "outcomes.jsonl").read_bytes().splitlines()]
    assert sorted(line["id"] for line in lines) == sorted(run.ids)
    arrived = [event for event, _, _ in read_steps(folder / "decisions" / "router-toy.jsonl", RouterEvent)]
    assert sum(type(event).__name__ == "Arrived" for event in arrived) == len(run.ids)


async def test_a_line_that_was_cut_short_is_cut_off_before_the_next(tmp_path: Path) -> None:
    store = OutcomeStore(tmp_path)
    store.add([b'{"id":"a"}'])
    store.close()
    with (tmp_path / "outcomes.jsonl").open("ab") as file:
        file.write(b'{"id":"torn')
    store = OutcomeStore(tmp_path)
    store.add([b'{"id":"b"}'])
    store.close()
    assert (tmp_path / "outcomes.jsonl").read_bytes() == b'{"id":"a"}\n{"id":"b"}\n'


def test_outcomes_take_no_more_room_than_they_may_and_the_newest_half_is_kept(tmp_path: Path) -> None:
    lines = [b'{"id":"q%d"}' % number for number in range(300)]
    store = OutcomeStore(tmp_path, most_bytes=1_000)
    largest = 0
    for number, line in enumerate(lines):
        store.add([line])
        kept = sorted(tmp_path.glob("outcomes*.jsonl"))
        largest = max(largest, sum(path.stat().st_size for path in kept))
        if number == 200:  # it starts again
            store.close()
            store = OutcomeStore(tmp_path, most_bytes=1_000)
    store.close()
    assert 900 < largest <= 1_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outcomes.1.jsonl", "outcomes.jsonl"]
    found = [line for path in kept for line in path.read_bytes().splitlines()]
    assert found == lines[-len(found) :] and len(found) >= 500 // len(lines[-1])


def test_a_disk_that_is_full_while_outcomes_make_place_leaves_them_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = OutcomeStore(tmp_path, most_bytes=40)
    store.add([b'{"id":"a"}'])
    opened: list[str] = []

    def full(path: Path, mode: str) -> append_file.FileIO:
        opened.append(path.name)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr(append_file, "FileIO", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                store.add([b'{"id":"b","long":1}'])
    assert opened == ["outcomes.jsonl"] * 3 and len(list(Path("/proc/self/fd").iterdir())) <= before
    store.add([b'{"id":"b","long":1}'])
    store.close()
    assert (tmp_path / "outcomes.1.jsonl").read_bytes() == b'{"id":"a"}\n'
    assert (tmp_path / "outcomes.jsonl").read_bytes() == b'{"id":"b","long":1}\n'


@pytest.mark.parametrize("disk", ["real"], indirect=True)  # its own files are written otherwise
async def test_topics_of_the_embedded_log_are_kept_once_there_is_room(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "_RETRY", 0.05)
    settings = settings_for("memory://", tmp_path)
    folder = disk.folder / "run"

    async def make_room() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while "make room" not in caplog.text:
                await asyncio.sleep(0.01)
        disk.empty()

    with caplog.at_level(logging.ERROR):
        async with process.system(settings, toy_catalogue(), Path(), folder) as built:
            await (await built.producer.send(built.topics.queries("toy"), bytes(200_000)))
            disk.fill()
            emptying = asyncio.create_task(make_room())
        await emptying
    kept = connect(folder.as_uri())
    assert built.topics.queries("toy") in await kept.admin().topics()
    await kept.close()

    monkeypatch.setattr(process, "_PATIENCE", 0.1)
    with pytest.raises(ConfigurationError, match="cannot keep topics"):
        async with process.system(settings, toy_catalogue(), Path(), disk.folder / "other") as built:
            await (await built.producer.send(built.topics.queries("toy"), b"asked"))
            disk.fill()


def test_nothing_starts_on_a_disk_that_has_less_room_than_the_floor(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for("memory://", disk.folder, disk_floor_bytes=1 << 20)
    assert new_run_folder(settings).parent == settings.runs
    if disk.real:
        disk.fill()
    else:
        free = shutil.disk_usage(disk.folder)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: free._replace(free=(1 << 20) - 1))
    with pytest.raises(ConfigurationError, match="0 MiB are free, less than disk_floor_bytes") as told:
        new_run_folder(settings)
    assert "make room" in str(told.value)
