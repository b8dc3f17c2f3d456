"""Everything that reads what somebody else wrote: records of each topic, bodies, frames, files.

A decoder takes bytes and returns, or raises one of ``REFUSALS``: anything else is a defect. Where what it read can be
written again, that must read as the same.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from bench.records.mutations import APP, others, queries
from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import BYTES, Tensor, TensorSpec, joined
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import Epoch
from sluicegate.domain.table import SelectionTable
from sluicegate.executors.onnx.framing import FrameError, describe, lengths, pack, parse_header, unpack_tensors
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel
from sluicegate.planner.policy_tables import table_codec
from sluicegate.planner.policy_tables.keys import Shelf, decode_name, encode_name
from sluicegate.planner.policy_tables.table_requests import LibraryRules, Question
from sluicegate.planner.policy_tables.table_schedule import Make, make_tables
from sluicegate.profiles.formats import catalogue_json
from sluicegate.profiles.registration.batch_axis import open_interface
from sluicegate.profiles.registration.model_checks import ModelLimits, read_checked
from sluicegate.simulator.arrivals.counts import read_counts
from sluicegate.simulator.arrivals.lists import read_arrival_file
from sluicegate.simulator.scenario.scenario_fields import Scenario
from sluicegate.simulator.scenario.scenario_file import read_scenario, scenario_of
from sluicegate.sluice.audit.fault_windows import read_windows
from sluicegate.sluice.offline.problem_file import read_question
from sluicegate.sluice.settings.settings import load
from sluicegate.stages.following.registry_follower import part_of
from sluicegate.stages.fronts.oip_responses import read_request, with_model
from sluicegate.stages.fronts.plain_requests import Head, read_head
from sluicegate.streams.objects.claims import Claim, ObjectRules
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec, control, oip
from sluicegate.streams.records.demand_windows import decode_windows
from sluicegate.streams.records.instances import decode_instance
from sluicegate.streams.remote.frames import decode_frame, encode_frame
from sluicegate.streams.signing import HEADER, Signing
from tests.harness import toy_catalogue
from tests.models.registration_models import linear, looping

REFUSALS = (SluiceError, FrameError)
NOW = 1.75e9
PARTS = b"\xff\x00\xff"
"""Between the value of a record, its key, and name and value of each header."""
TEXTS = App(name="words", slo=1.0, inputs=(TensorSpec("pair", BYTES, (2,)), TensorSpec("note", BYTES, ())))
_REFERRING = codec.Limits(objects=ObjectRules(prefixes=("s3://bucket/in/",)))
_SMALL = ModelLimits(total_bytes=1 << 24)
_ROOT = Path(__file__).resolve().parents[3]
_LOOP = asyncio.new_event_loop()
_LOOP.close()  # who reads a head waits for nothing
_FOLDER = tempfile.TemporaryDirectory(prefix="fuzz")


@dataclass(frozen=True)
class Decoder:
    """``read`` bytes; ``seeds`` that are sound; ``write`` what was read again."""

    read: Callable[[bytes], Any]
    seeds: Sequence[bytes]
    write: Callable[[Any], bytes] | None = None

    def __call__(self, data: bytes) -> bool:
        """Whether it was read; False: it was refused."""
        try:
            found = self.read(data)
        except REFUSALS:
            return False
        if self.write is not None:
            again = self.read(self.write(found))
            assert again == found, (again, found)
        return True


def packed(record: Record) -> bytes:
    """A record as bytes that can be changed."""
    headers = [part for name, held in record.headers for part in (name.encode(), held)]
    return PARTS.join((record.value or b"", record.key or b"", *headers))


def unpacked(data: bytes) -> Record:
    """The record."""
    value, *rest = data.split(PARTS)
    key, *headers = rest or [b""]
    named = zip(headers[::2], headers[1::2], strict=False)
    told = tuple((name.decode("latin1"), held) for name, held in named)
    return Record("t", 0, 0, key or None, value, told, NOW)


def _of_record(read: Callable[[Record], Any], *seeds: Record) -> Decoder:
    return Decoder(lambda data: read(unpacked(data)), [packed(seed) for seed in seeds])


def _of_file(read: Callable[[Path], Any], name: str, *seeds: bytes) -> Decoder:
    file = Path(_FOLDER.name) / name

    def reading(data: bytes) -> Any:
        file.write_bytes(data)
        return read(file)

    return Decoder(reading, seeds)


def _frame(data: bytes) -> None:
    """As it comes over the socket to an executor."""
    head, body = lengths(data[:16].ljust(16, b"\0"))
    rest = memoryview(data)[16:]
    unpack_tensors(parse_header(rest[:head]).get("tensors"), rest[head : head + body])


def _outputs(record: Record) -> object:
    found = codec.decode_outcome(record)
    return found.outputs(), found.claims(), codec.outcome_json(record)


def _announcement(data: bytes) -> object:
    """As the audit reads it: what can be read, says when it was decided, or does not."""
    return control.decode_announce(data), control.announced_at(data)


def _texts() -> Mapping[str, Decoder]:
    """BYTES, raw and in JSON, in hops and in frames to an executor."""
    data = joined([b"cat", b"", "Öl".encode(), b"dog"])
    tensors = (Tensor("pair", BYTES, (2, 2), data), Tensor("note", BYTES, (2,), joined([b"x", b"longer"])))
    said = [codec.encode_query("1", tensors, app=TEXTS.name, now=NOW, binary=binary) for binary in (True, False)]
    asked = [Record("t", 0, 0, m.key, m.value, m.headers, NOW) for m in said]
    message = codec.decode_query(asked[0], TEXTS, codec.DEFAULT_LIMITS, NOW)
    claim = Claim("s3://bucket/in/1", "ab" * 32, 40)
    refers = orjson.loads(asked[1].value or b"{}")
    refers["inputs"][1] = oip.claimed_tensor(tensors[1], claim)
    asked.append(asked[1]._replace(value=orjson.dumps(refers)))
    work = codec.encode_work(message, epoch=Epoch(1, 2), slice="s")
    referring = codec.encode_work(replace(message, claims=((1, claim),)), epoch=Epoch(1, 2), slice="s")
    referring.value = bytes(tensors[0].data)
    outcome = codec.encode_outcome(Outcome.of(message.query, OutcomeKind.ANSWERED, NOW + 0.1), tensors)
    kept = codec.encode_outcome(
        Outcome.of(message.query, OutcomeKind.ANSWERED, NOW + 0.1), tensors, claims={"note": claim}
    )
    works = [Record("w", 0, 0, one.key, one.value, one.headers, NOW) for one in (work, referring)]
    raw = codec.encode_outcome(
        Outcome.of(message.query, OutcomeKind.ANSWERED, NOW + 0.1), tensors, carried=(codec.TAKES_RAW,)
    )
    results = [Record("r", 0, 0, one.key, one.value, one.headers, NOW) for one in (outcome, kept, raw)]
    frame = b"".join(pack({"tensors": [describe(tensor) for tensor in tensors]}, [t.data for t in tensors]))
    return {
        "texts": _of_record(lambda r: codec.decode_query(r, TEXTS, _REFERRING, NOW), *asked),
        "work of texts": _of_record(codec.decode_work, *works),
        "result of texts": _of_record(_outputs, *results),
        "frame of texts": Decoder(_frame, [frame]),
    }


def _signed(record: Record) -> str:
    return Signing(prefix="t", key=b"of the system").flaw(record, NOW)


def _structured() -> Record:
    event = {
        "specversion": "1.0",
        "id": "1",
        "source": "x",
        "type": "q",
        "data": orjson.loads(queries(NOW)[0].value or b"{}"),
    }
    return Record("t", 0, 0, b"1", orjson.dumps(event), (("content-type", b"application/cloudevents+json"),), NOW)


def _checked(body: bytes) -> SelectionTable:
    """A table whose checksum is always right."""
    return table_codec.decode(table_codec.MAGIC + sha256(body).digest() + body)


def _tables() -> Sequence[SelectionTable]:
    variants = (
        Candidate("fast", 0.7, tuple(0.002 + 0.001 * b for b in range(1, 9))),
        Candidate("good", 0.9, tuple(0.006 + 0.003 * b for b in range(1, 9))),
    )
    model = SelectionModel(variants=variants, slo=0.1, workers=2, qps=150.0, grid=20)
    return make_tables(Make(Question(Shelf("toy", "cpu", 0.1), model, {}), (150.0,)), LibraryRules())


def _topics() -> Mapping[str, Decoder]:
    """Records of each topic."""
    said = [record for record, _ in others(NOW)]
    admitted, work, outcome = said[:3]
    values = [record.value or b"" for record in said[3:]]
    plan, beat, demand, acknowledged, announce, lease, turns, note, windows, instance = values
    key = decode_instance_key(instance)
    signed = Record("t.control.plan", 0, 0, b"plan", plan, ((HEADER, b"1:2:3"),), NOW)
    tables = [table_codec.encode(table)[36:] for table in _tables()]
    asked = [*queries(NOW), _structured()]
    return {
        "query": _of_record(lambda r: codec.decode_query(r, APP, codec.DEFAULT_LIMITS, NOW), *asked),
        "query's name": _of_record(_name, *queries(NOW)),
        "admitted": _of_record(codec.decode_admitted, admitted),
        "work": _of_record(codec.decode_work, work),
        "result": _of_record(codec.decode_outcome, outcome),
        "signature": _of_record(_signed, signed),
        "plan": Decoder(control.decode_plan, [plan], control.encode_plan),
        "heartbeat": Decoder(control.decode_heartbeat, [beat], control.encode_heartbeat),
        "demand": Decoder(control.decode_demand, [demand]),
        "acknowledgement": Decoder(control.decode_acknowledged, [acknowledged], control.encode_acknowledged),
        "announcement": Decoder(_announcement, [announce, announce[:-1] + b',"more":1e99}']),
        "lease": Decoder(control.decode_lease, [lease], control.encode_lease),
        "turns": Decoder(control.decode_turns, [turns], control.encode_turns),
        "router": Decoder(control.decode_router, [control.encode_router("toy")], control.encode_router),
        "note": Decoder(control.decode_note, [note], control.encode_note),
        "windows": Decoder(decode_windows, [windows]),
        "instance": _of_record(
            lambda r: decode_instance(r.key, r.value or b""), Record("t", 0, 0, key, instance, (), NOW)
        ),
        "registry": Decoder(lambda data: part_of("toy", data), [catalogue_json.encode(toy_catalogue())]),
        "table": Decoder(_checked, tables, lambda table: table_codec.encode(table)[36:]),
        "table's name": Decoder(decode_name, [b'["toy","cpu",0.25,100.0]'], encode_name),
    }


def decode_instance_key(value: bytes) -> bytes:
    """Of the record that says ``value``."""
    told = orjson.loads(value)
    return Instance(app=told["app"], variant=told["variant"], device=told["device"], expires=0.0).key.encode()


def _fronts() -> Mapping[str, Decoder]:
    """Bodies and frames."""
    body = queries(NOW)[0].value or b""
    frame = b"".join(pack({"tensors": [["x", "FP32", [2]]]}, [bytes(8)]))
    head = b"POST /v2/models/toy/infer HTTP/1.1\r\nHost: here\r\ncontent-length: 7\r\ntraceparent: none\r\n\r\n"
    return {
        "head": Decoder(_head, [head]),
        "body": Decoder(lambda data: (read_request(data, None, APP), with_model(data, None, "m")), [body]),
        "binary body": Decoder(_binary, [len(body).to_bytes(2, "big") + body]),
        "frame of records": Decoder(decode_frame, [encode_frame({"a": 1}, [("t", 0, queries(NOW)[:2])])]),
        "frame of tensors": Decoder(_frame, [frame]),
    }


def _files() -> Mapping[str, Decoder]:
    """Files that a command is given."""
    examples = _ROOT / "examples"
    windows = b'[{"name": "x", "began": "2026-11-21T10:00:00+00:00", "ended": 1795255800}]'
    shutil.copytree(examples / "problems", _FOLDER.name, dirs_exist_ok=True)  # what they name lies beside them
    problem = (examples / "problems" / "two-apps.yaml").read_bytes()
    scenarios = [file.read_bytes() for file in sorted(examples.glob("scenarios/*.yaml"))]
    whole = [scenario for scenario in scenarios if b"\ncatalogue:" in scenario][:2]
    models = [linear().SerializeToString(), looping().SerializeToString()]
    return {
        "settings": _of_file(load, "settings.yaml", b"prefix: a\ndevices: [{name: d0}]\nplanner: {period_s: 3}\n"),
        "scenario": _of_file(
            lambda file: scenario_of(read_scenario(file, {"SLUICE_DATA": "/data", "SLUICE_HOME": "/home"})),
            "scenario.yaml",
            *whole,
        ),
        "problem": _of_file(read_question, "problem.yaml", problem),
        "incident": _of_file(read_windows, "incident.json", windows),
        "counts": _of_file(read_counts, "counts.csv", b"second,qps\n0,10\n1,20.5\n"),
        "arrivals": _of_file(read_arrival_file, "toy.txt", b"1.5\n2\n2000.25\n"),
        "model": _of_file(lambda file: open_interface(read_checked(file, _SMALL)), "model.onnx", *models),
    }


def _scenario(file: Path) -> Scenario:
    return scenario_of(read_scenario(file, {"SLUICE_DATA": "/data", "SLUICE_HOME": "/home"}))


def _name(record: Record) -> object:
    return codec.query_id_of(record), codec.source_of_query(record), codec.carried_if_it_can_be(record)


def _head(data: bytes) -> Head:
    if (found := read_head(data, _LOOP)) is None:
        raise InvalidInputError("head", "is not plain")
    return found


def _binary(data: bytes) -> object:
    return with_model(data[2:], str(int.from_bytes(data[:2], "big")), "m")


DECODERS: Mapping[str, Decoder] = {**_topics(), **_texts(), **_fronts(), **_files()}
