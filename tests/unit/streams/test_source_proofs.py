"""Queries of sources with a key: theirs alone pass for theirs."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from sluicegate.streams.ports import Record
from sluicegate.streams.source_proofs import PROOF, SourceKeys
from sluicegate_client.over_topics import _proof

AT = 1_700_000_000.25
KEYS = SourceKeys(keys={"/billing": b"the key of billing", "/http": b"the key of fronts"}, skew=5.0)
BODY = b'{"inputs": []}'


def record(source: str = "/billing", *, keys: SourceKeys = KEYS, topic: str = "p.app.a.queries") -> Record:
    headers = keys.proof(topic, source, "q1", BODY, AT)
    return Record(topic, 0, 7, b"q1", BODY, headers, AT + 0.5)


def flaw(given: Record, source: str = "/billing", query_id: str = "q1", keys: SourceKeys = KEYS) -> str:
    return keys.flaw(given, source, query_id)


def test_what_a_source_with_a_key_signed_is_its_own_and_others_need_no_proof() -> None:
    assert flaw(record()) == ""
    assert flaw(record("/http/4f21c0de"), "/http/4f21c0de") == "", "a front's key is that of its clients"
    assert record("/other").headers == () and flaw(record("/other"), "/other") == ""
    strict = replace(KEYS, required=True)
    assert flaw(record(), keys=strict) == ""
    assert "no key here" in flaw(record("/other"), "/other", keys=strict)


LIES: dict[str, tuple[Callable[[], Record], str, str]] = {
    "unsigned": (lambda: record()._replace(headers=()), "/billing", "must prove itself"),
    "a client of a front, unsigned": (lambda: record()._replace(headers=()), "/http/x", "must prove itself"),
    "another key": (lambda: record(keys=SourceKeys(keys={"/billing": b"a made-up key"})), "/billing", "another key"),
    "another source's": (lambda: record("/http"), "/billing", "another key"),
    "another body": (lambda: record()._replace(value=BODY + b" "), "/billing", "another key"),
    "another topic": (lambda: record()._replace(topic="p.app.b.queries"), "/billing", "another key"),
    "written again later": (lambda: record()._replace(timestamp=AT + 5.1), "/billing", "another time"),
    "of tomorrow": (lambda: record()._replace(timestamp=AT - 5.1), "/billing", "another time"),
    "two": (lambda: record()._replace(headers=2 * record().headers), "/billing", "none"),
    "short": (lambda: record()._replace(headers=((PROOF, b"x"),)), "/billing", "none"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_it_did_not_sign_is_not(lie: str) -> None:
    made, source, why = LIES[lie]
    assert why in flaw(made(), source)


def test_a_proof_is_of_one_query() -> None:
    assert "another query" in flaw(record(), query_id="q2")


def test_the_clients_package_signs_alike() -> None:
    (name, signed), *_ = _proof(b"the key of billing", "p.app.a.queries", "/billing", "q1", BODY)
    (at,) = struct.unpack_from(">q", signed)
    assert (name, signed) == KEYS.proof("p.app.a.queries", "/billing", "q1", BODY, at / 1e3)[0]
