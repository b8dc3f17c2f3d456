"""A million damaged records: whatever reads a topic decodes or refuses them, and admission ends each of them.

Records of every kind are encoded, then damaged by a seeded mutator: bytes changed, cut out, put in, doubled; values of
the JSON replaced by what is hostile (huge numbers, deep nesting, other types); headers damaged, dropped, doubled.
A query record must decode or be refused, and leave admission with one letter; any other record must decode or raise
InvalidInputError. Anything else is a crash. Memory is looked at after a tenth and at the end.

`python bench/records/mutations.py [--records 1000000] [--seed 0]`; writes reports/bench/mutations.json. Exit 1 on a
crash, or where memory grew by more than ``FLAT_MIB``.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import platform
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import orjson
from typing_extensions import override

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import DemandCounted, DeviceSeen, LatencyMeasured, PlanAcknowledged, TurnsTold
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.lease import Lease
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.policies.admission.deadline_feasibility import DeadlineAdmission
from sluicegate.policies.serving.admission import AdmissionCore, AdmissionRules, RouterHeard
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.admission import AdmissionStage
from sluicegate.stages.admission import Door as Options
from sluicegate.stages.connections import Connections
from sluicegate.stages.runtime.consumer_loop import Reading
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams import connect
from sluicegate.streams.ports import Headers, Letter, Record
from sluicegate.streams.records import codec, control
from sluicegate.streams.records.demand_windows import decode_windows, encode_windows
from sluicegate.streams.records.instances import decode_instance, encode_instance
from sluicegate.streams.topics import Topics

FLAT_MIB = 48.0
APP = App(
    name="toy",
    slo=1.0,
    inputs=(TensorSpec("image", "FP32", (4,)), TensorSpec("words", "UINT8", (3,))),
    outputs=(TensorSpec("label", "INT64", ()),),
    max_rows=8,
)
TOPICS = Topics("mutations")
SLOW_S = 1.0
_FEW = 5
_OVERSIZE = b" " * 1_200_000
_DEEP = b"[" * 5_000
_HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, -1e308, 2**63 - 1, -(2**63), 10**18, "", "x" * 5_000, "\u0000", "NaN", [], {}, [[]],
    [1, "a"], {"a": {"b": []}}, "é" * 300, 0.1, [0] * 500, "nan", "-inf", "@huge", "@nan", "@infinite", "@tiny",
)  # fmt: skip
_UNWRITABLE = {
    b'"@huge"': b"1" + b"0" * 400,
    b'"@nan"': b"NaN",
    b'"@infinite"': b"1e999",
    b'"@tiny"': b"-" + b"9" * 400,
}
"""What a JSON writer refuses to write, by what stands for it."""


@dataclass
class Found:
    """What became of the records."""

    records: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    crashes: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def crash(self, what: str, record: Record) -> None:
        """Remember the first few."""
        self.ends["crash"] += 1
        if len(self.crashes) < _FEW:
            self.crashes.append(f"{what}: {traceback.format_exc(limit=-3)} of {record!r:.600}")


class Mutator:
    """Damages records. The same ``rng`` gives the same damage."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def damaged(self, record: Record) -> Record:
        """One to three kinds of damage."""
        for _ in range(self._rng.randint(1, 3)):
            match self._rng.randrange(10):
                case 0 | 1 | 2:
                    record = record._replace(value=self._bytes(record.value or b""))
                case 3 | 4 | 5:
                    record = record._replace(value=self._json(record.value or b""))
                case 6 | 7:
                    record = record._replace(headers=self._headers(record.headers))
                case 8:
                    record = record._replace(key=self._key(record.key), timestamp=self._time(record.timestamp))
                case _:
                    value = self._rng.choice((None, b"", b"{", self._rng.randbytes(40), record.value))
                    record = record._replace(value=value)
        if self._rng.random() < 0.001:
            record = record._replace(value=self._rng.choice((_OVERSIZE, _DEEP, b'{"a":' * 4_000)))
        return record

    def _bytes(self, raw: bytes) -> bytes:
        rng, value = self._rng, bytearray(raw)
        at = rng.randrange(len(value) + 1)
        match rng.randrange(5):
            case 0 if at < len(value):
                value[at] = rng.randrange(256)
            case 1:
                del value[at : at + rng.randint(1, 30)]
            case 2:
                value[at:at] = rng.randbytes(rng.randint(1, 12))
            case 3:
                value[at:at] = value[at : at + rng.randint(1, 200)] * rng.randint(1, 4)
            case _:
                del value[at:]
        return bytes(value)

    def _json(self, raw: bytes) -> bytes:
        """One value of the document replaced, or a name of it damaged."""
        try:
            whole = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return self._bytes(raw)
        holder, place = whole, None
        while isinstance(holder, dict | list) and holder:
            place = self._rng.choice(list(holder)) if isinstance(holder, dict) else self._rng.randrange(len(holder))
            inner = holder[place]
            if not isinstance(inner, dict | list) or not inner or self._rng.random() < 0.3:
                break
            holder = inner
        if place is None:
            return raw
        if isinstance(holder, dict) and self._rng.random() < 0.2:
            holder[f"{place}?"] = holder.pop(place)
        else:
            holder[place] = self._rng.choice(_HOSTILE)
        damaged = orjson.dumps(whole)
        for name, text in _UNWRITABLE.items():
            damaged = damaged.replace(name, text)
        return damaged

    def _headers(self, headers: Headers) -> Headers:
        if not headers:
            return ((self._rng.choice(("ce_id", "ce_time", "x")), self._rng.randbytes(8)),)
        at = self._rng.randrange(len(headers))
        name, held = headers[at]
        match self._rng.randrange(4):
            case 0:
                changed: Headers = ()
            case 1:
                changed = ((name, self._bytes(held)),)
            case 2:
                changed = ((name, held), (name, self._rng.randbytes(6)))
            case _:
                changed = ((name, self._rng.choice((b"", b"-1", b"1e999", b"9" * 400, b"\xff\xfe", held * 50))),)
        return (*headers[:at], *changed, *headers[at + 1 :])

    def _key(self, key: bytes | None) -> bytes | None:
        return self._rng.choice((None, b"", b"\xff" * 9, key))

    def _time(self, at: float) -> float:
        return self._rng.choice((0.0, -1.0, 1e12, at + 1e6, at))


def queries(now: float) -> list[Record]:
    """Sound query records: JSON and binary, with and without what may be asked for."""
    tensors = (Tensor("image", "FP32", (1, 4), bytes(16)), Tensor("words", "UINT8", (1, 3), b"abc"))
    asked: Sequence[dict[str, Any] | None] = (
        None,
        {"latency_ms": 200, "accuracy": 0.7, "cost": 2},
        {"class": "best_effort", "priority": 3},
    )
    found = []
    for binary in (False, True):
        for parameters in asked:
            message = codec.encode_query("id", tensors, app=APP.name, now=now, parameters=parameters, binary=binary)
            found.append(Record(TOPICS.queries("toy"), 0, 0, message.key, message.value, message.headers, now))
    return found


def others(now: float) -> list[tuple[Record, Callable[[Record], Any]]]:
    """Sound records of all other topics, each with what reads it."""
    query = codec.decode_query(queries(now)[1], APP, codec.DEFAULT_LIMITS, now)
    outcome = Outcome.of(query.query, OutcomeKind.ANSWERED, now, variant="v", accuracy=0.9, device="d0")
    answer = (Tensor("label", "INT64", (1,), bytes(8)),)
    hops: list[tuple[codec.Message, Callable[[Record], Any]]] = [
        (codec.encode_admitted(query), codec.decode_admitted),
        (codec.encode_work(query, epoch=Epoch(1, 2), slice="whole"), codec.decode_work),
        (codec.encode_outcome(outcome, answer), codec.decode_outcome),
    ]
    plan = Plan(
        epoch=Epoch(1, 2),
        created=now,
        placements=(Placement(device="d0", slice="whole", app="toy", variants=("v",), share=1.0, max_batch=8),),
        demand={"toy": 3.0},
        served={"toy": 1.0},
        incarnations={"d0": "a"},
        fences={"d0": 7},
    )
    measured = (LatencyMeasured("v", "cpu", 3, 0.25),)
    seen = DeviceSeen("d0", "cpu", "a", 0, 0.0, False, False)
    beat = control.Heartbeat(
        seen=seen, at=now, epoch=Epoch(1, 2), queued=3, utilisation=0.5, variants=("v",), measured=measured
    )
    instance = Instance(app="toy", variant="v", device="d0", qps=3.0, peak=9.0, slowdown=1.0, expires=now)
    said: list[tuple[bytes, Callable[[bytes], Any]]] = [
        (control.encode_plan(plan), control.decode_plan),
        (control.encode_heartbeat(beat), control.decode_heartbeat),
        (control.encode_demand(DemandCounted("toy", 3, 0.5, ()), source="a", at=now), control.decode_demand),
        (control.encode_acknowledged(PlanAcknowledged("d0", Epoch(1, 2), ("v",), ())), control.decode_acknowledged),
        (control.encode_announce(Announce("app:toy", "safe_mode", "x")), control.decode_announce),
        (control.encode_lease(Lease(term=2, holder="p", renewals=3)), control.decode_lease),
        (control.encode_turns(TurnsTold("toy", 0.5, 7, now)), control.decode_turns),
        (control.encode_note(control.DeviceNote(device="d0", by="s", withdrawn=True, price=0.5)), control.decode_note),
        (encode_windows("toy", {int(now): {"rows": [1, 2], "classes": [[[0.5, 1]], []]}}, now), decode_windows),
        (encode_instance(instance), lambda value: decode_instance(instance.key.encode(), value)),
    ]
    found = [(Record("t", 0, 0, m.key, m.value, m.headers, now), read) for m, read in hops]
    return found + [(Record("t", 0, 0, b"k", value, (), now), _of_value(read)) for value, read in said]


def _of_value(read: Callable[[bytes], Any]) -> Callable[[Record], Any]:
    return lambda record: None if record.value is None else read(record.value)


class _Ends(logging.Handler):
    """Counts what admission itself calls a defect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.defects = 0

    @override
    def emit(self, record: logging.LogRecord) -> None:
        del record
        self.defects += 1


class Door:
    """Admission without a broker behind it: what each record led to is counted."""

    def __init__(self, dedupe_entries: int = 50_000) -> None:
        broker = connect("memory://")
        self._ends = _Ends()
        log = logging.getLogger("sluicegate.stages.admission")
        log.addHandler(self._ends)
        log.propagate = False
        self.letters: list[Letter] = []
        self._served = Catalogue.of([APP], [], [])
        core = AdmissionCore([], AdmissionRules(make_policy=DeadlineAdmission, dedupe_entries=dedupe_entries))
        self.stage = AdmissionStage(
            Connections(broker=broker, producer=broker.producer(), topics=TOPICS, clock=SystemClock()),
            core,
            core.handle,
            served=self._served,
            door=Options(limits=codec.DEFAULT_LIMITS, reading=Reading(), source="mutations"),
        )
        self._taken = 0
        self.stage._intake.answer = self._answer  # type: ignore[method-assign]

    def _answer(
        self,
        record: Record,
        outbox: Any,
        letter: Letter,
        instead: Any = None,
        written: Any = None,
        elsewhere: Any = None,
    ) -> None:
        del record, outbox, instead, written, elsewhere
        self.letters.append(letter)

    async def take(self, record: Record) -> str:
        """The topic that the one letter goes to. Raises RuntimeError where that is not what came of it."""
        clock = SystemClock()
        if not self._taken:
            self.stage.serve(self._served)
        if not self._taken % 1000:
            self.stage.tell(RouterHeard(APP.name, clock.monotonic()), clock.wall())
        self._taken += 1
        self.letters.clear()
        before = self._ends.defects
        await self.stage._take([record])
        if self._ends.defects > before or len(self.letters) != 1:
            raise RuntimeError(f"{len(self.letters)} letters, {self._ends.defects - before} defects")
        letter = self.letters[0]
        told = Record(letter.topic, 0, 0, letter.key, letter.value, letter.headers, record.timestamp)
        if letter.topic == TOPICS.admitted(APP.name):  # whoever comes next reads what was let in
            codec.decode_admitted(told)
        elif letter.topic == TOPICS.results(APP.name):
            codec.decode_outcome(told)
        return letter.topic


async def examine(records: int, seed: int, now: float | None = None) -> tuple[Found, dict[str, float]]:
    """Damage and read ``records`` of them, made at ``now``."""
    rng = random.Random(seed)
    mutator, door, found, made = Mutator(rng), Door(), Found(), now or time.time()
    asked, said = queries(made), others(made)
    memory: dict[str, float] = {}
    for number in range(records):
        if number == records // 10:
            memory["tenth_mib"] = resident_mib()
        began = time.process_time()
        if rng.random() < 0.6:
            whole = rng.choice(asked)
            record = mutator.damaged(whole._replace(offset=number, headers=_named(whole.headers, number)))
            await _ask(door, record, found)
        else:
            sound, read = rng.choice(said)
            _read(read, mutator.damaged(sound), found)
        found.slowest_s = max(found.slowest_s, time.process_time() - began)
        found.records += 1
    gc.collect()
    memory["end_mib"] = resident_mib()
    return found, {name: round(mib, 1) for name, mib in memory.items()}


def _named(headers: Headers, number: int) -> Headers:
    """An id of its own, mostly."""
    return tuple((name, f"q{number}".encode() if name == "ce_id" and number % 20 else held) for name, held in headers)


async def _ask(door: Door, record: Record, found: Found) -> None:
    try:
        topic = await door.take(record)
    except Exception:
        found.crash("admission", record)
        return
    found.ends["query " + topic.rsplit(".", 1)[1]] += 1


def _read(read: Callable[[Record], Any], record: Record, found: Found) -> None:
    try:
        check_numbers(read(record))
    except InvalidInputError:
        found.ends["other refused"] += 1
    except Exception:
        found.crash(repr(read), record)
    else:
        found.ends["other read"] += 1


def check_numbers(read: Any) -> None:
    """Raises RuntimeError where what was read holds a number that nothing can count with."""
    if isinstance(read, int | float):
        if not -(2**63) < read < 2**63:
            raise RuntimeError(f"{read!r:.60} was read")
    elif is_dataclass(read):
        for one in fields(read):
            check_numbers(getattr(read, one.name))
    elif isinstance(read, Mapping):
        check_numbers(tuple(read.values()))
    elif isinstance(read, tuple | list):
        for inner in read:
            check_numbers(inner)


def resident_mib() -> float:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def faults(found: Found, memory: dict[str, float]) -> list[str]:
    """What is not as it should be."""
    grew = memory["end_mib"] - memory["tenth_mib"]
    wrong = [f"{found.ends['crash']} crashes"] if found.crashes else []
    wrong += [f"memory grew by {grew:.0f} MiB"] if grew > FLAT_MIB else []
    return wrong + ([f"a record took {found.slowest_s:.1f} s"] if found.slowest_s > SLOW_S else [])


def main() -> None:
    """Run, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.process_time()
    found, memory = asyncio.run(examine(given.records, given.seed))
    row = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}",
        "seed": given.seed,
        "cpu_s": round(time.process_time() - began, 1),
        "records": found.records,
        "ends": dict(found.ends.most_common()),
        "crashes": found.crashes,
        "slowest_s": round(found.slowest_s, 3),
        "memory": memory,
    }
    out = Path("reports/bench/mutations.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(row, indent=1))
    print(json.dumps(row, indent=1))
    if wrong := faults(found, memory):
        raise SystemExit(f"not as it should be: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
