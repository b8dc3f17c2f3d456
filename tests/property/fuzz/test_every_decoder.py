"""Whatever bytes come, each decoder reads them or refuses them; what was sound and was changed a little, too."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.streams.records import control
from tests.models.registration_models import linear
from tests.property.fuzz.decoders import DECODERS, PARTS

_PIECES = [
    PARTS,
    b"",
    b"\x00",
    b"\xff",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"-",
    b"1e999",
    b"NaN",
    b"null",
    b"9" * 400,
    b"&a *a",
]


@st.composite
def changed(draw: st.DrawFn, seed: bytes) -> bytes:
    """``seed``, a few bytes of it others, gone, or twice."""
    value = bytearray(seed)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(value)))
        gone = draw(st.sampled_from([0, 0, 1, 1, 2, 8, 40]))
        value[at : at + gone] = draw(st.sampled_from(_PIECES) | st.binary(max_size=4))
    return bytes(value)


def _of_unknown_numbers() -> bytes:
    """A model whose input holds numbers of a kind that ONNX does not know."""
    model = linear()
    model.graph.input[0].type.tensor_type.elem_type = 83
    return model.SerializeToString()


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_what_is_sound_is_read(name: str) -> None:
    decoder = DECODERS[name]
    assert decoder.seeds
    assert all(decoder(seed) for seed in decoder.seeds)


@pytest.mark.parametrize("name", sorted(DECODERS))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_comes_is_read_or_refused(name: str, data: st.DataObject) -> None:
    decoder = DECODERS[name]
    decoder(data.draw(st.sampled_from(decoder.seeds).flatmap(changed) | st.binary(max_size=200)))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("settings", b"null: 1\n"),
        ("model", DECODERS["model"].seeds[0].replace(b"MatMul", b"MatMu\xff")),
        ("model", _of_unknown_numbers()),
    ],
)
def test_what_was_once_found_is_refused(name: str, data: bytes) -> None:
    assert DECODERS[name](data) is False


def test_what_an_announcement_says_besides_costs_its_reader_nothing() -> None:
    said = b'{"subject":"app:toy","state":"safe_mode","detail":"","at":17.5,"more":{"x":%b}}'
    assert control.announced_at(said % b"1") == 17.5
    assert DECODERS["announcement"](said % b"1e999")
    assert control.announced_at(said % b"1e999") is None
