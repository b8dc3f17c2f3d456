"""Benchmarks judge and say what was measured: whole rounds, CPU of its own, and no more than was run."""

import asyncio
import json
import platform
import queue
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import numpy as np
import pytest

from bench import live_slices, overload, pipeline, simulator, slices, soak
from bench.over_http import beside_peers
from bench.planning import planner


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


SEND_S = 100e-6


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Topics by name in place of Kafka's; this process takes ``SEND_S`` of CPU a record sent, and no time."""
    topics: dict[str, queue.SimpleQueue[Any]] = defaultdict(queue.SimpleQueue)
    total, yields = queue.SimpleQueue[None](), asyncio.sleep

    def send(topic: str, value: bytes, key: bytes, **more: Any) -> None:
        total.put(None)
        stamp = more.get("timestamp", more.get("timestamp_ms"))
        topics[topic].put(SimpleNamespace(value=value, key=key, headers=more.get("headers", ()), timestamp=stamp))

    monkeypatch.setattr(pipeline, "connect", lambda *_, **__: MagicMock(admin=AsyncMock, close=AsyncMock()))
    monkeypatch.setattr(pipeline, "own_cpu", lambda: SEND_S * total.qsize())
    monkeypatch.setattr(pipeline, "_GENERATOR", {"per_query": 7 * SEND_S})  # of our producer
    monkeypatch.setattr(asyncio, "sleep", lambda _: yields(0))
    return SimpleNamespace(send=send, topics=topics, yields=yields)


async def test_of_a_bare_forwarder_is_taken_off_what_its_own_sending_costs(
    sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(topic: str, value: bytes, **more: Any) -> None:
        sent.send(topic, value, **more)

    def consumer(**_: Any) -> Any:
        mine = AsyncMock()

        async def getmany(timeout_ms: int) -> dict[None, list[Any]]:
            await sent.yields(0)
            read = sent.topics[mine.assign.call_args.args[0][0][0]]
            return {None: [read.get() for _ in range(read.qsize())]}

        mine.assign, mine.getmany = MagicMock(), getmany
        return mine

    bare: Any = ModuleType("aiokafka")
    bare.AIOKafkaProducer = lambda **_: AsyncMock(send=send)
    bare.AIOKafkaConsumer, bare.TopicPartition = consumer, lambda *names: names
    monkeypatch.setitem(sys.modules, "aiokafka", bare)
    row = await pipeline.forwarder("kafka://nowhere:1", pipeline.Load(seconds=0.1, qps=1000.0))
    assert row["cpu_us"] == pytest.approx(1e6 * 3 * SEND_S)


async def test_of_one_by_librdkafka_too(sent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def consumer(_: Any) -> Any:
        mine = MagicMock()

        def poll(seconds: float) -> Any:
            try:
                record = sent.topics[mine.assign.call_args.args[0][0][0]].get(timeout=0.01)
            except queue.Empty:
                return None
            return SimpleNamespace(
                timestamp=lambda: (1, record.timestamp), value=bytes, key=bytes, headers=lambda: record.headers
            )

        mine.poll, mine.consume = poll, lambda *_: []
        return mine

    bare: Any = ModuleType("confluent_kafka")
    bare.Producer = lambda _: MagicMock(produce=sent.send)
    bare.Consumer, bare.TopicPartition = consumer, lambda *names: names
    monkeypatch.setitem(sys.modules, "confluent_kafka", bare)
    row = await pipeline.rdkafka_forwarder("kafka://nowhere:1", pipeline.Load(seconds=0.1, qps=1000.0))
    assert row["cpu_us"] == pytest.approx(1e6 * 3 * SEND_S)


async def test_accuracy_is_of_what_came_behind_the_warm_ups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, yields = [100.0], asyncio.sleep
    outcomes: list[Any] = []

    class Asking:
        pid = 1

        def __init__(self, _: str) -> None:
            self.asked = 0

        async def ask(self, times: list[float]) -> Any:
            self.asked += 1
            # Two warm-ups: calm, and so all of the most accurate.
            accuracy = 0.9 if self.asked <= 2 else 0.8
            outcomes.append(SimpleNamespace(arrival=now[0], on_time=True, accuracy=accuracy))
            outcomes.append(SimpleNamespace(arrival=now[0], on_time=False, accuracy=0.1))
            now[0] += 5.0
            return np.zeros(len(times))

        def end(self) -> None: ...

    @asynccontextmanager
    async def serving(*_: Any) -> AsyncIterator[Any]:
        yield "http://nowhere", MagicMock()

    async def read_results(*_: Any, **__: Any) -> AsyncIterator[Any]:
        for outcome in outcomes:
            yield outcome

    for name, fake in {
        "Asking": Asking, "serving": serving, "read_results": read_results, "result_topics": AsyncMock(),
        "apart": MagicMock(), "children": lambda _: set(),
        "codec": SimpleNamespace(decode_outcome=lambda outcome: SimpleNamespace(outcome=outcome)),
    }.items():  # fmt: skip
        monkeypatch.setattr(beside_peers, name, fake)
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(asyncio, "sleep", lambda _: yields(0))
    found = await beside_peers.ours(MagicMock(), tmp_path, 10.0, 1.0)
    assert found == {"x0.5": 1.0, "x1.5": 1.0, "x3": 1.0, "accuracy": 0.8}


async def test_the_cpu_of_an_overload_is_of_that_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    at = 0.0
    used = iter((1000.0, 1007.0))  # what ran before had 1,000
    outcome = SimpleNamespace(arrival=at, at=at, on_time=True, accuracy=0.8, late=False, kind="answered", reason=None)
    report = SimpleNamespace(queries=1, lost=0, duplicates=0)
    monkeypatch.setattr(overload, "run_stages", lambda _, stop: stop.wait())
    monkeypatch.setattr(overload, "planned", AsyncMock())
    monkeypatch.setattr(overload, "load", AsyncMock(return_value=(1, [at, at + 10, at + 20, at + 30])))
    monkeypatch.setattr(overload, "settled", AsyncMock(return_value=(report, [outcome])))
    monkeypatch.setattr(time, "process_time", lambda: next(used, 1007.0))
    assert (await overload.measure("memory://", tmp_path, 1, 1.0))["cpu_s"] == 7.0


def test_parts_that_are_kept_stay_with_the_machine_that_they_are_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(slices, "TARGET", tmp_path / "slices.json")
    monkeypatch.setattr(slices, "PARTS", {"fbr": lambda: {"error": 1.0}, "bill": lambda: {"saved": 0.5}})
    slices.TARGET.write_text(json.dumps({"machine": "abacus", "costs": {}}))
    for machine, part in (("first", "fbr"), ("second", "bill")):
        monkeypatch.setattr(platform, "processor", lambda machine=machine: machine)
        slices.parts([part])
    written = json.loads(slices.TARGET.read_text())
    assert {part: machine.split(",")[0] for part, machine in written["machines"].items()} == {
        "fbr": "first", "bill": "second"
    }  # fmt: skip
    assert written.keys() == {"costs", "fbr", "bill", "machines"}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "live_slices"),
        (["--geometry", "protean"], "live_slices_protean"),
        (["--choice", "strict-first", "--gpus", "3"], "live_slices_strict-first"),
        (["--choice", "strict-room", "--geometry", "protean"], "live_slices_protean_strict-room"),
    ],
)
def test_live_slices_write_a_file_for_each_choice_and_say_how_many_gpus_there_were(
    options: list[str], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from matplotlib.figure import Figure

    titles: list[str] = []
    seconds = [{"second": 0, "queries": 1, "on_time": 1.0, "p99_ms": 1.0, "accuracy": 0.8}]
    measured = {"seconds": seconds, "cuts": [], "balanced": True, "lost": 0, "duplicates": 0}
    monkeypatch.setattr(live_slices, "measure", AsyncMock(return_value=measured))
    monkeypatch.setattr(live_slices, "TARGET", tmp_path / "live_slices")
    monkeypatch.setattr(Figure, "suptitle", lambda _, title: titles.append(title))
    monkeypatch.setattr(sys, "argv", ["live_slices", *options])
    with pytest.raises(SystemExit) as ended:
        live_slices.main()
    assert ended.value.code == 0
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.json", f"{name}.png"}
    assert titles == [f"0 changes of {3 if '--gpus' in options else 8} emulated A100 while serving"]


def test_planning_goes_on_without_the_published_cluster_and_says_which_file_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path))
    monkeypatch.setattr(planner, "row", lambda name, *_: {"case": name})
    asked = SimpleNamespace(no_literal=True, stream=1, largest=0)
    assert planner.main(asked) == [{"case": "17 device types"}]  # type: ignore[arg-type]
    assert capsys.readouterr().err == f"without the published cluster: {tmp_path} has no proteus/milp_oracle.json\n"


CHILD = """#!/bin/sh
if [ "$3" = "the whole trace" ]; then echo "it has no room" >&2; exit 1; fi
echo '{"queries": 5, "wall_s": 1, "queries_per_cpu_s": 7, "queries_per_cpu_s_with_planning": 6, "planning_s": 0,
"memory_grew_mb": 1}'
"""


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_a_case_of_the_simulator_that_fails_says_why_and_takes_no_other_with_it(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    child = tmp_path / "python"
    child.write_text(CHILD)
    child.chmod(0o755)
    run, before = subprocess.run, []
    left_out = "Proteus's trace is left out: set SLUICE_DATA to the folder of the papers' data\n"

    def noted(*arguments: Any, **options: Any) -> Any:
        before.append(capfd.readouterr())
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    monkeypatch.setattr(sys, "executable", str(child))
    monkeypatch.setattr(sys, "argv", ["simulator", *options])
    monkeypatch.delenv("SLUICE_DATA", raising=False)
    with pytest.raises(SystemExit) as ended:
        simulator.main()
    last, told = capfd.readouterr()
    assert ended.value.code == "failed: the whole trace"
    assert "".join(err for _, err in before) + told == f"{left_out}it has no room\n"
    if options:
        assert list(json.loads(last)["cases"]) == ["a tenth of the trace", "twice the rate"]
    else:
        assert "a tenth of the trace" in before[1].out, "a row is printed as it comes"
        assert "twice the rate" in last
