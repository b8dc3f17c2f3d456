"""``sluice infer``: arrays are of the datatypes that the app declares, what is none is one clear line, and so is what
an answer holds elsewhere."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.sluice.commands.running import infer
from sluicegate.sluice.commands.running.infer import read_arrays
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams.objects.claims import Claim
from sluicegate.streams.records import codec
from sluicegate.streams.records.oip import DTYPES
from sluicegate_client import Answer
from sluicegate_client.over_topics import answer_of
from tests.harness import toy_catalogue

Write = Callable[[str, bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return written


def packed(**arrays: Any) -> bytes:
    buffer = BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def test_numbers_of_json_are_of_the_datatype_that_the_app_declares(write: Write) -> None:
    catalogue = toy_catalogue()
    inputs = (TensorSpec("tokens", "INT64", (2,)), TensorSpec("image", "FP32", (2,)), TensorSpec("text", "BYTES", (1,)))
    served = replace(catalogue, apps={"toy": replace(catalogue.apps["toy"], inputs=inputs)})
    file = write("x.json", b'{"tokens": [[1, 2]], "image": [[1, 2.5]], "text": [["a"]], "strange": [[3, 4]]}')
    told, _ = infer._inputs(Settings(), "toy", file, 0, served)
    kinds = {name: array.dtype.str for name, array in told.items()}
    assert kinds == {"tokens": "<i8", "image": "<f4", "text": "<U1", "strange": "<f4"}
    assert told["tokens"].tolist() == [[1, 2]] and told["image"].tolist() == [[1.0, 2.5]]
    unknown, _ = infer._inputs(Settings(), "toy", file, 0, None)
    assert unknown["tokens"].dtype == np.float32


def test_an_output_that_lies_in_an_object_store_is_told_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    outcome = Outcome.of(Query("q1", "toy", now, now + 9.0), OutcomeKind.ANSWERED, now + 0.1, variant="v")
    where = f"file:///results/{'long/' * 40}scores"
    claim = Claim(where, "ab" * 32, 80_000)
    outputs = (Tensor("scores", "FP32", (2, 10_000), b""), Tensor("label", "INT64", (2,), bytes(16)))
    record = codec.encode_outcome(outcome, outputs, claims={"scores": claim})

    async def nothing_served(*_: Any) -> None: ...

    async def asked(*_: Any) -> Answer:
        return answer_of(record.value or b"")

    monkeypatch.setattr(infer, "awaited_url", lambda *_, **__: "memory://")
    monkeypatch.setattr(infer, "_served", nothing_served)
    monkeypatch.setattr(infer, "_inputs", lambda *_: ({}, None))
    monkeypatch.setattr(infer, "_ask", asked)
    command = typer.Typer()
    infer.register(command)
    ended = CliRunner().invoke(command, ["--app", "toy"])
    assert ended.exit_code == 0, ended.exception
    assert f"  scores: FP32 [2, 10000], 80000 bytes at {where}\n" in ended.stdout
    assert "  label: [0, 0]\n" in ended.stdout


def test_an_output_of_many_values_is_cut_on_a_console() -> None:
    assert infer._cut("[0.5, 0.25]", 2) == "[0.5, 0.25]"
    text = str([0.25] * 9_000)
    first, rest = infer._cut(text, 9_000).split("… ")
    assert rest == "(9000 values; whole with --json)"
    assert text.startswith(first) and 1_000 < len(first) < 3_000


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("INT64", [2**63 - 1, -(2**63)]),
        ("UINT64", [2**64 - 1, 0]),
        ("UINT8", [255.0]),
        ("BOOL", [True, 0]),
        ("FP64", [0.1]),
        ("FP16", [0.1]),
    ],
)
def test_what_fits_is_taken(write: Write, datatype: str, values: list[Any]) -> None:
    array = read_arrays(write("x.json", json.dumps({"x": values}).encode()), {"x": datatype})["x"]
    assert array.tolist() == (values if datatype != "FP16" else [float(np.float16(0.1))])
    assert array.dtype == DTYPES[datatype]


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("INT64", [1.5]),
        ("INT64", [2**63]),
        ("INT64", ["1"]),
        ("INT32", [1, None]),
        ("UINT8", [256]),
        ("UINT8", [-1]),
        ("BOOL", [2]),
        ("FP16", [1e6]),
        ("FP32", [1e39]),
        ("FP32", ["1"]),
        ("FP32", [None]),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(write: Write, datatype: str, values: list[Any]) -> None:
    file = write("x.json", json.dumps({"x": values}).encode())
    with pytest.raises(InvalidInputError, match=f"x is of {datatype}, which cannot hold what the file says"):
        read_arrays(file, {"x": datatype})


def test_ragged_lists_are_refused_whatever_is_declared(write: Write) -> None:
    for datatypes in ({}, {"x": "INT64"}, {"x": "BYTES"}):
        with pytest.raises(InvalidInputError, match="of one shape"):
            read_arrays(write("x.json", b'{"x": [[1], [1, 2]]}'), datatypes)


def test_a_packed_file_keeps_its_datatypes(write: Write) -> None:
    array = read_arrays(write("x.npz", packed(x=np.array([1], np.int16))), {"x": "INT64"})["x"]
    assert array.dtype == np.int16


def damaged() -> dict[str, bytes]:
    whole = packed(x=np.ones(3000))
    single = BytesIO()
    np.save(single, np.ones(3))
    garbled = bytearray(whole)
    garbled[60] ^= 255
    encrypted = BytesIO()
    with ZipFile(encrypted, "w") as archive:
        archive.writestr("x.npy", single.getvalue())
    locked = bytearray(encrypted.getvalue())
    locked[6] |= 1
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    return {
        "empty": b"",
        "cut short": whole[: len(whole) // 2],
        "garbled": bytes(garbled),
        "encrypted": bytes(locked),
        "one array": single.getvalue(),
        "no archive": b"hello",
        "objects": packed(x=np.array([{}], dtype=object)),
    }


@pytest.mark.parametrize("how", damaged())
def test_a_broken_packed_file_is_one_clear_line(write: Write, how: str) -> None:
    with pytest.raises(InvalidInputError, match=r"x\.npz") as told:
        read_arrays(write("x.npz", damaged()[how]))
    assert "\n" not in str(told.value) and told.value.field == "--input"
