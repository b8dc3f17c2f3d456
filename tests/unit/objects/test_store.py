"""The object store: what is read is what was said, within its time and size; files stay within their folder."""

import asyncio
import os
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Query
from sluicegate.stages.worker.objects import WorkerObjects
from sluicegate.streams.objects import store as module
from sluicegate.streams.objects.claims import Claim, ObjectRules
from sluicegate.streams.objects.store import ObjectError, ObjectStore
from sluicegate.streams.records import codec

DATA = bytes(range(256)) * 20


def claim_to(ref: str, data: bytes = DATA) -> Claim:
    """A reference to ``data``."""
    return Claim(ref, sha256(data).hexdigest(), len(data))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that may be read, with an object in it; a secret beside it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one").write_bytes(DATA)
    (tmp_path / "secret").write_bytes(DATA)
    return tmp_path


def of(folder: Path, **options: object) -> ObjectStore:
    """A store of that folder, results beside it."""
    rules = ObjectRules(prefixes=(f"file://{folder}/in/", "memory://held/"), max_bytes=100_000)
    return ObjectStore(rules, results=f"file://{folder}/out/", **options)  # type: ignore[arg-type]


async def test_an_object_is_read_whole_and_results_are_written_by_their_content(folder: Path) -> None:
    store = of(folder)
    assert store.writable()
    assert await store.read(claim_to(f"file://{folder}/in/one"), within=1.0) == DATA
    first, again, other = [await store.write("toy", data) for data in (DATA, DATA, memoryview(DATA[1:]))]
    assert first == again == claim_to(f"file://{folder}/out/toy/{sha256(DATA).hexdigest()}") and other.ref != first.ref
    assert await store.read(first, within=1.0) == DATA
    assert {path.name for path in (folder / "out" / "toy").iterdir()} == {first.sha256, other.sha256}
    with pytest.raises(ObjectError, match="max_bytes"):
        await store.write("toy", bytes(100_001))


@pytest.mark.parametrize("does", ["read", "write"])
async def test_nothing_is_hashed_in_the_event_loop_s_thread(folder: Path, does: str) -> None:
    store, claim, called = of(folder), claim_to(f"file://{folder}/in/one"), set[str]()

    def note(_frame: object, event: str, what: object) -> None:
        if event == "c_call":
            called.add(getattr(what, "__name__", ""))

    before = sys.getprofile()
    sys.setprofile(note)  # of this thread alone
    try:
        await (store.read(claim, within=1.0) if does == "read" else store.write("toy", DATA))
    finally:
        sys.setprofile(before)
    assert "allocate_lock" in called and not {name for name in called if "sha256" in name}


@pytest.mark.parametrize(
    ("place", "why"), [("/proc/never/", "FileNotFound|Permission"), ("{folder}/in/one/", "NotADirectory")]
)
async def test_a_result_that_cannot_be_written_is_not_told_as_one_that_is_not_there(
    folder: Path, place: str, why: str
) -> None:
    results = f"file://{place.format(folder=folder)}"
    store = ObjectStore(ObjectRules(prefixes=(), max_bytes=100_000), results=results)
    assert not store.writable()
    with pytest.raises(ObjectError, match=rf"{results}toy/\w+ cannot be written \(({why})Error\)$"):
        await store.write("toy", DATA)


async def test_memory_and_other_file_systems_are_read_through_fsspec(folder: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://held/a", "wb") as into:
        into.write(DATA)
    store = ObjectStore(ObjectRules(prefixes=("memory://held/",)), results="memory://kept/", timeout=20.0)
    assert await store.read(claim_to("memory://held/a"), within=1.0) == DATA
    written = await store.write("toy", DATA)
    assert await store.read(written, within=1.0) == DATA
    with pytest.raises(ObjectError, match="is not there"):
        await store.read(claim_to("memory://held/b"), within=1.0)
    with pytest.raises(ObjectError, match="not below"):
        await store.read(claim_to(f"file://{folder}/in/one"), within=1.0)


@pytest.mark.parametrize(
    ("name", "told", "problem"),
    [
        ("none", DATA, "is not there"),
        ("one", DATA[:-1], "more than 5119 bytes"),
        ("one", DATA + b"x", "fewer than 5121 bytes"),
        ("one", DATA[::-1], "has SHA-256"),
        ("folder", DATA, "no plain file|IsADirectory"),
        ("pipe", DATA, "no plain file"),
        ("link", DATA, "leads out"),
        ("linked-folder/secret", DATA, "leads out"),
        ("device", DATA, "no plain file"),
    ],
)
async def test_what_is_not_what_was_said_is_refused_by_its_address(
    folder: Path, name: str, told: bytes, problem: str
) -> None:
    (folder / "in" / "folder").mkdir()
    os.mkfifo(folder / "in" / "pipe")
    (folder / "in" / "link").symlink_to(folder / "secret")
    (folder / "in" / "linked-folder").symlink_to(folder)
    (folder / "in" / "device").symlink_to("/dev/zero")
    store = of(folder)
    with pytest.raises(ObjectError, match=problem) as refused:
        await store.read(claim_to(f"file://{folder}/in/{name}", told), within=1.0)
    assert f"/in/{name}" in str(refused.value)
    assert await store.read(claim_to(f"file://{folder}/in/one"), within=1.0) == DATA


async def test_a_link_that_stays_within_is_followed(folder: Path) -> None:
    (folder / "in" / "link").symlink_to(folder / "in" / "one")
    assert await of(folder).read(claim_to(f"file://{folder}/in/link"), within=1.0) == DATA


async def test_a_store_that_hangs_is_given_up_and_what_it_said_of_itself_is_not_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hang(claim: Claim, prefix: str) -> bytes:
        if claim.ref.endswith("/hangs"):
            released.wait()
        if claim.ref.endswith("/fails"):
            raise PermissionError("key AKIASECRET is not allowed")
        return DATA

    monkeypatch.setattr(module, "_read", hang)
    store = of(folder, timeout=0.2, threads=2)
    try:
        with pytest.raises(ObjectError, match=r"hangs cannot be had within 0\.2 s"):
            await store.read(claim_to(f"file://{folder}/in/hangs"), within=1.0)
        assert await store.read(claim_to(f"file://{folder}/in/one"), within=1.0) == DATA
        with pytest.raises(ObjectError, match="PermissionError") as refused:
            await store.read(claim_to(f"file://{folder}/in/fails"), within=1.0)
        assert "SECRET" not in str(refused.value)
    finally:
        released.set()


async def test_what_is_held_is_bounded_and_waiters_go_on_in_their_order(folder: Path) -> None:
    store = of(folder, held_bytes=2 * len(DATA))
    one = claim_to(f"file://{folder}/in/one")
    for _ in range(2):
        await store.read(one, within=1.0)
    with pytest.raises(ObjectError, match="held_bytes"):
        await store.read(one, within=0.05)
    waiting = [asyncio.create_task(store.read(one, within=20.0)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    # One room after the other: two reads at once may end in either order.
    for first, still in ((0, {waiting[2]}), (2, set())):
        store.release(one.bytes)
        assert await waiting[first] == DATA
        assert {task for task in waiting if not task.done()} == still
    with pytest.raises(ObjectError):
        await store.read(one, within=0.0)
    for _ in range(2):
        store.release(one.bytes)
    for _ in range(2):
        await store.read(one, within=0.0)


async def test_who_gives_up_waiting_for_room_stands_before_nobody(folder: Path) -> None:
    (folder / "in" / "small").write_bytes(b"small")
    store = of(folder, held_bytes=len(DATA) + 5)
    one, small = claim_to(f"file://{folder}/in/one"), claim_to(f"file://{folder}/in/small", b"small")
    await store.read(one, within=1.0)
    large = asyncio.create_task(store.read(one, within=20.0))
    await asyncio.sleep(0)
    behind = asyncio.create_task(store.read(small, within=20.0))
    await asyncio.sleep(0)
    large.cancel()
    assert await behind == b"small"
    store.release(small.bytes)
    with pytest.raises(ObjectError, match="held_bytes"):
        await store.read(one, within=0.0)
    assert await store.read(small, within=0.0) == b"small"


async def test_an_access_whose_thread_cannot_be_started_takes_no_place_of_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store, one = of(folder, threads=2), claim_to(f"file://{folder}/in/one")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        for _ in range(3):
            with pytest.raises(ObjectError, match=r"RuntimeError"):
                await store.read(one, within=1.0)
    assert await store.read(one, within=1.0) == DATA


async def test_what_a_query_refers_to_is_waited_for_until_its_deadline(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, read = threading.Event(), module._read

    def slow(claim: Claim, prefix: str) -> bytes:
        if claim.ref.endswith("/slow"):
            released.wait()
        return read(claim, prefix)

    monkeypatch.setattr(module, "_read", slow)
    (folder / "in" / "slow").write_bytes(DATA)
    store = of(folder, timeout=5.0)
    objects = WorkerObjects(store)
    claims = [claim_to(f"file://{folder}/in/{name}") for name in ("one", "slow")]
    tensors = tuple(Tensor(name, "UINT8", (1, len(DATA)), b"") for name in ("x", "y"))
    query = Query("q1", "toy", 1_000.0, 1_001.0)
    message = codec.WorkMessage(query, tensors, Epoch(1, 1), "d0", (), 0, tuple(enumerate(claims)))
    try:
        with pytest.raises(ObjectError, match="slow was not here before the query's deadline"):
            await objects.fetched(message, 0.1)
        assert store._room == store._most, "neither is held"
    finally:
        released.set()
    for within in (20.0, -1.0):
        assert [t.data for t in await objects.fetched(message, within)] == [DATA, DATA]
        objects.release(message)


async def test_what_fails_is_not_held(folder: Path) -> None:
    store = of(folder, held_bytes=len(DATA))
    for _ in range(3):
        with pytest.raises(ObjectError, match="is not there"):
            await store.read(claim_to(f"file://{folder}/in/none"), within=0.0)
    assert await store.read(claim_to(f"file://{folder}/in/one"), within=0.0) == DATA
